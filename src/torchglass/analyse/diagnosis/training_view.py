"""A recorded training as the rules look at it: its series, its structure and its facts."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from torchglass.records.findings import Finding
from torchglass.records.model import Model, Module, join_path
from torchglass.records.run import RunStatus
from torchglass.records.series import FIELDS, Point, Points, point_values
from torchglass.records.training import ParameterFacts, Probe, Track, TrainingFacts

SeriesKey = tuple[str, str]
"""The path of a module, and the name of a series of it."""
Numbers = npt.NDArray[np.float64]

_STATS = FIELDS["stats"]
_MOST_POINTS = 256
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

    def __init__(self, key: SeriesKey, steps: npt.NDArray[np.int64], values: Numbers) -> None:
        self.path, self.name = key
        self.steps = steps
        self.values = values

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

    @cached_property
    def norm(self) -> Numbers:
        """The length of the whole tensor at each step."""
        return self.size if self.is_number else self.size * np.sqrt(self.column("count"))

    def __len__(self) -> int:
        return len(self.steps)


class SeriesHistory:
    """Collects the series of a training that is running, in a bounded amount of memory.

    Of a long training every other step of the older half is dropped, again and again.
    """

    def __init__(self) -> None:
        self._steps: dict[SeriesKey, list[int]] = {}
        self._values: dict[SeriesKey, array[float]] = {}
        self._widths: dict[SeriesKey, int] = {}

    def add(self, step: int, points: Iterable[tuple[SeriesKey, Point]]) -> None:
        """The values of one step."""
        for key, point in points:
            if not is_needed(*key):
                continue
            values = point_values(point)
            if key not in self._steps:
                self._steps[key], self._values[key] = [], array("d")
                self._widths[key] = len(values)
            if len(values) == self._widths[key]:
                self._steps[key].append(step)
                self._values[key].extend(values)
        most = _MOST_BYTES // (64 * max(1, len(self._steps)))
        most = min(max(most, _FEWEST_POINTS), _MOST_POINTS)
        for key, steps in self._steps.items():
            if len(steps) > most:
                self._thin_out(key, most)

    def tracks(self) -> dict[SeriesKey, SeriesTrack]:
        """Everything that is kept."""
        return {
            key: SeriesTrack(
                key,
                np.array(steps, np.int64),
                np.array(self._values[key], np.float64).reshape(len(steps), -1),
            )
            for key, steps in self._steps.items()
        }

    def _thin_out(self, key: SeriesKey, most: int) -> None:
        rows = np.array(self._values[key], np.float64).reshape(-1, self._widths[key])
        kept = np.r_[0 : most // 2 : 2, most // 2 : len(rows)]
        self._values[key] = array("d", rows[kept].ravel().tolist())
        self._steps[key] = [self._steps[key][at] for at in kept]


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
    if _CALL.match(name) or name.endswith((".grad_norm", ".zeros", ".update")):
        return False
    # Of the inputs of modules inside the model, only those of its own children.
    return "." not in path or not name.startswith("input")


class TrainingView:
    """What was recorded of a training, with the questions that several rules ask."""

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
            if len(values) >= 8:
                found = True
                start = values[: max(2, len(values) // 8)].mean()
                if values[-len(values) // 4 :].mean() < 0.9 * start or start <= 0:
                    return False
        return found

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
        """Whether a module normalises."""
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
        """The length of all gradients of parameters together, at each recorded step."""
        total: dict[int, float] = {}
        for parameter in self.facts.parameters:
            track = self.track(parameter, ".grad")
            if track is not None:
                for step, norm in zip(track.steps.tolist(), track.norm.tolist(), strict=True):
                    total[step] = total.get(step, 0.0) + norm * norm
        steps = sorted(total)
        return np.array(steps, np.int64), np.sqrt([total[step] for step in steps])

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
