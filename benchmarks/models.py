"""The models that are measured, written out so that nothing but torch is needed.

A subject is named by data, which can be handed to another interpreter: `["mlp", {"layers": 8}]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from benchmarks.rows import Effort

Spec = tuple[str, dict[str, int]]
"""The name of a subject, and its sizes where they are not the usual ones."""


class Scale(NamedTuple):
    """A subject as it is measured, and a small one for when the numbers do not count."""

    full: Spec
    small: Spec

    def at(self, effort: Effort) -> Spec:
        """The one that an effort asks for."""
        return self.small if effort.quick else self.full


class Subject(NamedTuple):
    """A model, and what to call it with."""

    model: nn.Module
    inputs: tuple[Any, ...]

    def forward(self) -> Any:
        """Run the model once."""
        return self.model(*self.inputs)


def build(spec: Spec) -> Subject:
    """The subject of a name, ready for inference, with the same numbers every time."""
    name, sizes = spec
    torch.manual_seed(0)
    return _BUILDERS[name](**sizes)


class ResidualBlock(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or into != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.downsample(x)
        output: torch.Tensor = self.relu(y)
        return output


class ResNet18(nn.Module):
    """The network of He et al., 2015."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layers = nn.Sequential(
            *(
                nn.Sequential(ResidualBlock(into, out, stride), ResidualBlock(out, out, 1))
                for into, out, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
            )
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        output: torch.Tensor = self.fc(self.avgpool(self.layers(x)).flatten(1))
        return output


class Attention(nn.Module):
    """Causal attention, each step an operation of its own."""

    mask: torch.Tensor

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).tril())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        mixed = functional.softmax(scores, dim=-1) @ v
        output: torch.Tensor = self.out(mixed.transpose(1, 2).contiguous().view(x.shape))
        return output


class Block(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, length)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.ln1(x))
        output: torch.Tensor = x + self.mlp(self.ln2(x))
        return output


class GPT2(nn.Module):
    """GPT-2 with its head tied to its embedding."""

    def __init__(self, layers: int, width: int, heads: int, words: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, length) for _ in range(layers))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        output: torch.Tensor = self.head(self.ln(x))
        return output


class Recurrent(nn.Module):
    """One LSTM cell, step by step through time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(x.shape[1:])
        outputs = []
        for step in range(x.shape[0]):
            h, c = self.cell(x[step], (h, c))
            outputs.append(h)
        return torch.stack(outputs)


class Rows(nn.Module):
    """A tensor made once and filled row by row, as caches and simulations do."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros(self.count, x.shape[0])
        for number in range(self.count):
            rows[number].add_(x)
        return rows


def _resnet18(image: int = 224) -> Subject:
    return Subject(ResNet18().eval(), (torch.randn(1, 3, image, image),))


def _gpt2(
    layers: int = 12, width: int = 768, heads: int = 12, words: int = 50257, length: int = 128
) -> Subject:
    model = GPT2(layers, width, heads, words, length)
    return Subject(model, (torch.randint(0, words, (1, length)),))


def _lstm(steps: int = 200, width: int = 64) -> Subject:
    return Subject(Recurrent(width), (torch.randn(steps, 4, width),))


def _mlp(layers: int = 1000, width: int = 64) -> Subject:
    pairs = ((nn.Linear(width, width), nn.ReLU()) for _ in range(layers))
    model = nn.Sequential(*(module for pair in pairs for module in pair))
    return Subject(model, (torch.randn(8, width),))


def _rows(count: int, width: int = 4) -> Subject:
    return Subject(Rows(count), (torch.randn(width),))


def _tree(modules: int, children: int = 10, width: int = 4) -> Subject:
    """Sequentials in Sequentials, with Linears in the innermost."""

    def grown(size: int) -> nn.Module:
        if size == 1:
            return nn.Linear(width, width)
        share, rest = divmod(size - 1, children)
        sizes = (share + (place < rest) for place in range(children))
        return nn.Sequential(*(grown(size) for size in sizes if size))

    return Subject(grown(modules), (torch.randn(1, width),))


def _nest(depth: int, width: int = 4) -> Subject:
    """A Linear in a Sequential in a Sequential …"""
    model: nn.Module = nn.Linear(width, width)
    for _ in range(depth):
        model = nn.Sequential(model)
    return Subject(model, (torch.randn(1, width),))


_BUILDERS: dict[str, Callable[..., Subject]] = {
    "resnet18": _resnet18,
    "gpt2": _gpt2,
    "lstm": _lstm,
    "mlp": _mlp,
    "rows": _rows,
    "tree": _tree,
    "nest": _nest,
}

RESNET18 = Scale(("resnet18", {}), ("resnet18", {"image": 32}))
GPT_2 = Scale(
    ("gpt2", {}), ("gpt2", {"layers": 2, "width": 16, "heads": 2, "words": 50, "length": 8})
)
LSTM = Scale(("lstm", {}), ("lstm", {"steps": 3}))
MLP = Scale(("mlp", {}), ("mlp", {"layers": 3}))
MANY = Scale(("tree", {"modules": 20_000}), ("tree", {"modules": 30}))
VERY_MANY = Scale(("tree", {"modules": 100_000}), ("tree", {"modules": 30}))
DEEP = Scale(("nest", {"depth": 1000}), ("nest", {"depth": 5}))
