"""Small trainings for the pictures of overviews: a healthy one, and three with a mistake."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

import torchglass as tg

_CLASSES, _WIDTH, _BATCH = 10, 32, 64


class Block(nn.Module):
    """A residual block; `plain` blocks have no way around their activation."""

    def __init__(self, width: int, activation: nn.Module, *, plain: bool) -> None:
        super().__init__()
        self.norm = nn.Identity() if plain else nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.activation = activation
        self.down = nn.Linear(2 * width, width)
        self.plain = plain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.down(self.activation(self.up(self.norm(x))))
        return inner if self.plain else x + inner


class Standardize(nn.Module):
    """Divides by the standard deviation of each row: 0 for a row of equal values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


class Classifier(nn.Module):
    """Blocks between an embedding and a head."""

    def __init__(
        self, make_activation: Callable[[], nn.Module], blocks: int = 5, *, plain: bool = False
    ) -> None:
        super().__init__()
        self.scale = Standardize()
        self.embed = nn.Linear(16, _WIDTH)
        self.blocks = nn.ModuleList(
            Block(_WIDTH, make_activation(), plain=plain) for _ in range(blocks)
        )
        self.head = nn.Linear(_WIDTH, _CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(self.scale(x))
        for block in self.blocks:
            x = block(x)
        scores: torch.Tensor = self.head(x)
        return scores


def trainings(folder: Path) -> Iterator[Path]:
    """The run files of all trainings: healthy, a NaN, a vanishing gradient, one that stopped."""
    yield _train(folder / "healthy.glass", Classifier(nn.GELU), rate=1e-3, steps=174)
    yield _train(folder / "nan.glass", Classifier(nn.GELU), rate=1e-3, constant_at=70)
    deep = Classifier(nn.Sigmoid, 6, plain=True)
    yield _train(folder / "vanishing.glass", deep, rate=1e-2, steps=150)
    with contextlib.suppress(RuntimeError):
        _train(folder / "stopped.glass", Classifier(nn.ReLU), rate=3.0, fails_at=40)
    yield folder / "stopped.glass"


def _train(
    file: Path,
    model: nn.Module,
    *,
    rate: float,
    steps: int = 120,
    constant_at: int = -1,
    fails_at: int = -1,
) -> Path:
    """Learn the largest of ten projections; `constant_at` has a sample whose values are equal."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(16, _CLASSES, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    with tg.watch(model, save=file, verbose=False) as watcher:
        for step in range(steps):
            inputs = torch.randn(_BATCH, 16, generator=generator)
            if step == constant_at:
                inputs[0] = 0.5
            if step == fails_at:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
            loss = nn.functional.cross_entropy(model(inputs), (inputs @ truth).argmax(1))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            watcher.log("loss", loss)
    return file
