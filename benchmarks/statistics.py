"""Forward statistics: several forwards in one block that records them, against the forwards alone.

rp measures one tensor that goes into each module and one that comes out, we measure all of them.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Literal

import torch
from torch import nn

from benchmarks.cases import beside_baseline, installed
from benchmarks.measure import Times, in_turns, ratios
from benchmarks.models import MLP, RESNET18, Spec, Subject, build
from benchmarks.rows import OURS, Case, Effort, Reading, Topic

RP = "rp"

_RAW = "forward alone"
_FORWARDS = 5
"""How many forwards are recorded in one block."""

Level = Literal["full", "cheap", "shapes"]


@torch.no_grad()
def time_statistics(
    spec: Spec,
    batch: int | None,
    linear_only: bool,
    level: Level,
    contenders: list[str],
    rounds: int,
) -> Times:
    """The forward alone in milliseconds, and how many times that it takes with statistics."""
    subject = _subject(spec, batch, linear_only)
    runs: dict[str, Callable[[], object]] = {
        _RAW: partial(_forwards, subject),
        OURS: partial(_ours, subject, level),
        RP: partial(_rp, subject),
    }
    times = in_turns({name: runs[name] for name in (_RAW, *contenders)}, rounds)
    found = {name: ratios(times[name], times[_RAW]) for name in contenders}
    return {_RAW: [1e3 * seconds / _FORWARDS for seconds in times[_RAW]], **found}


def _subject(spec: Spec, batch: int | None, linear_only: bool) -> Subject:
    model, (x,) = build(spec)
    if linear_only:
        assert isinstance(model, nn.Sequential)
        model = nn.Sequential(*(layer for layer in model if isinstance(layer, nn.Linear)))
    return Subject(model, (x if batch is None else torch.randn(batch, *x.shape[1:]),))


def _forwards(subject: Subject) -> None:
    for _ in range(_FORWARDS):
        subject.forward()


def _ours(subject: Subject, level: Level) -> None:
    import torchglass as tg

    with tg.record(subject.model, level=level):
        _forwards(subject)


def _rp(subject: Subject) -> None:
    with warnings.catch_warnings():
        # It asks tensors for gradients that they cannot have.
        warnings.simplefilter("ignore")
        with import_module("rp").record_torch_module_forward_stats(subject.model):
            _forwards(subject)


@dataclasses.dataclass(frozen=True)
class _Work:
    """What is recorded, and how small it is when the numbers do not count."""

    name: str
    full: Spec
    small: Spec
    batch: int | None = None
    linear_only: bool = False

    def case(self, what: str, level: Level, goal: float | None, *, beside_rp: bool = False) -> Case:
        contenders = (OURS, RP) if beside_rp else (OURS,)

        def measure(effort: Effort) -> dict[str, Reading]:
            return beside_baseline(
                _RAW,
                contenders,
                time_statistics,
                spec=self.small if effort.quick else self.full,
                batch=self.batch,
                linear_only=self.linear_only,
                level=level,
                contenders=installed(contenders),
                rounds=effort.rounds,
            )

        return Case(f"{what}, {self.name}", measure, goal)


_RESNET = _Work("ResNet-18, 1×3×224×224", *RESNET18)
_LINEARS = _Work("1000 Linear(64), batch 1", *MLP, batch=1, linear_only=True)
_WIDE_LINEARS = _Work("1000 Linear(64), batch 256", *MLP, batch=256, linear_only=True)
_PAIRS = _Work("1000 Linear(64) + ReLU, batch 1", *MLP, batch=1)
_WIDE_PAIRS = _Work("1000 Linear(64) + ReLU, batch 256", *MLP, batch=256)

TOPIC = Topic(
    name="statistics",
    title="Forward statistics",
    about=(
        f"{_FORWARDS} forwards in one with-block under `no_grad`: CPU time as a multiple of "
        "the plain forwards. “shapes + time” is the level `shapes`. “statistics” are min, "
        "max, mean, standard deviation, NaN and Inf of all inputs and outputs of each "
        "module; rp computes the first four, of one input and one output."
    ),
    cases=[
        _RESNET.case("shapes + time", "shapes", 1.05),
        _LINEARS.case("shapes + time", "shapes", 1.7),
        _PAIRS.case("shapes + time", "shapes", None),
        _RESNET.case("statistics of samples", "cheap", None),
        _RESNET.case("statistics", "full", 1.3, beside_rp=True),
        _LINEARS.case("statistics", "full", 2, beside_rp=True),
        _WIDE_LINEARS.case("statistics", "full", 3, beside_rp=True),
        _PAIRS.case("statistics", "full", 4, beside_rp=True),
        _WIDE_PAIRS.case("statistics", "full", 3, beside_rp=True),
    ],
)
