"""The differences between two recorded runs: their settings, and the step where curves diverge.

Curves are compared at the steps that both have, or else between the steps of the other one, so that
they may be logged at different intervals. They diverge where they stay further apart than each of
them changes from one step to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchglass.records.run import Points, Reader
from torchglass.records.training import OptimizerFacts, TrainingFacts

Numbers = npt.NDArray[np.float64]
_FEWEST = 3
"""The points that two curves must have in common."""
_WINDOW = 5
_NOISE = 3.0
"""How many standard errors of the noise two curves must be apart."""
_EQUAL = 1e-6
"""Relative to the size of the curve."""
_STAYS = 0.8
"""The share of later points that must be apart, too: a passing bump does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A setting that two runs do not share."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveChange:
    """A curve that two runs have, with different values."""

    name: str
    different_from: int
    """The first step at which the values are not equal."""
    apart_from: int | None
    """The first step from which they stay apart by more than their noise; None if they do not."""
    last_before: float
    last_after: float
    """The values at the last step that both have."""
    nan_from_before: int | None
    nan_from_after: int | None
    """The step from which all values of a curve are NaN or Inf; None if the last one is finite."""
    steps: int
    """The number of steps that were compared."""


def setting_changes(before: Reader, after: Reader) -> list[SettingChange]:
    """The settings that differ, those of `watch(config=…)` first, and how the runs ended."""
    old, new = _settings(before), _settings(after)
    return [
        SettingChange(name=name, before=old.get(name, ""), after=new.get(name, ""))
        for name in dict.fromkeys([*old, *new])
        if old.get(name, "") != new.get(name, "")
    ]


def _settings(reader: Reader) -> dict[str, str]:
    run, facts = reader.run(), reader.document(TrainingFacts) or TrainingFacts()
    found = {f"config {name}": str(value) for name, value in run.config.items()}
    found |= {
        "command": run.command,
        "git commit": run.git_commit,
        "torch": run.torch_version,
        "ranks": str(run.world_size),
        "status": str(reader.status()),
        "last step": str(reader.last_step()),
    }
    for number, optimizer in enumerate(facts.optimizers):
        prefix = "optimizer" if len(facts.optimizers) == 1 else f"optimizer {number + 1}"
        found.update(_of_optimizer(prefix, optimizer))
    return found


def _of_optimizer(prefix: str, optimizer: OptimizerFacts) -> Iterator[tuple[str, str]]:
    yield prefix, optimizer.name
    yield f"{prefix} lr", ", ".join(f"{one:.3g}" for one in optimizer.lr)
    yield f"{prefix} weight decay", ", ".join(f"{one:.3g}" for one in optimizer.weight_decay)


def curve_changes(before: Reader, after: Reader) -> list[CurveChange]:
    """The curves that differ, those that diverge first come first."""
    old, new = _curves(before), _curves(after)
    found = [
        change
        for name in old
        if name in new and (change := compare_curves(name, old[name], new[name])) is not None
    ]
    late = float("inf")
    return sorted(
        found,
        key=lambda one: (late if one.apart_from is None else one.apart_from, one.different_from),
    )


def _curves(reader: Reader) -> Mapping[str, tuple[Numbers, Numbers]]:
    """Steps and values of what was logged, and of the spread of each tensor."""
    points: Sequence[Points] = list(reader.points_of([one.id for one in reader.series()]))
    return {
        one.series.label: (
            one.steps.astype(np.float64),
            one.values[:, 0] if one.series.kind == "scalar" else one.column("std"),
        )
        for one in points
        if len(one)
    }


def compare_curves(
    name: str, before: tuple[Numbers, Numbers], after: tuple[Numbers, Numbers]
) -> CurveChange | None:
    """Where two curves diverge; None if they are equal, or have too few steps in common."""
    steps, old, new = _aligned(before, after)
    if len(steps) < _FEWEST:
        return None
    # By step: the last values of a training that explodes must not hide the first differences.
    size = np.maximum(np.maximum(np.abs(old), np.abs(new)), min(_usual(old), _usual(new)))
    is_other = (np.abs(old - new) > _EQUAL * size) | (np.isnan(old) != np.isnan(new))
    if not is_other.any():
        return None
    first, apart_at = int(steps[is_other.argmax()]), _parts_at(steps, old, new)
    return CurveChange(
        name=name,
        different_from=first,
        # A window that is apart may begin before the values differ.
        apart_from=None if apart_at is None else max(apart_at, first),
        last_before=float(old[-1]),
        last_after=float(new[-1]),
        nan_from_before=_nan_from(steps, old),
        nan_from_after=_nan_from(steps, new),
        steps=len(steps),
    )


def _usual(values: Numbers) -> float:
    """The median size of the values of a curve."""
    finite = np.abs(values[np.isfinite(values)])
    return float(np.median(finite)) if len(finite) else 0.0


def _nan_from(steps: Numbers, values: Numbers) -> int | None:
    """The step from which no value is finite."""
    if np.isfinite(values[-1]):
        return None
    finite = np.flatnonzero(np.isfinite(values))
    return int(steps[finite[-1] + 1 if len(finite) else 0])


def _aligned(
    before: tuple[Numbers, Numbers], after: tuple[Numbers, Numbers]
) -> tuple[Numbers, Numbers, Numbers]:
    """The values of both at the same steps."""
    common, at, to = np.intersect1d(before[0], after[0], return_indices=True)
    if len(common) >= _FEWEST:
        return common, before[1][at], after[1][to]
    low = max(before[0][0], after[0][0])
    high = min(before[0][-1], after[0][-1])
    coarse = before if len(before[0]) < len(after[0]) else after
    steps = coarse[0][(coarse[0] >= low) & (coarse[0] <= high)]
    return steps, np.interp(steps, *before), np.interp(steps, *after)


def _parts_at(steps: Numbers, old: Numbers, new: Numbers) -> int | None:
    """The first step from which both stay apart by more than their noise."""
    gap = np.nan_to_num(old - new, nan=np.inf, posinf=np.inf, neginf=-np.inf)
    noise = float(np.hypot(_noise(old), _noise(new)))
    window = min(_WINDOW, len(gap))
    sums = np.convolve(gap, np.ones(window), "valid") / window
    size = float(np.nanmax(np.abs(old), initial=0))
    is_apart = np.abs(sums) > max(_NOISE * noise / window**0.5, _EQUAL * size)
    # The share of windows from each on that are apart.
    share = is_apart[::-1].cumsum()[::-1] / np.arange(len(is_apart), 0, -1)
    found = is_apart & (share >= _STAYS)
    return int(steps[found.argmax()]) if found.any() else None


def _noise(values: Numbers) -> float:
    """The standard deviation of the steps from point to point of a curve, without outliers."""
    jumps = np.diff(values[np.isfinite(values)])
    if not len(jumps):
        return 0.0
    return float(1.4826 * np.median(np.abs(jumps - np.median(jumps))) / 2**0.5)
