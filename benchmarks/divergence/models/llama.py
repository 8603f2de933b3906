"""A Llama: rotary embedding, grouped queries, gated MLP; the port uses torch's own functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.divergence.cases import Edit

WIDTH, HEADS, GROUPS, LENGTH, WORDS, BASE = 48, 6, 2, 10, 40, 10000.0
SIZE = WIDTH // HEADS


def inputs() -> tuple[Any, ...]:
    return (torch.randint(WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(4)),)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-5))


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = Norm(), Norm()
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.v = nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        q = self.q(y).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)
        k = self.k(y).unflatten(-1, (GROUPS, SIZE)).transpose(1, 2)
        v = self.v(y).unflatten(-1, (GROUPS, SIZE)).transpose(1, 2)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        k = k.repeat_interleave(HEADS // GROUPS, dim=1)
        v = v.repeat_interleave(HEADS // GROUPS, dim=1)
        scores = q @ k.transpose(2, 3) / SIZE**0.5
        future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
        y = scores.softmax(-1) @ v
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.after(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        frequencies = 1.0 / BASE ** (torch.arange(0, SIZE, 2) / SIZE)
        angles = torch.arange(LENGTH)[:, None] * frequencies
        angles = torch.cat([angles, angles], -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


class Port(nn.Module):
    def __init__(self, reference: Any) -> None:
        super().__init__()
        self.embed_tokens = reference.words
        self.blocks = reference.layers
        self.final, self.lm_head = reference.norm, reference.head

    def norm(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (WIDTH,), layer.weight, 1e-5)

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        first, second = x[..., :half], x[..., half:]
        left = first * cos - second * sin
        right = second * cos + first * sin
        return torch.cat((left, right), dim=-1)

    def tables(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        steps = torch.arange(0, SIZE, 2).float()
        frequencies = BASE ** (-steps / SIZE)
        angles = torch.outer(torch.arange(length).float(), frequencies)
        return angles.cos(), angles.sin()

    def mlp(self, block: Any, x: torch.Tensor) -> torch.Tensor:
        gate = block.gate(x)
        gate = F.silu(gate)
        return block.down(block.up(x) * gate)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids)
        batch, length, _ = x.shape
        cos, sin = self.tables(length)
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        for number, block in enumerate(self.blocks):
            y = self.norm(block.before, x)
            k = block.k(y).view(batch, length, GROUPS, SIZE).transpose(1, 2)
            v = block.v(y).view(batch, length, GROUPS, SIZE).transpose(1, 2)
            q = block.q(y).view(batch, length, HEADS, SIZE).transpose(1, 2)
            q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
            k = k[:, :, None].expand(-1, -1, HEADS // GROUPS, -1, -1).flatten(1, 2)
            v = v[:, :, None].expand(-1, -1, HEADS // GROUPS, -1, -1).flatten(1, 2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            y = block.o(y.transpose(1, 2).reshape(batch, length, WIDTH))
            x = y + x
            x = self.mlp(block, self.norm(block.after, x)) + x
        return self.lm_head(self.norm(self.final, x))


EDITS = (
    Edit(
        name="grouped queries by torch",
        old="            k = k[:, :, None].expand(-1, -1, HEADS // GROUPS, -1, -1).flatten(1, 2)\n"
        "            v = v[:, :, None].expand(-1, -1, HEADS // GROUPS, -1, -1).flatten(1, 2)\n"
        "            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        new="            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)",
        is_same=True,
    ),
    Edit(
        name="rotation by complex numbers",
        old="        left = first * cos - second * sin\n"
        "        right = second * cos + first * sin\n"
        "        return torch.cat((left, right), dim=-1)",
        new="        pairs = torch.complex(first.float(), second.float())\n"
        "        turned = pairs * torch.complex(cos.float(), sin.float())\n"
        "        return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)",
        is_same=True,
    ),
    Edit(
        name="rotary base",
        old="frequencies = BASE ** (-steps / SIZE)",
        new="frequencies = 500.0 ** (-steps / SIZE)",
    ),
    Edit(
        name="rotation the other way",
        old="left = first * cos - second * sin",
        new="left = first * cos + second * sin",
    ),
    Edit(
        name="rotary pairs interleaved",
        old="first, second = x[..., :half], x[..., half:]",
        new="first, second = x[..., 0::2], x[..., 1::2]",
        at=("x[..., 0::2]", "left =", "right ="),
    ),
    Edit(
        name="key not rotated",
        old="q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)",
        new="q, k = self.rotate(q, cos, sin), k",
        at=("k = k[:, :, None]", "F.scaled_dot"),
        missing="k = k * cos",
    ),
    Edit(
        name="groups tiled",
        old="k = k[:, :, None].expand(-1, -1, HEADS // GROUPS, -1, -1).flatten(1, 2)",
        new="k = k.repeat(1, HEADS // GROUPS, 1, 1)",
    ),
    Edit(
        name="gate and up swapped",
        old="gate = block.gate(x)\n",
        new="gate = block.up(x)\n",
        at=("F.silu(gate)", "gate = block.up(x)"),
    ),
    Edit(name="gelu for silu", old="gate = F.silu(gate)", new="gate = F.gelu(gate)"),
    Edit(
        name="not causal",
        old="F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        new="F.scaled_dot_product_attention(q, k, v)",
        at=("F.scaled_dot",),
    ),
    Edit(
        name="wrong epsilon",
        old="layer.weight, 1e-5)",
        new="layer.weight, 1e-2)",
        at=("F.rms_norm",),
    ),
    Edit(
        name="layer norm for RMS norm",
        old="F.rms_norm(x, (WIDTH,), layer.weight, 1e-5)",
        new="F.layer_norm(x, (WIDTH,), layer.weight, None, 1e-5)",
        at=("F.layer_norm",),
    ),
    Edit(
        name="norm after the residual",
        old="x = self.mlp(block, self.norm(block.after, x)) + x",
        new="x = self.mlp(block, x) + x",
        at=("gate = block.gate(x)",),
        missing="variance = x.pow",
    ),
    Edit(
        name="no gate",
        old="return block.down(block.up(x) * gate)",
        new="return block.down(gate)",
        at=("block.down(gate)",),
        missing="F.silu(self.gate",
    ),
    Edit(
        name="positions shifted",
        old="torch.arange(length).float()",
        new="torch.arange(1, length + 1).float()",
        is_same=True,
    ),
    Edit(
        name="scale twice",
        old="y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        new="y = F.scaled_dot_product_attention(q / SIZE**0.5, k, v, is_causal=True)",
        at=("F.scaled_dot",),
    ),
)
