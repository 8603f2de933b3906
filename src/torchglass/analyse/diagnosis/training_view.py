"""A recorded training as the rules see it: its series, its structure and its facts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from torchglass.records.findings import Finding
from torchglass.records.model import Model, Module, join_path
from torchglass.records.run import Points, RunStatus
from torchglass.records.step_points import FIELDS, PointTable
from torchglass.records.training import ParameterFacts, Probe, Track, TrainingFacts

SeriesKey = tuple[str, str]
"""The path of a module, and the name of a series of it."""
Numbers = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

_STATS = FIELDS["stats"]
_MOST_POINTS = 96
_FEWEST_LOSSES = 8
_MOST_NUMBERS = 256
_FEWEST_POINTS = 16
_MOST_SINGLE = 16
_MOST_BYTES = 32 << 20
_CALL = re.compile(r"^(eval:|\d+:|more:)")
_LOSS = re.compile(r"(^|[^a-z])loss$", re.IGNORECASE)
_OTHER_LOSS = re.compile(r"(^|[^a-z])(val|valid|validation|eval|test|dev)([^a-z]|$)", re.IGNORECASE)


def is_loss(name: str) -> bool:
    """Whether a logged value is the training loss, by its name: "loss", "train/loss"."""
    return bool(_LOSS.search(name)) and not _OTHER_LOSS.search(name)


class SeriesTrack:
    """One series over the recorded steps."""

    def __init__(self, key: SeriesKey, steps: Sequence[int] | Steps, values: Any) -> None:
        self.path, self.name = key
        self._steps, self._values = steps, values

    @cached_property
    def steps(self) -> Steps:
        """The recorded steps."""
        return np.array(self._steps, np.int64)

    @cached_property
    def values(self) -> Numbers:
        """A row of statistics, or one number, for each step."""
        return np.asarray(self._values, np.float64)

    @property
    def label(self) -> str:
        """Its full name."""
        return join_path(self.path, self.name)

    @property
    def is_number(self) -> bool:
        """Whether it has one value per step, as a logged loss has."""
        return bool(self.values.shape[1] == 1)

    def column(self, field: str) -> Numbers:
        """One of the statistics over steps."""
        column: Numbers = self.values[:, _STATS.index(field)]
        return column

    @cached_property
    def size(self) -> Numbers:
        """The root mean square of its values at each step, or its absolute value."""
        if self.is_number:
            return np.abs(self.values[:, 0])
        return np.hypot(self.column("mean"), self.column("std"))

    def first(self) -> SeriesTrack:
        """Its first step alone."""
        return SeriesTrack((self.path, self.name), self.steps[:1], self.values[:1])

    def last(self, count: int) -> SeriesTrack:
        """Its last steps alone."""
        return SeriesTrack((self.path, self.name), self.steps[-count:], self.values[-count:])

    @cached_property
    def norm(self) -> Numbers:
        """The norm of the whole tensor at each step."""
        return self.size if self.is_number else self.size * np.sqrt(self.column("count"))

    def __len__(self) -> int:
        return len(self._steps)


class _LiveTrack(SeriesTrack):
    """A series of a training that is running; its parts are steps and values, in any order."""

    def __init__(self, key: SeriesKey, steps: Steps, values: Numbers) -> None:
        super().__init__(key, steps, values)
        self._parts = [(steps, values)]

    def add(self, steps: Steps, values: Numbers) -> None:
        """Add a part."""
        self._parts.append((steps, values))

    @cached_property
    def steps(self) -> Steps:
        """The recorded steps."""
        return self._joined[0]

    @cached_property
    def values(self) -> Numbers:
        """A row of statistics for each step."""
        return self._joined[1]

    @cached_property
    def _joined(self) -> tuple[Steps, Numbers]:
        if len(self._parts) == 1:
            return self._parts[0]
        steps, values = map(np.concatenate, zip(*self._parts, strict=True))
        order = np.argsort(steps, kind="stable")
        return steps[order], values[order]

    def __len__(self) -> int:
        return sum(len(steps) for steps, _ in self._parts)


class _KeptNumbers:
    """A logged value, such as the loss, over the steps of a training that is running."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: list[float] = []

    def add(self, step: int, value: float) -> None:
        self.steps.append(step)
        self.values.append(value)
        if len(self.steps) > _MOST_NUMBERS:
            # Every other one of the older half makes room.
            half = len(self.steps) // 2
            del self.steps[1:half:2], self.values[1:half:2]


class _StepsOfSeries:
    """The steps of a training that is running in which the same series were recorded."""

    def __init__(self, keys: Sequence[SeriesKey]) -> None:
        self.keys = keys
        self.needed = [key for key in keys if is_needed(*key)]
        self._rows = np.array([row for row, key in enumerate(keys) if is_needed(*key)], np.intp)
        self.steps: list[int] = []
        self._values: list[Numbers] = []
        self._is_last_kept = True

    def add(self, step: int, values: Numbers, *, is_kept: bool) -> None:
        """Add a step with a row of statistics per series."""
        self.steps.append(step)
        self._values.append(values[self._rows])
        self._is_last_kept = is_kept

    def drop_latest(self) -> None:
        """Drop the last step if it was added only as the latest one."""
        if not self._is_last_kept:
            self._is_last_kept = True
            del self.steps[-1], self._values[-1]

    def thin_out(self) -> None:
        """Drop every other step."""
        del self.steps[1::2], self._values[1::2]

    def add_to(self, tracks: dict[SeriesKey, _LiveTrack]) -> None:
        """Add these steps to the tracks of the series."""
        steps = np.array(self.steps, np.int64)
        for key, values in zip(self.needed, np.stack(self._values, axis=1), strict=True):
            if key in tracks:
                tracks[key].add(steps, values)
            else:
                tracks[key] = _LiveTrack(key, steps, values)


class SeriesHistory:
    """Collects the series of a training that is running, in a bounded amount of memory.

    The longer the training, the fewer of its steps are kept; the latest is always kept. Logged
    values are kept at each step. If there are too many, every other one of the older half is
    dropped.
    """

    def __init__(self) -> None:
        self._groups: list[_StepsOfSeries] = []
        self._numbers: dict[SeriesKey, _KeptNumbers] = {}
        self._count = 0
        self._stride = 1

    def add(self, step: int, points: PointTable[Any]) -> None:
        """The values of one step, by path and name of the series."""
        for key, value in points.numbers.items():
            if not key[0]:
                self._numbers.setdefault(key, _KeptNumbers()).add(step, value)
        if not points.histogram_keys:
            return
        for group in self._groups:
            group.drop_latest()
        series = max((len(group.needed) for group in self._groups), default=1)
        most = min(max(_MOST_BYTES // (64 * max(1, series)), _FEWEST_POINTS), _MOST_POINTS)
        if self._count // self._stride >= most:
            self._stride *= 2
            self._thin_out()
        is_kept = self._count % self._stride == 0
        group = self._group_of(points.histogram_keys)
        group.add(step, points.histograms.stats, is_kept=is_kept)
        self._groups = [group for group in self._groups if group.steps]
        self._count += 1

    def _group_of(self, keys: Sequence[SeriesKey]) -> _StepsOfSeries:
        for group in self._groups:
            if group.keys == keys:
                return group
        self._groups.append(_StepsOfSeries(keys))
        return self._groups[-1]

    def _thin_out(self) -> None:
        """Drop every other step. Series that were recorded once, as at the start, are kept.

        In a model that uses other modules in each step, every other step is dropped nevertheless.
        """
        single = [group for group in self._groups if len(group.steps) == 1]
        dropped = single[1::2] if len(single) > _MOST_SINGLE else []
        self._groups = [group for group in self._groups if group not in dropped]
        for group in self._groups:
            group.thin_out()

    def tracks(self) -> dict[SeriesKey, SeriesTrack]:
        """Everything that is kept."""
        tracks: dict[SeriesKey, _LiveTrack] = {}
        for group in self._groups:
            group.add_to(tracks)
        numbers = {
            key: SeriesTrack(key, kept.steps, np.array(kept.values)[:, None])
            for key, kept in self._numbers.items()
        }
        return {**tracks, **numbers}


def tracks_of(points: Iterable[Points]) -> dict[SeriesKey, SeriesTrack]:
    """The series of a run that was saved."""
    return {
        (one.series.path, one.series.name): SeriesTrack(
            (one.series.path, one.series.name), one.steps, one.values
        )
        for one in points
        if len(one)
    }


def is_needed(path: str, name: str) -> bool:
    """Whether any rule looks at a series: not at later calls, inner inputs or norms of rows."""
    if name == "eval:output" or (not path and name == "eval:input.0"):
        return True
    if _CALL.match(name) or name.endswith((".grad_norm", ".zeros", ".update")):
        return False
    # Of the inputs of modules inside the model, only those of its own children.
    return "." not in path or not name.startswith("input")


class TrainingView:
    """A recorded training, with the properties that several rules need."""

    def __init__(
        self,
        series: Mapping[SeriesKey, SeriesTrack],
        *,
        facts: TrainingFacts | None = None,
        model: Model | None = None,
        status: RunStatus | None = None,
        findings: Iterable[Finding] = (),
    ) -> None:
        self.series = series
        self.facts = facts or TrainingFacts()
        self.model = model
        self.status = status
        self.findings = tuple(findings)
        """What was found step by step while the training ran."""

    @cached_property
    def losses(self) -> list[SeriesTrack]:
        """The training losses that were logged, without NaN."""
        found = [one for (path, name), one in self.series.items() if not path and is_loss(name)]
        return [one for one in found if one.is_number]

    @cached_property
    def is_stuck(self) -> bool:
        """Whether losses were logged, and none of them has fallen clearly."""
        found = False
        for loss in self.losses:
            values = loss.values[:, 0][np.isfinite(loss.values[:, 0])]
            if len(values) >= _FEWEST_LOSSES:
                found = True
                start = values[: max(2, len(values) // 8)].mean()
                if values[-len(values) // 4 :].mean() < 0.9 * start or start <= 0:
                    return False
        return found

    @cached_property
    def is_learning(self) -> bool:
        """Whether a loss that was logged has fallen clearly."""
        return not self.is_stuck and any(len(loss) >= _FEWEST_LOSSES for loss in self.losses)

    @cached_property
    def is_mixed(self) -> bool:
        """Whether some parameters are in float32, so that operations in float32 are expected."""
        return any(one.dtype == "float32" for one in self.facts.parameters)

    @cached_property
    def gradients_reach_outputs(self) -> bool:
        """Whether a gradient came to the output of any module."""
        return any(name.startswith("output") and name.endswith(".grad") for _, name in self.series)

    @cached_property
    def modules(self) -> Mapping[str, Module]:
        """The modules of the model, by path."""
        return {one.path: one for one in self.model.modules} if self.model is not None else {}

    def kind(self, path: str) -> str:
        """The class of a module, without its package."""
        module = self.modules.get(path)
        return module.kind if module is not None else ""

    def is_norm(self, path: str) -> bool:
        """Whether a module normalizes."""
        return "Norm" in self.kind(path)

    @cached_property
    def outputs(self) -> list[SeriesTrack]:
        """The first output of each module that has no modules inside, in the order of the calls."""
        return [
            one
            for (path, name), one in self.series.items()
            if name in ("output", "output.0") and path not in self.containers and not one.is_number
        ]

    @cached_property
    def containers(self) -> frozenset[str]:
        """The paths of modules that have others inside."""
        paths = {path for path, _ in self.series}
        return frozenset(above for path in paths for above in parents_of(path))

    @cached_property
    def weights(self) -> list[ParameterFacts]:
        """The parameters with at least two dimensions that require a gradient."""
        return [one for one in self.facts.parameters if one.requires_grad and len(one.shape) > 1]

    def track(self, parameter: ParameterFacts, of: str = "") -> SeriesTrack | None:
        """The series of a parameter, or with ".grad" that of its gradient."""
        path, _, name = parameter.name.rpartition(".")
        return self.series.get((path, name + of))

    @cached_property
    def gradient_norm(self) -> tuple[npt.NDArray[np.int64], Numbers]:
        """The norm of all parameter gradients together, at each recorded step."""
        tracks = (self.track(one, ".grad") for one in self.facts.parameters)
        return _added_squares([one for one in tracks if one is not None and len(one)])

    def probes(self, measure: str, *functions: str) -> list[Probe]:
        """The measurements of one kind."""
        return [
            one
            for one in self.facts.probes
            if one.measure == measure and (not functions or one.function in functions)
        ]

    @cached_property
    def last_step(self) -> int:
        """The last recorded step; -1 without any."""
        return max((int(one.steps[-1]) for one in self.series.values() if len(one)), default=-1)

    @cached_property
    def order(self) -> Mapping[str, int]:
        """The position of each module in the forward, by path."""
        positions: dict[str, int] = {}
        for path, name in self.series:
            if name.startswith(("input", "output")) and ".grad" not in name:
                positions.setdefault(path, len(positions))
        return positions


def _added_squares(tracks: Sequence[SeriesTrack]) -> tuple[Steps, Numbers]:
    """The norm of several tensors together, at each step that any of them has."""
    by_steps: dict[bytes, tuple[Steps, Numbers]] = {}
    for track in tracks:
        key = track.steps.tobytes()
        known = by_steps.get(key)
        squares = track.norm**2
        by_steps[key] = (track.steps, squares if known is None else known[1] + squares)
    if not by_steps:
        return np.empty(0, np.int64), np.empty(0)
    steps = np.concatenate([steps for steps, _ in by_steps.values()])
    squares = np.concatenate([squares for _, squares in by_steps.values()])
    distinct, groups = np.unique(steps, return_inverse=True)
    return distinct, np.sqrt(np.bincount(groups, squares, len(distinct)))


def median(values: Iterable[float]) -> float:
    """The median of a few values, NaN if one is; numpy's takes 30 times as long."""
    ordered: list[float] = sorted(values.tolist() if isinstance(values, np.ndarray) else values)
    if not ordered or any(value != value for value in ordered):
        return math.nan
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def parents_of(path: str) -> Iterable[str]:
    """The paths of the modules that contain one, the innermost first; "" is the model."""
    while path:
        path = path.rpartition(".")[0]
        yield path


def lasting(track: Track, is_bad: Callable[[float], bool], *, least: int = 2) -> int | None:
    """The step since which all values of a track are bad; None if the last ones are not."""
    since, times = None, 0
    for step, value in zip(reversed(track.steps), reversed(track.values), strict=True):
        if not is_bad(value):
            break
        since, times = step, times + 1
    return since if times >= min(least, len(track.steps)) and times >= least else None
