"""Losses that diverge, spike or never fall; and ranks that do not agree."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis import data
from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.models import GPT, VAE, ConvNet, ResNet, SequenceLSTM, TwoTower, mlp
from benchmarks.diagnosis.ranks import average_gradients, run_ranks

_FAMILY = "dynamics"


def _next_token(logits: Tensor, tokens: Tensor) -> Any:
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


@planted("loss-diverges", family=_FAMILY)
def loss_with_the_wrong_sign(watch: Watch) -> None:
    """A gain is minimized instead of maximized: the loss falls without end below zero."""
    model = mlp(16, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, y in data.clusters(80):
            loss = -functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("loss-diverges", at=("", "log_variance"), family=_FAMILY, on="VAE")
def divergence_with_the_wrong_sign(watch: Watch) -> None:
    """The KL term is subtracted: the mean runs away, and the loss to minus infinity."""
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for x, _ in data.clusters(80):
        output, mean, log_variance = model(x)
        divergence = (mean**2 + log_variance.exp() - log_variance - 1).sum(-1).mean() / 2
        loss = functional.mse_loss(output, x) - divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("loss-diverges", "lr-too-high", family=_FAMILY, on="LSTM")
def learning_rate_that_grows(watch: Watch) -> None:
    """ExponentialLR with gamma 1.12 raises lr every step: after step 40 the loss climbs."""
    model = SequenceLSTM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=1.12)
    with watch(model) as watcher:
        for x, y in data.sentences(80):
            optimizer.zero_grad()
            loss = _next_token(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            watcher.log("loss", loss)


@planted("loss-diverges", "lr-too-high", family=_FAMILY, on="two-tower")
def scores_without_a_bound(watch: Watch) -> None:
    """The margin loss lacks its hinge: distances grow, and the loss falls, without end."""
    model = TwoTower()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for left, right in data.pairs(80):
        a, b = model(left, right)
        near = (a - b).pow(2).sum(-1)
        far = (a - b.roll(1, 0)).pow(2).sum(-1)
        loss = (near - far + 1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("loss-spike", "inputs-not-normalized", family=_FAMILY)
def one_batch_of_huge_values(watch: Watch) -> None:
    """The batch of step 50 is 300 times too large; the loss jumps and slowly comes back."""
    model = mlp(8, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.curve(100)):
            batch = 300 * x if step == 50 else x
            optimizer.zero_grad()
            loss = functional.smooth_l1_loss(model(batch), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            watcher.log("loss", loss)


@planted("loss-spike", family=_FAMILY, on="CNN")
def one_batch_with_wrong_labels(watch: Watch) -> None:
    """At step 60 the labels of one batch are shifted by one: the loss jumps once."""
    model = ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for step, (x, y) in enumerate(data.images(100)):
        labels = (y + 1) % 4 if step == 60 else y
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("loss-spike", family=_FAMILY, on="GPT")
def one_batch_of_noise_tokens(watch: Watch) -> None:
    """A corrupt shard at steps 60 and 61 has random labels; the loss jumps and comes back."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.sentences(100, batch=16)):
            labels = torch.randint_like(y, 16) if step in (60, 61) else y
            loss = _next_token(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("loss-plateau", family=_FAMILY)
def labels_shuffled_in_every_batch(watch: Watch) -> None:
    """Inputs are shuffled without their labels: nothing is to be learned, and nothing is."""
    model = mlp(16, 32, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = ((x[torch.randperm(len(x))], y) for x, y in data.clusters(120, batch=64))
    fit(watch, model, optimizer, batches)


@planted("loss-plateau", family=_FAMILY, on="ResNet")
def targets_of_another_dataset(watch: Watch) -> None:
    """Images come with labels drawn independently of them: the loss stays at log(4)."""
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    batches = ((x, torch.randint_like(y, 4)) for x, y in data.images(100, batch=32))
    fit(watch, model, optimizer, batches)


@planted("loss-plateau", family=_FAMILY, on="GPT")
def next_tokens_of_another_sentence(watch: Watch) -> None:
    """Targets belong to the sentence before in the batch: gradients are fine, the loss is not."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = ((x, y[torch.randperm(len(y))]) for x, y in data.sentences(100, batch=16))
    fit(watch, model, optimizer, batches, _next_token)


class _ThrottledReLU(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.05)
        return super().forward(x)


def _rank(rank: int, watch: Watch, mistake: str) -> None:
    """One of two processes of a training whose gradients are averaged by hand."""
    torch.manual_seed(rank if mistake == "seed" else 0)
    is_slow = mistake == "slow" and rank == 1
    model = mlp(16, 32, 4, activation=_ThrottledReLU if is_slow else nn.ReLU)
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watcher = watch(model, rank=rank)
    for step, (x, y) in enumerate(data.clusters(40, rank=rank)):
        if mistake == "nan" and rank == 1 and step == 20:
            x[0, 0] = float("nan")
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        if mistake != "nan":
            average_gradients(model)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("ranks-differ", at=("", "0", "2"), family="ranks", on="two ranks")
def ranks_with_different_starts(watch: Watch) -> None:
    """Each rank has its own seed, and weights are never broadcast: two models are trained."""
    run_ranks(_rank, watch, "seed")


@planted("nan", "ranks-differ", at=("", "0"), family="ranks", on="two ranks")
def one_rank_with_nan(watch: Watch) -> None:
    """Rank 1 reads a NaN at step 20; gradients are not averaged, so rank 0 stays well."""
    run_ranks(_rank, watch, "nan")


@planted("straggler", family="ranks", on="two ranks")
def one_rank_that_is_slow(watch: Watch) -> None:
    """The card of rank 1 is throttled: its forward takes 50 ms longer, and rank 0 waits for it."""
    run_ranks(_rank, watch, "slow")


@planted("output-logit-growth", "loss-diverges", at=("", "4"), family=_FAMILY)
def confidence_is_rewarded(watch: Watch) -> None:
    """A term of the loss rewards large logits: they grow without end."""
    model = mlp(16, 32, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for x, y in data.clusters(80):
            logits = model(x)
            loss = functional.cross_entropy(logits, y) - 0.05 * logits.std()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("update-growth", "loss-diverges", "lr-too-high", at=("",), family=_FAMILY)
def weight_of_the_loss_grows_at_each_step(watch: Watch) -> None:
    """The loss is multiplied by a factor that grows by a tenth at each step."""
    model = mlp(16, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watcher = watch(model)
    for step, (x, y) in enumerate(data.clusters(80)):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        (1.1**step * loss).backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()
