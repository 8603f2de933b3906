"""A mixture of experts with ALiBi and normed queries; the port runs all experts at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.divergence.cases import Edit

WIDTH, HEADS, LENGTH, WORDS, EXPERTS, BEST = 32, 4, 9, 40, 4, 2


def inputs() -> tuple[Any, ...]:
    return (torch.randint(WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(9)),)


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, 48, bias=False) for _ in range(2))
        self.w2 = nn.Linear(48, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        chances = self.router(flat).softmax(-1)
        best, chosen = chances.topk(BEST, -1)
        best = best / best.sum(-1, keepdim=True)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            result.index_add_(0, rows, expert(flat[rows]) * best[rows, places, None])
        return result.view_as(x)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, 1e-5), nn.RMSNorm(WIDTH, 1e-5)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.norm_q, self.norm_k = (nn.RMSNorm(WIDTH // HEADS, 1e-5) for _ in range(2))
        self.mixture = Mixture()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = (
            one(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        q, k = self.norm_q(q), self.norm_k(k)
        places = torch.arange(LENGTH)
        far = places[None, :] - places[:, None]
        slopes = 2.0 ** (-8.0 * torch.arange(1, HEADS + 1) / HEADS)
        bias = (slopes[:, None, None] * far).masked_fill(far > 0, float("-inf")).to(x.dtype)
        scores = q @ k.transpose(2, 3) * (WIDTH // HEADS) ** -0.5
        y = (scores + bias).softmax(-1) @ v
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.mixture(self.norm2(x))


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm = nn.RMSNorm(WIDTH, 1e-5)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) * WIDTH**0.5
        for layer in self.layers:
            x = layer(x)
        return 30.0 * torch.tanh(self.head(self.norm(x)) / 30.0)


class Port(nn.Module):
    def __init__(self, reference: Any) -> None:
        super().__init__()
        self.embed, self.blocks = reference.words, reference.layers
        self.ln, self.lm_head = reference.norm, reference.head

    def norm(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        mean = (x * x).mean(-1, keepdim=True)
        return x * (mean + 1e-5).rsqrt() * layer.weight

    def attention(self, block: Any, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q = block.q(x).view(batch, length, HEADS, -1)
        k = block.k(x).view(batch, length, HEADS, -1)
        v = block.v(x).view(batch, length, HEADS, -1)
        q, k = self.norm(block.norm_q, q), self.norm(block.norm_k, k)
        start = 2 ** (-8 / HEADS)
        slopes = torch.tensor([start ** (number + 1) for number in range(HEADS)])
        steps = torch.arange(length)
        distance = (steps.view(1, -1) - steps.view(-1, 1)).tril()
        bias = slopes.view(-1, 1, 1) * distance
        hidden = torch.ones(length, length).tril() == 0
        bias = bias.masked_fill(hidden, float("-inf")).to(x.dtype)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=bias
        )
        return block.o(y.transpose(1, 2).reshape(batch, length, width))

    def mixture(self, part: Any, x: torch.Tensor) -> torch.Tensor:
        logits = part.router(x)
        values, chosen = torch.topk(logits, BEST, dim=-1)
        gates = torch.softmax(values, dim=-1)
        weights = torch.zeros_like(logits).scatter(-1, chosen, gates)
        every = []
        for expert in part.experts:
            gate = F.silu(expert.w1(x))
            every.append(expert.w2(expert.w3(x) * gate))
        return (torch.stack(every, -2) * weights[..., None]).sum(-2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = x * WIDTH**0.5
        for block in self.blocks:
            x = x + self.attention(block, self.norm(block.norm1, x))
            x = x + self.mixture(block.mixture, self.norm(block.norm2, x))
        logits = self.lm_head(self.norm(self.ln, x))
        return torch.tanh(logits / 30.0) * 30.0


EDITS = (
    Edit(
        name="experts by einsum",
        old="        return (torch.stack(every, -2) * weights[..., None]).sum(-2)",
        new='        return torch.einsum("bled,ble->bld", torch.stack(every, -2), weights)',
        is_same=True,
    ),
    Edit(
        name="gates of all experts",
        old="        values, chosen = torch.topk(logits, BEST, dim=-1)\n"
        "        gates = torch.softmax(values, dim=-1)\n",
        new="        every_gate = torch.softmax(logits, dim=-1)\n"
        "        gates, chosen = torch.topk(every_gate, BEST, dim=-1)\n"
        "        gates = gates / gates.sum(dim=-1, keepdim=True)\n",
        is_same=True,
    ),
    Edit(
        name="gates not normalized",
        old="        values, chosen = torch.topk(logits, BEST, dim=-1)\n"
        "        gates = torch.softmax(values, dim=-1)\n",
        new="        gates, chosen = torch.topk(torch.softmax(logits, -1), BEST, dim=-1)\n",
        at=("torch.zeros_like(logits).scatter",),
        missing="best = best /",
    ),
    Edit(
        name="one expert",
        old="torch.topk(logits, BEST, dim=-1)",
        new="torch.topk(logits, 1, dim=-1)",
        at=("torch.topk(logits, 1",),
    ),
    Edit(
        name="slopes from zero",
        old="start ** (number + 1) for number",
        new="start ** (number + 0) for number",
        at=("slopes = torch.tensor", "bias = slopes"),
    ),
    Edit(
        name="distance not signed",
        old="distance = (steps.view(1, -1) - steps.view(-1, 1)).tril()",
        new="distance = (steps.view(-1, 1) - steps.view(1, -1)).tril()",
    ),
    Edit(
        name="queries not normed",
        old="q, k = self.norm(block.norm_q, q), self.norm(block.norm_k, k)",
        new="k = self.norm(block.norm_k, k)",
        at=("q.transpose(1, 2)", "F.scaled_dot"),
        missing="self.norm_q(q)",
    ),
    Edit(
        name="norms of queries and keys swapped",
        old="q, k = self.norm(block.norm_q, q), self.norm(block.norm_k, k)",
        new="q, k = self.norm(block.norm_k, q), self.norm(block.norm_k, k)",
        at=("* layer.weight",),
    ),
    Edit(
        name="embedding not scaled",
        old="        x = x * WIDTH**0.5\n",
        new="",
        at=("mean = (x * x)", "x * (mean"),
        missing="self.words(ids) * WIDTH",
    ),
    Edit(
        name="soft cap of 50",
        old="torch.tanh(logits / 30.0) * 30.0",
        new="torch.tanh(logits / 50.0) * 50.0",
        at=("logits / 50.0",),
    ),
    Edit(
        name="w1 and w3 swapped",
        old="gate = F.silu(expert.w1(x))\n            every.append(expert.w2(expert.w3(x) * gate))",
        new="gate = F.silu(expert.w3(x))\n            every.append(expert.w2(expert.w1(x) * gate))",
        at=("F.silu(expert.w3(x))",),
    ),
    Edit(
        name="epsilon outside of the root",
        old="return x * (mean + 1e-5).rsqrt() * layer.weight",
        new="return x / (mean.sqrt() + 1e-2) * layer.weight",
        at=("mean.sqrt()",),
    ),
    Edit(
        name="router reads what is not normed",
        old="logits = part.router(x)",
        new="logits = part.router(x.roll(1, 1))",
        at=("part.router(x.roll",),
    ),
)
