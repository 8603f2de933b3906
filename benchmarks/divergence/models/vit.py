"""A vision transformer: patches by convolution, against unfolding and a matrix product."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.divergence.cases import Edit

WIDTH, PATCH, HEADS = 48, 4, 4


def inputs() -> tuple[Any, ...]:
    return (torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(6)),)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        y, _ = self.attention(y, y, y, need_weights=True)
        x = x + y
        return x + self.mlp(self.norm2(x))


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, 17, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        x = x + self.places
        x = self.norm(self.blocks(x))
        return self.head(x[:, 0])


class Port(nn.Module):
    def __init__(self, reference: Any) -> None:
        super().__init__()
        self.proj = nn.Linear(3 * PATCH * PATCH, WIDTH)
        self.proj.weight.data = reference.patches.weight.data.flatten(1)
        self.proj.bias = reference.patches.bias
        self.cls, self.pos = reference.token, reference.places
        self.layers = reference.blocks
        self.ln, self.fc = reference.norm, reference.head

    def attention(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = F.linear(x, layer.in_proj_weight, layer.in_proj_bias)
        qkv = qkv.reshape(batch, length, 3, HEADS, width // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.mT * (width // HEADS) ** -0.5
        weights = scores.softmax(dim=-1)
        y = (weights @ v).transpose(1, 2)
        return layer.out_proj(y.flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = F.unfold(x, PATCH, stride=PATCH).transpose(1, 2)
        x = self.proj(patches)
        cls = self.cls.expand(x.shape[0], -1, -1)
        x = torch.cat((cls, x), dim=1)
        x = x + self.pos
        for layer in self.layers:
            x = x + self.attention(layer.attention, layer.norm1(x))
            y = layer.mlp[0](layer.norm2(x))
            y = F.gelu(y)
            x = x + layer.mlp[2](y)
        x = self.ln(x)
        return self.fc(x[:, 0])


EDITS = (
    Edit(
        name="norm of one token alone",
        old="        x = self.ln(x)\n        return self.fc(x[:, 0])",
        new="        return self.fc(self.ln(x[:, 0]))",
        is_same=True,
    ),
    Edit(
        name="matmul for linear",
        old="qkv = F.linear(x, layer.in_proj_weight, layer.in_proj_bias)",
        new="qkv = torch.matmul(x, layer.in_proj_weight.t()) + layer.in_proj_bias",
        is_same=True,
    ),
    Edit(
        name="token last",
        old="torch.cat((cls, x), dim=1)",
        new="torch.cat((x, cls), dim=1)",
        at=("torch.cat((x, cls)",),
    ),
    Edit(
        name="mean for the token",
        old="self.fc(x[:, 0])",
        new="self.fc(x.mean(1))",
        at=("x.mean(1)",),
    ),
    Edit(
        name="fused projections split by heads",
        old="qkv = qkv.reshape(batch, length, 3, HEADS, width // HEADS)\n"
        "        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)",
        new="qkv = qkv.reshape(batch, length, HEADS, 3, width // HEADS)\n"
        "        q, k, v = qkv.permute(3, 0, 2, 1, 4).unbind(0)",
        at=("HEADS, 3, width", "qkv.permute(3", "scores = q @"),
    ),
    Edit(
        name="patches not transposed",
        old="F.unfold(x, PATCH, stride=PATCH).transpose(1, 2)",
        new="F.unfold(x, PATCH, stride=PATCH).reshape(len(x), 16, -1)",
        at=("F.unfold", "self.proj(patches)"),
    ),
    Edit(
        name="positions only for the patches",
        old="x = x + self.pos",
        new="x = torch.cat((x[:, :1], x[:, 1:] + self.pos[:, 1:]), 1)",
        at=("self.pos[:, 1:]",),
    ),
    Edit(name="quick gelu", old="y = F.gelu(y)", new="y = y * torch.sigmoid(1.702 * y)"),
    Edit(
        name="no scale",
        old="scores = q @ k.mT * (width // HEADS) ** -0.5",
        new="scores = q @ k.mT",
        at=("scores.softmax", "scores = q @ k.mT"),
    ),
    Edit(
        name="attention over the batch",
        old="weights = scores.softmax(dim=-1)",
        new="weights = scores.softmax(dim=0)",
    ),
    Edit(
        name="bias forgotten",
        old="qkv = F.linear(x, layer.in_proj_weight, layer.in_proj_bias)",
        new="qkv = F.linear(x, layer.in_proj_weight)",
    ),
    Edit(
        name="wrong epsilon",
        old="x = self.ln(x)",
        new="x = F.layer_norm(x, (WIDTH,), self.ln.weight, self.ln.bias, 1e-2)",
    ),
)
