"""The register of cases, and the loop that most of them share."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import torchglass as tg
from benchmarks.diagnosis import KINDS
from torchglass.capture.watch.watcher import Watcher

Train = Callable[["Watch"], None]
Group = Literal["planted", "healthy", "traincheck"]
Sample = Literal["in-sample", "holdout-1", "holdout-2", "holdout-3", "holdout-4", "holdout-5"]
Batches = Iterable[tuple[Any, Any]]
Loss = Callable[[Tensor, Tensor], Any]

functional: Any = torch.nn.functional
"""torch's, without its types: they would give losses a `backward` that mypy calls untyped."""

_HOLD_OUTS: dict[str, Sample] = {
    "second": "holdout-2",
    "third": "holdout-3",
    "fourth": "holdout-4",
    "fifth": "holdout-5",
}
"""What the names of the files of a hold-out begin with; all others are of the first."""
_PACKAGES = ("planted", "healthy", "holdout")
_TRAINCHECK = "benchmarks.diagnosis.traincheck"


@dataclass(frozen=True, slots=True)
class Watch:
    """`tg.watch` as this run calls it; a training of several ranks has a file for each."""

    folder: Path
    log_freq: int
    losses: list[float] = field(default_factory=list)
    """Losses, or what falls instead of them, of a training that does not log its loss."""
    diagnoses: list[tg.Diagnosis] = field(default_factory=list)
    """What was said of a model and a batch, if nothing was recorded."""

    def __call__(self, model: nn.Module, rank: int = 0, **options: Any) -> Watcher:
        path = self.folder / f"rank{rank}.glass"
        return tg.watch(model, log_freq=self.log_freq, save=path, verbose=False, **options)

    def diagnose(self, model: nn.Module, batch: Any, **options: Any) -> None:
        """`tg.diagnose` of a model and a batch, for a case without a training of its own."""
        self.diagnoses.append(tg.diagnose(model, batch, **options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A training, and what is to be found in it."""

    name: str
    group: Group
    family: str
    architecture: str
    train: Train
    sample: Sample = "in-sample"
    """Which set it belongs to; the cases of a hold-out are not used to write rules."""
    kinds: tuple[str, ...] = ()
    """Slugs that name the mistake, the best one first; none if the training is healthy."""
    at: tuple[str, ...] = ()
    """Paths of modules or parameters, "" for the whole model; `blocks.*` is any path below."""
    since: int = 0
    """The first step in which the mistake shows."""

    @property
    def reason(self) -> str:
        """What a good engineer concludes, in one line."""
        return " ".join((self.train.__doc__ or "").split())


_CASES: dict[str, Case] = {}


def planted(
    *kinds: str,
    at: Sequence[str] = ("",),
    family: str,
    on: str = "MLP",
    group: Group = "planted",
    name: str = "",
    since: int = 0,
) -> Callable[[Train], Train]:
    """Register a training with a mistake of one of these kinds, at one of these paths."""
    unknown = set(kinds) - KINDS.keys()
    if unknown or isinstance(at, str):
        raise ValueError(f"not in KINDS: {unknown}, or at={at!r} is not a sequence of paths")

    def register(train: Train) -> Train:
        _add(
            Case(
                name=_name(train, name),
                sample=_sample(train),
                group=group,
                family=family,
                architecture=on,
                train=train,
                kinds=kinds,
                at=tuple(at),
                since=since,
            )
        )
        return train

    return register


def healthy(*, family: str, on: str = "MLP") -> Callable[[Train], Train]:
    """Register a training in which nothing is wrong."""

    def register(train: Train) -> Train:
        _add(
            Case(
                name=_name(train),
                sample=_sample(train),
                group="healthy",
                family=family,
                architecture=on,
                train=train,
            )
        )
        return train

    return register


def _name(train: Train, name: str = "") -> str:
    name = name or train.__name__.replace("_", "-")
    sample = _sample(train)
    return name if sample == "in-sample" else f"{sample}/{name}"


def _sample(train: Train) -> Sample:
    package, _, module = train.__module__.rpartition(".")
    if not package.endswith(".holdout"):
        return "in-sample"
    for start, sample in _HOLD_OUTS.items():
        if module.startswith(start):
            return sample
    return "holdout-1"


def _add(case: Case) -> None:
    if case.name in _CASES:
        raise ValueError(f"two cases are called {case.name}")
    _CASES[case.name] = case


def all_cases() -> dict[str, Case]:
    """Every case by its name."""
    for package in _PACKAGES:
        found = importlib.import_module(f"benchmarks.diagnosis.{package}")
        for module in pkgutil.iter_modules(found.__path__, f"{found.__name__}."):
            importlib.import_module(module.name)
    importlib.import_module(_TRAINCHECK)
    return dict(_CASES)


def fit(
    watch: Watch,
    model: nn.Module,
    optimizer: Any,
    batches: Batches,
    loss_function: Loss = functional.cross_entropy,
) -> None:
    """The usual loop, for cases in which the mistake is elsewhere."""
    watcher = watch(model)
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_function(model(x), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()
