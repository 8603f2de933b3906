"""Trainings whose loss diverges, jumps or never falls, and trainings of two ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.data import clusters, images, ring, sentences
from benchmarks.diagnosis.holdout.models import (
    ClsViT,
    GRUTagger,
    Llama,
    PreActNet,
    ResidualMLP,
    Seq2Seq,
)
from benchmarks.diagnosis.holdout.tasks import draws, next_token, reversals, reviews, table
from benchmarks.diagnosis.ranks import average_gradients, run_ranks

FAMILY = "dynamics"


@planted("loss-diverges", at=("",), family=FAMILY, on="GRU")
def gradient_ascent(watch: Watch) -> None:
    """`maximize=True` was copied from a reinforcement learning script."""
    model = GRUTagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, maximize=True)
    fit(watch, model, optimizer, reviews(80))


@planted("loss-diverges", at=("",), family=FAMILY, on="ViT")
def updates_with_the_wrong_sign(watch: Watch) -> None:
    """Hand-written SGD adds the gradient instead of subtracting it."""
    model = ClsViT()
    watcher = watch(model)
    for x, y in images(60):
        model.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(p.grad, alpha=0.02)  # type: ignore[arg-type]
        watcher.log("loss", loss)
    watcher.close()


@planted("loss-diverges", at=("", "d", "d.*"), family=FAMILY, on="GAN")
def critic_without_a_constraint(watch: Watch) -> None:
    """A Wasserstein critic without clipping or penalty: its loss falls without end."""
    model = nn.ModuleDict(
        {
            "g": nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)),
            "d": nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 1)),
        }
    )
    opt_g = torch.optim.RMSprop(model["g"].parameters(), lr=1e-5)
    opt_d = torch.optim.RMSprop(model["d"].parameters(), lr=2e-2)
    watcher = watch(model)
    for real in ring(80):
        fake = model["g"](torch.randn(32, 4)) + 2
        loss = model["d"](fake.detach()).mean() - model["d"](real).mean()
        opt_d.zero_grad()
        loss.backward()
        opt_d.step()
        opt_g.zero_grad()
        (-model["d"](fake).mean()).backward()
        opt_g.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("loss-spike", at=("", "inp"), family=FAMILY, on="residual MLP", since=47)
def one_batch_with_targets_in_another_unit(watch: Watch) -> None:
    """The targets of one batch are in millimetres instead of metres."""
    model = ResidualMLP(8, out=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    watcher = watch(model)
    for step, (x, y) in enumerate(table(90)):
        unit = 1000 if step == 47 else 1
        loss = functional.mse_loss(model(x).squeeze(-1), unit * y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("loss-spike", at=("", "conv"), family=FAMILY, on="CNN", since=60)
def one_batch_is_not_normalized(watch: Watch) -> None:
    """One batch skips the normalization and is 60 times as large."""
    model = PreActNet(norm=lambda width: nn.Identity())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    watcher = watch(model)
    for step, (x, y) in enumerate(images(90)):
        scale = 60 if step == 60 else 1
        loss = functional.cross_entropy(model(scale * x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("loss-plateau", at=("",), family=FAMILY, on="CNN")
def labels_are_shuffled(watch: Watch) -> None:
    """Images are sorted by another key than their labels: nothing can be learned."""
    model = PreActNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, ((x, y[torch.randperm(len(y))]) for x, y in images(100, batch=32)))


@planted("loss-plateau", at=("",), family=FAMILY, on="seq2seq")
def targets_of_the_previous_batch(watch: Watch) -> None:
    """Sources and targets are off by one batch."""
    model = Seq2Seq()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    watcher = watch(model)
    previous = next(iter(reversals(1)))[1]
    for source, target in reversals(100):
        loss = functional.cross_entropy(model(source, previous).flatten(0, 1), previous.flatten())
        previous = target
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("loss-plateau", at=("",), family=FAMILY, on="GPT")
def tokens_without_any_order(watch: Watch) -> None:
    """The data loader shuffles tokens instead of sentences: nothing predicts the next one."""
    model = Llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    draw = draws(9)
    watcher = watch(model)
    for tokens, _ in sentences(100):
        mixed = tokens.flatten()[torch.randperm(tokens.numel(), generator=draw)].view_as(tokens)
        loss = next_token(model(mixed[:, :-1]), mixed[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


def _rank_with_its_own_weights(rank: int, watch: Watch) -> None:
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watcher = watch(model, rank=rank)
    for x, y in clusters(40, rank=rank):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        average_gradients(model)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("ranks-differ", at=("", "[0-9]"), family="ranks")
def ranks_begin_with_different_weights(watch: Watch) -> None:
    """Gradients are averaged, and each rank starts from its own seed."""
    run_ranks(_rank_with_its_own_weights, watch)


def _rank_without_averaging(rank: int, watch: Watch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model, rank=rank)
    for x, y in clusters(40, rank=rank):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("ranks-differ", at=("", "[0-9]"), family="ranks")
def gradients_are_not_averaged(watch: Watch) -> None:
    """The ranks start equal, and each one follows its own gradients."""
    run_ranks(_rank_without_averaging, watch)
