"""A BERT: norms after the residual, a padding mask, three embeddings, a pooler."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.divergence.cases import Edit

WIDTH, HEADS, LENGTH, WORDS = 32, 4, 9, 30
SIZE = WIDTH // HEADS


def inputs() -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(WORDS, (3, LENGTH), generator=generator)
    types = torch.randint(2, (3, LENGTH), generator=generator)
    mask = torch.ones(3, LENGTH, dtype=torch.bool)
    mask[1, 6:] = False
    mask[2, 4:] = False
    return ids, types, mask


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.dense = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-12), nn.LayerNorm(WIDTH, eps=1e-12)
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], LENGTH, HEADS, SIZE).permute(0, 2, 1, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        scores = q @ k.transpose(-1, -2)
        scores = scores / SIZE**0.5
        scores = scores + mask
        weights = scores.softmax(-1)
        y = (weights @ v).permute(0, 2, 1, 3).reshape(x.shape)
        x = self.norm1(self.dense(y) + x)
        y = self.down(F.gelu(self.up(x)))
        return self.norm2(y + x)


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.types = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(Encoder() for _ in range(3))
        self.pooler = nn.Linear(WIDTH, WIDTH)

    def forward(
        self, ids: torch.Tensor, types: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.words(ids) + self.types(types) + self.places.weight
        x = self.norm(x)
        added = (1.0 - mask[:, None, None].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, added)
        return x, torch.tanh(self.pooler(x[:, 0]))


class Port(nn.Module):
    def __init__(self, reference: Any) -> None:
        super().__init__()
        self.tokens, self.segments = reference.words, reference.types
        self.positions, self.embedding_norm = reference.places, reference.norm
        self.encoder, self.pool = reference.layers, reference.pooler

    def attend(self, layer: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        value = layer.value(x).view(batch, length, HEADS, SIZE)
        key = layer.key(x).view(batch, length, HEADS, SIZE)
        query = layer.query(x).view(batch, length, HEADS, SIZE)
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key)
        scores = scores * SIZE**-0.5
        scores = scores.masked_fill(~mask[:, None, None, :], -10000.0)
        weights = torch.softmax(scores, -1)
        context = torch.einsum("bhqk,bkhd->bqhd", weights, value)
        return layer.dense(context.reshape(batch, length, WIDTH))

    def feed_forward(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        inner = layer.up(x)
        inner = F.gelu(inner)
        return layer.down(inner)

    def forward(
        self, ids: torch.Tensor, types: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        places = self.positions(torch.arange(LENGTH))
        x = self.tokens(ids) + places + self.segments(types)
        x = self.embedding_norm(x)
        for layer in self.encoder:
            x = layer.norm1(x + self.attend(layer, x, mask))
            x = layer.norm2(x + self.feed_forward(layer, x))
        first = x[:, 0]
        return x, self.pool(first).tanh()


EDITS = (
    Edit(
        name="torch's attention",
        old='scores = torch.einsum("bqhd,bkhd->bhqk", query, key)\n'
        "        scores = scores * SIZE**-0.5\n"
        "        scores = scores.masked_fill(~mask[:, None, None, :], -10000.0)\n"
        "        weights = torch.softmax(scores, -1)\n"
        '        context = torch.einsum("bhqk,bkhd->bqhd", weights, value)',
        new="query, key, value = (one.transpose(1, 2) for one in (query, key, value))\n"
        "        context = F.scaled_dot_product_attention(query, key, value, mask[:, None, None])\n"
        "        context = context.transpose(1, 2)",
        is_same=True,
    ),
    Edit(
        name="mask by infinity",
        old="~mask[:, None, None, :], -10000.0",
        new='~mask[:, None, None, :], float("-inf")',
        is_same=True,
    ),
    Edit(
        name="no mask",
        old="        scores = scores.masked_fill(~mask[:, None, None, :], -10000.0)\n",
        new="",
        at=("torch.softmax",),
        missing="scores + mask",
    ),
    Edit(
        name="mask over queries",
        old="mask[:, None, None, :]",
        new="mask[:, None, :, None]",
        at=("mask[:, None, :, None]",),
    ),
    Edit(
        name="softmax over keys of other heads",
        old="torch.softmax(scores, -1)",
        new="torch.softmax(scores, 1)",
        at=("torch.softmax(scores, 1)",),
    ),
    Edit(
        name="norm before the residual",
        old="x = layer.norm2(x + self.feed_forward(layer, x))",
        new="x = x + layer.norm2(self.feed_forward(layer, x))",
        at=("layer.norm2(self.feed",),
        missing="self.norm2(y + x)",
    ),
    Edit(
        name="segments missing",
        old="x = self.tokens(ids) + places + self.segments(types)",
        new="x = self.tokens(ids) + places",
        at=("self.embedding_norm", "+ places"),
        missing="self.types(types)",
    ),
    Edit(
        name="relu for tanh",
        old="self.pool(first).tanh()",
        new="self.pool(first).relu()",
        at=(".relu()",),
    ),
    Edit(
        name="last token pooled",
        old="first = x[:, 0]",
        new="first = x[:, -1]",
        at=("first = x[:, -1]", "self.pool(first)"),
    ),
    Edit(
        name="residual of the other branch",
        old="x = layer.norm1(x + self.attend(layer, x, mask))",
        new="y = self.attend(layer, x, mask)\n            x = layer.norm1(y + y)",
        at=("y + y",),
    ),
    Edit(
        name="key as query",
        old="query = layer.query(x)",
        new="query = layer.key(x)",
        at=("query = layer.key(x)", '"bqhd,bkhd->bhqk"'),
    ),
    Edit(
        name="positions reversed",
        old="torch.arange(LENGTH)",
        new="torch.arange(LENGTH).flip(0)",
        at=("flip(0)",),
    ),
    Edit(
        name="scale forgotten",
        old="        scores = scores * SIZE**-0.5\n",
        new="",
        at=("scores.masked_fill",),
        missing="scores / SIZE",
    ),
    Edit(
        name="heads and sizes swapped",
        old="value = layer.value(x).view(batch, length, HEADS, SIZE)",
        new="value = layer.value(x).view(batch, length, SIZE, HEADS).transpose(2, 3)",
        at=("SIZE, HEADS",),
    ),
)
