"""Finite datasets and the loops of the third hold-out, as a user of a DataLoader writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.diagnosis.cases import Watch, functional
from benchmarks.diagnosis.holdout.tasks import draws


def digits(count: int = 256, size: int = 8, classes: int = 5) -> TensorDataset:
    """Small pictures of a few shapes, with noise."""
    draw = draws(301)
    shapes = torch.randn(classes, 1, size, size, generator=draw)
    labels = torch.randint(classes, (count,), generator=draw)
    noise = torch.randn(count, 1, size, size, generator=draw)
    return TensorDataset(shapes[labels] + 0.8 * noise, labels)


def records(count: int = 256, columns: int = 10, classes: int = 3) -> TensorDataset:
    """Rows of a table, and the class of each."""
    draw = draws(302)
    weight = torch.randn(columns, classes, generator=draw)
    x = torch.randn(count, columns, generator=draw)
    return TensorDataset(x, (x @ weight + 0.3 * torch.randn(count, classes)).argmax(-1))


def prices(count: int = 256, columns: int = 10) -> TensorDataset:
    """Rows of a table, and a value of shape (N, 1) around 0 for each."""
    draw = draws(303)
    weight = torch.randn(columns, 1, generator=draw) / columns**0.5
    x = torch.randn(count, columns, generator=draw)
    return TensorDataset(x, x @ weight + (x[:, :1] * x[:, 1:2]).tanh())


def text(count: int = 192, length: int = 10, vocabulary: int = 14) -> TensorDataset:
    """Sequences in which each token follows from the one before, and the next tokens."""
    draw = draws(304)
    follow = torch.randperm(vocabulary, generator=draw)
    tokens = torch.randint(vocabulary, (count, length + 1), generator=draw)
    for place in range(1, length + 1):
        is_random = torch.rand(count, generator=draw) < 0.1
        tokens[:, place] = torch.where(is_random, tokens[:, place], follow[tokens[:, place - 1]])
    return TensorDataset(tokens[:, :-1], tokens[:, 1:])


def batches(data: TensorDataset, epochs: int, batch: int = 32) -> Iterator[Any]:
    """Shuffled batches of several epochs."""
    loader = DataLoader(data, batch, shuffle=True)
    for _ in range(epochs):
        yield from loader


def next_token(logits: Tensor, targets: Tensor) -> Any:
    """Cross entropy over all positions."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(
    watch: Watch,
    model: nn.Module,
    optimizer: Any,
    data: TensorDataset,
    loss_function: Callable[..., Any] = functional.cross_entropy,
    *,
    epochs: int = 8,
    batch: int = 32,
    scheduler: Any = None,
    after_backward: Callable[[], object] | None = None,
) -> None:
    """Epochs over a dataset; a scheduler is stepped after each batch."""
    with watch(model) as watcher:
        for x, y in batches(data, epochs, batch):
            optimizer.zero_grad()
            loss = loss_function(model(x), y)
            loss.backward()
            if after_backward is not None:
                after_backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            watcher.log("loss", loss.item())
