"""The bugs of TrainCheck's public evaluation (arXiv 2506.14813), ported small to the CPU.

Only the facts of each bug are taken over: its cause, and what of it can be seen in a training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn

from benchmarks.diagnosis import data
from benchmarks.diagnosis.cases import Train, Watch, fit, functional, planted
from benchmarks.diagnosis.models import Attention, ConvNet, ResNet, mlp, plain_convnet
from benchmarks.diagnosis.ranks import average_gradients, run_ranks

NOT_PORTED = {
    "deepspeed-5794": "the training hangs in an all-to-all, so no step is ever recorded",
    "transformers-17877": "weights are initialized twice before the training: only time is lost",
    "transformers-23723": "a length limit of text generation is ignored: there is no training",
}
"""Bugs of the evaluation that leave no trace in a training on one machine, and why."""


def _bug(
    name: str, *kinds: str, at: tuple[str, ...] = ("",), on: str = "MLP", since: int = 0
) -> Callable[[Train], Train]:
    return planted(
        *kinds, at=at, family="traincheck", on=on, group="traincheck", name=name, since=since
    )


def _lossy_rank(rank: int, watch: Watch) -> None:
    torch.manual_seed(0)
    model = mlp(16, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watcher = watch(model, rank=rank)
    for step, (x, y) in enumerate(data.clusters(40, rank=rank)):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        average_gradients(model)
        if rank == 1 and step % 10 == 9:
            for parameter in model.parameters():
                cast(Tensor, parameter.grad).zero_()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@_bug("pytorch-84803", "ranks-differ", at=("", "0", "2"), on="two ranks", since=10)
def data_lost_in_an_all_reduce(watch: Watch) -> None:
    """Faulty peer-to-peer links: what rank 1 receives at some steps is zeros, and ranks part."""
    run_ranks(_lossy_rank, watch)


def _zeroed_rank(rank: int, watch: Watch) -> None:
    torch.manual_seed(0)
    model = mlp(16, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watcher = watch(model, rank=rank)
    for step, (x, y) in enumerate(data.clusters(40, rank=rank)):
        received = torch.zeros_like(x) if rank == 1 and step >= 10 else x
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(received), y)
        loss.backward()
        average_gradients(model)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@_bug("pytorch-96600", "zero-input", "constant-input", at=("", "0"), on="two ranks", since=10)
def data_lost_on_the_way_to_a_device(watch: Watch) -> None:
    """The same faulty links lose the batch itself: rank 1 computes with zeros from step 10 on."""
    run_ranks(_zeroed_rank, watch)


class _TwoStages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        self.calls += 1
        # The copy to the device of the second stage loses its data.
        received = hidden * 0 if self.calls > 10 else hidden
        return cast(Tensor, self.second(received))


@_bug("baichuan2-86", "zero-input", "constant-input", "constant-output", "no-gradient",
      at=("", "second", "second.0", "first", "first.0"), since=10)  # fmt: skip
def data_lost_between_two_stages(watch: Watch) -> None:
    """A model on two cards: from step 10 on the second stage receives zeros."""
    model = _TwoStages()
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-2), data.clusters(40))


class _Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.norm(self.linear(x))))


def _clipping_rank(rank: int, watch: Watch) -> None:
    torch.manual_seed(0)
    model = _Normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    others = [p for name, p in model.named_parameters() if "norm" not in name]
    watcher = watch(model, rank=rank)
    for x, y in data.clusters(40, rank=rank):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        average_gradients(model)
        clipped = model.parameters() if rank == 0 else others
        nn.utils.clip_grad_norm_(clipped, 0.05)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@_bug("deepspeed-1801", "ranks-differ", at=("", "norm"), on="two ranks")
def norms_clipped_on_one_rank_alone(watch: Watch) -> None:
    """Replicated layer norms are clipped on rank 0 alone: their weights part, the loss is fine."""
    run_ranks(_clipping_rank, watch)


class _Primitive(nn.Linear):
    """A Linear that does not go through torch's dispatch of autocast."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return cast(Tensor, functional.linear(x.float(), self.weight, self.bias))


@_bug("lightning-thunder-725", "dtype-mix", at=("", "2"))
def layer_that_autocast_does_not_reach(watch: Watch) -> None:
    """Inside an autocast region to bfloat16 one Linear still computes in float32."""
    model = nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), _Primitive(64, 64), nn.ReLU(), nn.Linear(64, 4)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model) as watcher:
        for x, y in data.clusters(40):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class _Staged(nn.Module):
    def __init__(self, frozen_stages: int) -> None:
        super().__init__()
        self.frozen_stages = frozen_stages
        self.stages = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(3))
        self.head = nn.Linear(16, 4)

    def train(self, mode: bool = True) -> _Staged:
        for stage in self.stages[: self.frozen_stages]:
            stage.requires_grad_(False)
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return cast(Tensor, self.head(x))


@_bug("mmpretrain-702", "not-frozen", at=("", "stages", "stages.0", "stages.1"))
def stages_that_are_never_frozen(watch: Watch) -> None:
    """Stages are frozen in `train()`, which nobody calls: all of them are trained."""
    model = _Staged(frozen_stages=2)
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-2), data.clusters(40))


@_bug("pytorch-51800", "train-eval-gap", at=("", "0", "2"))
def spectral_norm_evaluated_before_training(watch: Watch) -> None:
    """The first forward is in eval mode: the norm's vectors are random, and its weights wrong."""
    norm = cast(Callable[[nn.Module], nn.Module], nn.utils.spectral_norm)
    model = nn.Sequential(norm(nn.Linear(16, 64)), nn.LeakyReLU(0.2), norm(nn.Linear(64, 4)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = next(data.clusters(1))
    with watch(model) as watcher:
        model.eval()
        with torch.no_grad():
            watcher.log("validation loss", functional.cross_entropy(model(x), y))
        model.train()
        for x, y in data.clusters(40):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


def _hooked_rank(rank: int, watch: Watch) -> None:
    torch.manual_seed(0)
    model = mlp(16, 32, 4)
    for parameter in model.parameters():
        # As DistributedDataParallel: hooks belong to the tensors that it was given.
        cast(Any, parameter).register_post_accumulate_grad_hook(_average)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().clone()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watcher = watch(model, rank=rank)
    for x, y in data.clusters(40, rank=rank):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


def _average(parameter: Tensor) -> None:
    distributed.all_reduce(cast(Tensor, parameter.grad))
    cast(Tensor, parameter.grad).div_(2)


@_bug("pytorch-104336", "ranks-differ", at=("", "0", "2"), on="two ranks")
def hooks_lost_by_moving_the_model(watch: Watch) -> None:
    """The model is moved after it was wrapped: the hooks that average gradients never run."""
    run_ranks(_hooked_rank, watch)


class _StaleAdam(torch.optim.Adam):
    """Adam compiled while a gradient was None: from then on its step does nothing."""

    is_stale = False

    def step(self, closure: Any = None) -> Any:
        missing = any(p.grad is None for group in self.param_groups for p in group["params"])
        self.is_stale = self.is_stale or missing
        return None if self.is_stale else super().step(closure)


@_bug("pytorch-115607", "optimizer-not-stepped", "lost-updates", since=10)
def compiled_step_that_stops_updating(watch: Watch) -> None:
    """Gradients are None at step 10; later ones are fine, and the weights never move again."""
    model = mlp(16, 32, 4)
    optimizer = _StaleAdam(model.parameters(), lr=1e-3)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.clusters(40)):
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            if step == 10:
                optimizer.zero_grad()
            optimizer.step()
            optimizer.zero_grad()
            watcher.log("loss", loss)


@_bug(
    "pytorch-forum-84911",
    "frozen",
    at=("", "stem", "stem.*", "blocks", "blocks.*", "fc"),
    on="ResNet",
)
def all_but_batch_norms_frozen(watch: Watch) -> None:
    """All but the batch norms is frozen, the new head included: hardly anything is learned."""
    model = ResNet()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "bn" in name
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    fit(watch, model, optimizer, data.images(40))


@_bug("stackoverflow-60335387", "gradient-accumulates", on="CNN")
def convolutions_without_zero_grad(watch: Watch) -> None:
    """The MNIST example without `zero_grad`: it looks like a learning rate that is too high."""
    model = plain_convnet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for x, y in data.images(60):
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@_bug("stackoverflow-67180955", "repeated-batches", on="CNN", since=1)
def workers_with_the_same_seed(watch: Watch) -> None:
    """Two workers of the loader draw the same samples: every batch comes twice."""
    model = ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = (batch for batch in data.images(30) for _ in range(2))
    fit(watch, model, optimizer, batches)


class _EvalDropout(Attention):
    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) / x.shape[-1] ** 0.5
        # The `training` flag is forgotten, so that dropout is on in eval mode as well.
        weights = functional.dropout(scores.softmax(-1), p=0.3)
        return cast(Tensor, self.out(weights @ self.value(x)))


@_bug("transformers-33844", "train-eval-gap", at=("", "1", "1.*"), on="transformer")
def dropout_active_in_evaluation(watch: Watch) -> None:
    """Attention drops weights in eval mode: two evaluations of one batch differ."""
    model = nn.Sequential(nn.Linear(8, 32), _EvalDropout(32, 1, 8), nn.Flatten(), nn.Linear(256, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    held, labels = next(data.images(1, seed=9))
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.images(60)):
            model.train()
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x.squeeze(1)), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
            if step % 10 == 0:
                model.eval()
                with torch.no_grad():
                    for _ in range(2):
                        output = model(held.squeeze(1))
                watcher.log("validation loss", functional.cross_entropy(output, labels))


class _Multimodal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, 16)
        self.pixels = nn.Linear(64, 16)
        self.head = nn.Linear(16, 16)

    def forward(self, tokens: Tensor, pixels: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.tokens(tokens).mean(1) + self.pixels(pixels.flatten(1))))


@_bug("transformers-34204", "batch-size-mismatch", at=("", "tokens"), on="two-tower")
def texts_of_a_batch_joined_into_one(watch: Watch) -> None:
    """The processor returns one row of tokens for 16 images, and broadcasting hides it."""
    model = _Multimodal()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for (pixels, _), (tokens, following) in zip(
        data.images(40), data.sentences(40, batch=16), strict=True
    ):
        loss = functional.cross_entropy(model(tokens[:1], pixels), following[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


def _half_wrapped_rank(rank: int, watch: Watch) -> None:
    torch.manual_seed(0)
    model = mlp(16, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watcher = watch(model, rank=rank)
    for step, (x, y) in enumerate(data.clusters(40, rank=rank)):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        if step % 2:
            average_gradients(model)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@_bug("x-jxmnop-ddp-out-of-sync", "ranks-differ", at=("", "0", "2"), on="two ranks")
def model_wrapped_only_at_times(watch: Watch) -> None:
    """Some steps use the bare model, not the wrapped one: their gradients are not averaged."""
    run_ranks(_half_wrapped_rank, watch)
