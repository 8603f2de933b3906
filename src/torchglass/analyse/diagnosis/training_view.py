"""A recorded training as the rules see it: its series, its structure and its facts."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from torchglass.records.findings import Finding
from torchglass.records.model import Histogram, Model, Module, Stats, join_path
from torchglass.records.run import FIELDS, Point, Points, RunStatus, point_values
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


class _KeptSeries:
    """The values of one series of a training that is running."""

    __slots__ = ("_new", "_values", "steps", "width")

    def __init__(self, point: Point) -> None:
        self.width = len(point_values(point))
        self.steps: list[int] = []
        self._values: array[float] = array("d")
        self._new: list[float | Stats] = []
        """What is not in `_values` yet: most series are never needed."""

    def add(self, step: int, point: Point) -> None:
        self.steps.append(step)
        self._new.append(point.stats if isinstance(point, Histogram) else point)

    @property
    def values(self) -> array[float]:
        """All of them, step after step."""
        for point in self._new:
            row = point_values(point)
            # Of two kinds under one name, the first counts.
            self._values.extend(row if len(row) == self.width else (math.nan,) * self.width)
        self._new.clear()
        return self._values

    def thin_out(self, *, keeps_end: bool) -> None:
        """Drop every other step, of the older half only if the end is kept."""
        half = len(self.steps) // 2 if keeps_end else len(self.steps)
        self.steps = self.steps[:half:2] + self.steps[half:]
        if not self._values:
            self._new = self._new[:half:2] + self._new[half:]
            return
        rows = np.array(self.values, np.float64).reshape(-1, self.width)
        kept = np.concatenate([rows[:half:2], rows[half:]])
        self._values = array("d", kept.tobytes())


class SeriesHistory:
    """Collects the series of a training that is running, in a bounded amount of memory.

    The longer the training, the fewer of its steps are kept; the latest is always kept. Logged
    values are kept at each step. If there are too many, every other one of the older half is
    dropped.
    """

    def __init__(self) -> None:
        self._known: set[SeriesKey] = set()
        """All series, whether they are kept or not."""
        self._kept: dict[SeriesKey, _KeptSeries] = {}
        self._numbers: dict[SeriesKey, _KeptSeries] = {}
        self._latest: tuple[int, Mapping[SeriesKey, Point]] = (-1, {})
        self._count = 0
        self._stride = 1

    def add(self, step: int, points: Mapping[Any, Point]) -> None:
        """The values of one step, by path and name of the series."""
        numbers = [one for one in points.items() if type(one[1]) is float and not one[0][0]]
        for key, point in numbers:
            if key not in self._numbers:
                self._numbers[key] = _KeptSeries(point)
            self._numbers[key].add(step, point)
        for kept in self._numbers.values():
            if len(kept.steps) > _MOST_NUMBERS:
                kept.thin_out(keeps_end=True)
        if not any(type(point) is not float for point in points.values()):
            return
        is_due = self._count % self._stride == 0
        self._count += 1
        self._latest = (-1, {}) if is_due else (step, points)
        if is_due:
            self._keep(step, points)

    def _keep(self, step: int, points: Mapping[SeriesKey, Point]) -> None:
        if not self._known.issuperset(points):
            self._learn(points)
        for key, kept in self._kept.items():
            point = points.get(key)
            if point is not None:
                kept.add(step, point)
        series = self._kept.values()
        most = min(max(_MOST_BYTES // (256 * max(1, len(series))), _FEWEST_POINTS), _MOST_POINTS)
        if self._count // self._stride >= most:
            self._stride *= 2
            for one in series:
                one.thin_out(keeps_end=False)

    def _learn(self, points: Mapping[SeriesKey, Point]) -> None:
        """Some series are new: keep those that a rule looks at, in the order of the calls."""
        for key, point in points.items():
            is_number = type(point) is float and not key[0]
            if key not in self._known and not is_number and is_needed(*key):
                self._kept[key] = _KeptSeries(point)
        self._known.update(points)

    def tracks(self) -> dict[SeriesKey, SeriesTrack]:
        """Everything that is kept."""
        step, points = self._latest
        tracks: dict[SeriesKey, SeriesTrack] = {}
        for key, kept in self._kept.items():
            tracks[key] = _LiveTrack(key, kept, step, points.get(key))
        for key, kept in self._numbers.items():
            tracks[key] = _LiveTrack(key, kept, -1, None)
        return tracks


class _LiveTrack(SeriesTrack):
    """A series of a training that is running, as it is now; it is read before the next step."""

    def __init__(self, key: SeriesKey, kept: _KeptSeries, step: int, latest: Point | None) -> None:
        self._kept = kept
        row = () if latest is None else point_values(latest)
        self._row = row if len(row) == kept.width else ()
        super().__init__(key, [*kept.steps, step] if self._row else kept.steps, ())

    @cached_property
    def values(self) -> Numbers:
        """A row of statistics, or one number, for each step."""
        values = np.array(self._kept.values, np.float64).reshape(-1, self._kept.width)
        return np.concatenate([values, [self._row]]) if self._row else values


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
