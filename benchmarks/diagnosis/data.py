"""Endless data made from a seed: each batch is new, and all batches ask for the same function."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

Pairs = Iterator[tuple[Tensor, Tensor]]


def _generator(seed: int) -> torch.Generator:
    # Another seed of the training gives other data as well.
    return torch.Generator().manual_seed(seed + 10_000 * torch.initial_seed())


def clusters(
    steps: int, batch: int = 32, features: int = 16, classes: int = 4, rank: int = 0
) -> Pairs:
    """Points around the centres of classes, of unit scale; other points on each rank."""
    draw = _generator(1)
    centres = torch.randn(classes, features, generator=draw)
    if rank:
        draw = _generator(1000 + rank)
    for _ in range(steps):
        y = torch.randint(classes, (batch,), generator=draw)
        x = centres[y] + 0.5 * torch.randn(batch, features, generator=draw)
        yield x, y


def curve(steps: int, batch: int = 32, features: int = 8, outputs: int = 1, seed: int = 2) -> Pairs:
    """A smooth function of normal features, with values around zero."""
    draw = _generator(seed)
    first = torch.randn(features, 16, generator=draw) / features**0.5
    second = torch.randn(16, outputs, generator=draw) / 4
    for _ in range(steps):
        x = torch.randn(batch, features, generator=draw)
        y = torch.sin(x @ first) @ second
        yield x, 2 * y + 0.02 * torch.randn(batch, outputs, generator=draw)


def images(
    steps: int, batch: int = 16, channels: int = 1, size: int = 8, classes: int = 4, seed: int = 3
) -> Pairs:
    """A pattern for each class, with noise, of zero mean and unit scale."""
    draw = _generator(seed)
    patterns = torch.randn(classes, channels, size, size, generator=draw)
    for _ in range(steps):
        y = torch.randint(classes, (batch,), generator=draw)
        noise = torch.randn(batch, channels, size, size, generator=draw)
        yield 0.8 * patterns[y] + 0.6 * noise, y


def sentences(
    steps: int, batch: int = 8, length: int = 12, vocabulary: int = 16, seed: int = 4
) -> Pairs:
    """Tokens that follow from the last or the one before it, in turns; and the next tokens."""
    draw = _generator(seed)
    follow = torch.randperm(vocabulary, generator=draw)
    for _ in range(steps):
        tokens = torch.randint(vocabulary, (batch, length + 1), generator=draw)
        for place in range(2, length + 1):
            tokens[:, place] = follow[tokens[:, place - 1 - place % 2]]
        yield tokens[:, :-1], tokens[:, 1:]


def waves(steps: int, batch: int = 16, length: int = 20, seed: int = 5) -> Pairs:
    """Two channels of a wave, and the value that comes next."""
    draw = _generator(seed)
    for _ in range(steps):
        phase = 6.28 * torch.rand(batch, 1, generator=draw)
        times = 0.4 * torch.arange(length + 1) + phase
        x = torch.stack([times.sin(), times.cos()], -1)
        x = x + 0.05 * torch.randn(x.shape, generator=draw)
        yield x[:, :-1], times[:, -1:].sin()


def pairs(steps: int, batch: int = 32, features: int = 16, seed: int = 6) -> Pairs:
    """Two views of the same hidden cause."""
    draw = _generator(seed)
    left = torch.randn(4, features, generator=draw)
    right = torch.randn(4, features, generator=draw)
    for _ in range(steps):
        cause = torch.randn(batch, 4, generator=draw)
        noise = 0.1 * torch.randn(2, batch, features, generator=draw)
        yield cause @ left / 2 + noise[0], cause @ right / 2 + noise[1]


def ring(steps: int, batch: int = 32, seed: int = 7) -> Iterator[Tensor]:
    """Points on a circle, for generators."""
    draw = _generator(seed)
    for _ in range(steps):
        angle = 6.28 * torch.rand(batch, generator=draw)
        yield torch.stack([angle.cos(), angle.sin()], -1)
