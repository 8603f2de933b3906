"""Data for the hold-out cases, and loops that several of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, functional


def draws(seed: int) -> torch.Generator:
    """A generator that another seed of the training changes as well."""
    return torch.Generator().manual_seed(1_000_003 * torch.initial_seed() + seed)


def blobs(steps: int, batch: int = 16, seed: int = 101) -> Iterator[tuple[Tensor, Tensor]]:
    """Images with a bright square, and the mask of the square."""
    draw = draws(seed)
    for _ in range(steps):
        x = 0.5 * torch.randn(batch, 1, 16, 16, generator=draw)
        y = torch.zeros(batch, 1, 16, 16)
        for i in range(batch):
            row, column = torch.randint(0, 10, (2,), generator=draw).tolist()
            y[i, :, row : row + 5, column : column + 5] = 1
        yield x + 1.5 * y - 0.15, y


def graphs(steps: int, nodes: int = 40, seed: int = 102) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Features of nodes, edges, and classes that depend on the neighbors."""
    draw = draws(seed)
    weight = torch.randn(8, 3, generator=draw)
    for _ in range(steps):
        x = torch.randn(nodes, 8, generator=draw)
        edges = torch.randint(nodes, (2, 3 * nodes), generator=draw)
        mixed = x.index_add(0, edges[1], 0.5 * x[edges[0]])
        yield x, edges, (mixed @ weight).argmax(-1)


def clicks(steps: int, batch: int = 64, seed: int = 103) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Dense features, categories with a long tail, and whether it was clicked."""
    draw = draws(seed)
    taste = [torch.randn(count, generator=draw) for count in (50, 20, 200)]
    for _ in range(steps):
        dense = torch.randn(batch, 5, generator=draw)
        columns = [(torch.rand(batch, generator=draw) ** 3 * len(one)).long() for one in taste]
        score = dense[:, 0] + sum(one[column] for one, column in zip(taste, columns, strict=True))
        clicked = torch.rand(batch, generator=draw) < torch.sigmoid(2 * score)
        yield dense, torch.stack(columns, 1), clicked.float()


def reversals(steps: int, batch: int = 24, length: int = 5, seed: int = 104) -> Any:
    """Tokens, and the same tokens with each one replaced by a fixed partner, reversed."""
    draw = draws(seed)
    partner = torch.randperm(11, generator=draw) + 1
    for _ in range(steps):
        source = torch.randint(1, 12, (batch, length), generator=draw)
        yield source, partner[source - 1].flip(1)


def reviews(steps: int, batch: int = 16, length: int = 10, seed: int = 105) -> Any:
    """Padded tokens of different lengths, and the class that most of them vote for."""
    draw = draws(seed)
    for _ in range(steps):
        label = torch.randint(4, (batch,), generator=draw)
        own = 1 + 3 * label[:, None] + torch.randint(3, (batch, length), generator=draw)
        other = torch.randint(1, 16, (batch, length), generator=draw)
        tokens = torch.where(torch.rand(batch, length, generator=draw) < 0.6, own, other)
        lengths = torch.randint(4, length + 1, (batch, 1), generator=draw)
        yield tokens.masked_fill(torch.arange(length) >= lengths, 0), label


def bandit(steps: int, batch: int = 64, seed: int = 106) -> Iterator[tuple[Tensor, Tensor]]:
    """States, and the reward of each action in them."""
    draw = draws(seed)
    weight = torch.randn(6, 3, generator=draw)
    for _ in range(steps):
        state = torch.randn(batch, 6, generator=draw)
        yield state, (state @ weight > 0).float() + 0.1 * torch.randn(batch, 3, generator=draw)


def table(
    steps: int, batch: int = 32, features: int = 8, seed: int = 107
) -> Iterator[tuple[Tensor, Tensor]]:
    """Columns of unit scale, and a target of shape (N) around 0."""
    draw = draws(seed)
    weight = torch.randn(features, generator=draw) / features**0.5
    for _ in range(steps):
        x = torch.randn(batch, features, generator=draw)
        noise = 0.1 * torch.randn(batch, generator=draw)
        yield x, 1.5 * (x @ weight) + (x[:, 0] * x[:, 1]) + noise


def tags(steps: int, batch: int = 32, seed: int = 108) -> Iterator[tuple[Tensor, Tensor]]:
    """Features, and five independent labels."""
    draw = draws(seed)
    weight = torch.randn(12, 5, generator=draw)
    for _ in range(steps):
        x = torch.randn(batch, 12, generator=draw)
        yield x, (x @ weight > 0).float()


def next_token(logits: Any, targets: Tensor) -> Any:
    """Cross entropy over all positions."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def in_epochs(
    watch: Watch,
    model: nn.Module,
    optimizer: Any,
    batches: Callable[[int], Any],
    loss_function: Callable[[Any, Any], Any],
    epochs: int = 4,
    per_epoch: int = 20,
) -> None:
    """Epochs with an evaluation after each, gradients cleared at the end of a step."""
    watcher = watch(model)
    validation = list(batches(3))
    for _ in range(epochs):
        model.train()
        for x, y in batches(per_epoch):
            loss = loss_function(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            watcher.log("loss", loss)
        model.eval()
        with torch.no_grad():
            scores = [loss_function(model(x), y) for x, y in validation]
        watcher.log("validation", torch.stack(scores).mean())
    watcher.close()


def unlogged(
    watch: Watch,
    model: nn.Module,
    optimizer: Any,
    batches: Any,
    loss_function: Callable[..., Any],
) -> None:
    """A loop that logs nothing to the watcher."""
    watcher = watch(model)
    for x, y in batches:
        loss = loss_function(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        watch.losses.append(float(loss))
    watcher.close()
