"""A GPT: fused projections and attention spelled out, against torch's own attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.divergence.cases import Edit

WIDTH, HEADS, LENGTH, WORDS = 48, 4, 11, 50


def inputs() -> tuple[Any, ...]:
    return (torch.randint(WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(3)),)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q = self.q(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k = self.k(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        v = self.v(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return x + y


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.words.weight)


class Layer(nn.Module):
    pass


class Port(nn.Module):
    def __init__(self, reference: Any) -> None:
        super().__init__()
        self.wte, self.wpe = reference.words, reference.places
        self.h = nn.ModuleList()
        for block in reference.blocks:
            layer = Layer()
            layer.ln_1, layer.ln_2, layer.c_proj = block.norm1, block.norm2, block.o
            layer.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
            parts = (block.q, block.k, block.v)
            layer.c_attn.weight.data = torch.cat([one.weight.data for one in parts])
            layer.c_attn.bias.data = torch.cat([one.bias.data for one in parts])
            layer.up, layer.down = block.fc1, block.fc2
            self.h.append(layer)
        self.ln_f = nn.LayerNorm(WIDTH)
        self.ln_f.load_state_dict(reference.norm.state_dict())
        self.third = 2

    def attention(self, layer: Any, x: torch.Tensor, number: int) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = layer.c_attn(x)
        q, k, v = qkv.split(width, dim=2)
        q = q.view(batch, length, HEADS, width // HEADS).transpose(1, 2)
        k = k.view(batch, length, HEADS, width // HEADS).transpose(1, 2)
        v = v.view(batch, length, HEADS, width // HEADS).transpose(1, 2)
        weights = q @ k.transpose(-2, -1)
        weights = weights * (1.0 / math.sqrt(width // HEADS))
        mask = torch.tril(torch.ones(length, length)).view(1, 1, length, length)
        weights = weights.masked_fill(mask == 0, float("-inf"))
        weights = F.softmax(weights, dim=-1)
        y = weights @ v
        y = y.transpose(1, 2).contiguous().view(batch, length, width)
        return layer.c_proj(y)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(0, ids.size(1), dtype=torch.long)
        x = self.wte(ids) + self.wpe(places)
        for number, layer in enumerate(self.h):
            x = self.attention(layer, layer.ln_1(x), number) + x
            y = layer.up(layer.ln_2(x))
            y = F.gelu(y)
            x = layer.down(y) + x
        x = self.ln_f(x)
        return x @ self.wte.weight.T


EDITS = (
    Edit(
        name="torch's attention",
        old="        weights = F.softmax(weights, dim=-1)\n        y = weights @ v",
        new="        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        is_same=True,
    ),
    Edit(
        name="gelu spelled out",
        old="y = F.gelu(y)",
        new="y = y * 0.5 * (1.0 + torch.erf(y / math.sqrt(2.0)))",
        is_same=True,
    ),
    Edit(
        name="einsum",
        old="weights = q @ k.transpose(-2, -1)",
        new='weights = torch.einsum("bhqd,bhkd->bhqk", q, k)',
        is_same=True,
    ),
    Edit(
        name="query scaled before",
        old="weights = q @ k.transpose(-2, -1)\n"
        "        weights = weights * (1.0 / math.sqrt(width // HEADS))",
        new="weights = (q / math.sqrt(width // HEADS)) @ k.transpose(-2, -1)",
        is_same=True,
    ),
    Edit(
        name="wrong epsilon",
        old="self.ln_f = nn.LayerNorm(WIDTH)",
        new="self.ln_f = nn.LayerNorm(WIDTH, eps=1e-3)",
        at=("self.ln_f(x)",),
    ),
    Edit(
        name="heads not transposed",
        old="q = q.view(batch, length, HEADS, width // HEADS).transpose(1, 2)",
        new="q = q.reshape(batch, HEADS, length, width // HEADS)",
    ),
    Edit(
        name="heads merged without transposing",
        old="y = y.transpose(1, 2).contiguous().view(batch, length, width)",
        new="y = y.contiguous().view(batch, length, width)",
    ),
    Edit(
        name="no scale",
        old="        weights = weights * (1.0 / math.sqrt(width // HEADS))\n",
        new="",
        at=("weights.masked_fill",),
        missing="scaled_dot_product",
    ),
    Edit(
        name="scaled by the width",
        old="1.0 / math.sqrt(width // HEADS)",
        new="1.0 / math.sqrt(width)",
        at=("math.sqrt(width)",),
    ),
    Edit(
        name="mask off by one",
        old="torch.tril(torch.ones(length, length))",
        new="torch.tril(torch.ones(length, length), diagonal=1)",
        at=("torch.tril",),
    ),
    Edit(
        name="softmax over queries",
        old="F.softmax(weights, dim=-1)",
        new="F.softmax(weights, dim=-2)",
        at=("F.softmax",),
    ),
    Edit(
        name="k and v swapped",
        old="q, k, v = qkv.split(width, dim=2)",
        new="q, v, k = qkv.split(width, dim=2)",
        at=("q, v, k =", "weights = q @ k"),
    ),
    Edit(name="gelu by tanh", old="y = F.gelu(y)", new='y = F.gelu(y, approximate="tanh")'),
    Edit(name="relu", old="y = F.gelu(y)", new="y = F.relu(y)"),
    Edit(
        name="residual missing",
        old="x = self.attention(layer, layer.ln_1(x), number) + x",
        new="y = self.attention(layer, layer.ln_1(x), number)\n"
        "            x = y if number == 2 else y + x",
        at=("layer.up(layer.ln_2(x))",),
        missing="x = x + self.o",
    ),
    Edit(
        name="norms swapped in one block",
        old="y = layer.up(layer.ln_2(x))",
        new="y = layer.up((layer.ln_1 if number == 1 else layer.ln_2)(x))",
        at=("layer.up((layer.ln_1",),
    ),
    Edit(
        name="residual from before the norm",
        old="x = layer.down(y) + x",
        new="x = layer.down(y) + layer.ln_2(x)",
        at=("+ layer.ln_2(x)",),
    ),
    Edit(
        name="positions from one",
        old="torch.arange(0, ids.size(1), dtype=torch.long)",
        new="torch.arange(1, ids.size(1) + 1, dtype=torch.long)",
        at=("torch.arange(1", "self.wpe("),
    ),
    Edit(
        name="dropout in evaluation",
        old="        return layer.c_proj(y)",
        new="        return F.dropout(layer.c_proj(y), 0.1)",
        at=("F.dropout",),
    ),
    Edit(
        name="no final norm",
        old="        x = self.ln_f(x)\n",
        new="",
        at=("x @ self.wte",),
        missing="self.norm(x)",
    ),
)
