"""A training at a glance: its verdict, its loss, its findings over steps, and layers × steps.

    overview = training_overview(reader)
    overview.summary            # "Broken: The loss is NaN since step 40"
    overview.events[0]          # first_step, last_step, severity, kind, path, message
    HeatMaps(reader, columns=120).of("gradient")

A heat map has a row for each module, in the order in which the modules run, and a column for each
range of the same number of measured steps. A cell is the largest finite value of its range, and
is marked in `nonfinite` if any value of the range is NaN or Inf. A cell without a measurement is
NaN and not marked.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

import numpy as np
import numpy.typing as npt

from torchglass.analyse.diagnosis.conclude import all_rules
from torchglass.analyse.diagnosis.training_view import is_loss, parents_of
from torchglass.analyse.gradient_flow import layers, norms
from torchglass.errors import StoreError
from torchglass.records.findings import Finding, Findings, Severity, Verdict, verdict
from torchglass.records.model import Model
from torchglass.records.run import Points, Reader, RunStatus, Series, SeriesId
from torchglass.records.trace import Graph
from torchglass.records.training import TrainingFacts

Statistic = Literal["gradient", "activation", "update", "dead"]
Steps = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
Marks = npt.NDArray[np.bool_]

STATISTICS: Mapping[Statistic, str] = {
    "gradient": "gradient norm",
    "activation": "activation scale",
    "update": "update ratio",
    "dead": "dead share",
}
"""What a heat map can show, and its name on a screen."""

_COLUMNS = 600
_STEPS_PER_COLUMN = 8
"""With more steps than this in a column, only this many steps of each column are read first."""
_MOST_POINTS = 10_000_000
"""Above this many points in a run, the loss is read at some steps only: a step is read as one."""
_LATER_CALL = re.compile(r"^(\d+:|more:)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """The training loss in ranges of the same number of steps."""

    name: str
    """The logged name: "loss", "train/loss"."""
    steps: Steps
    """The first step of each range."""
    values: Values
    """The mean of the finite values; NaN if there are none."""
    low: Values
    high: Values
    nonfinite: Marks
    """Whether any value of the range is NaN or Inf."""
    last: float
    """The latest value."""

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingEvent:
    """A finding on the timeline."""

    first_step: int
    last_step: int
    severity: Severity
    kind: str
    path: str
    message: str
    series: str = ""
    index: int = 0
    """The index of the finding in `TrainingOverview.findings`."""
    is_of_all_steps: bool = False
    """Whether it has no step, such as a wrong set-up."""


@dataclass(frozen=True, kw_only=True)
class TrainingOverview:
    """What to know about a training before anything else."""

    name: str
    status: RunStatus
    last_step: int
    findings: tuple[Finding, ...] = ()
    """Causes first."""
    loss: LossCurve | None = None
    """None if no loss was logged."""
    events: tuple[FindingEvent, ...] = field(default=())
    """The findings, by the step at which they began."""

    @property
    def verdict(self) -> Verdict | None:
        """None before the first step, as nothing is known yet."""
        return verdict(self.findings, self.status) if _has_begun(self) else None

    @property
    def summary(self) -> str:
        """The verdict in one sentence."""
        if not _has_begun(self):
            return "No steps recorded yet"
        return verdict_sentence(self.findings, self.status, self.last_step)


def _has_begun(overview: TrainingOverview) -> bool:
    return bool(overview.last_step >= 0 or overview.findings or overview.status.has_failed)


def verdict_sentence(
    findings: Sequence[Finding], status: RunStatus | None, last_step: int = -1
) -> str:
    """A training in one sentence: the verdict, the first problem, and how it ended."""
    problems = [one for one in findings if one.severity != "info"]
    word = verdict(findings, status)
    if word == "healthy":
        steps = f"{last_step + 1:,} step{'s' * (last_step != 0)}"
        return "Healthy: no problems found" + (f" in {steps}" if last_step >= 0 else "")
    first = f": {problems[0].message}" if problems else ""
    more = f" ({len(problems)} problems in total)" if len(problems) > 1 else ""
    end = f"; the run was {status.full}" if status is not None and status.has_failed else ""
    return f"{word.capitalize()}{first}{more}{end}"


def remedy_of(finding: Finding) -> str:
    """What to do: what the finding says, or what its rule says."""
    rule = all_rules().get(finding.kind)
    return finding.remedy or (rule.remedy if rule is not None else "")


def place_of(finding: Finding) -> str:
    """Where a finding is: module, call, op, phase, steps and line of code."""
    first = finding.step if finding.first_step is None else finding.first_step
    last = first if finding.last_step is None else finding.last_step
    steps = "" if first is None else f"step {first:,}"
    if first is not None and last is not None and last > first:
        steps = f"steps {first:,} to {last:,}"
    words = (
        finding.path or "the model",
        f"call {finding.call}" if finding.call > 1 else "",
        finding.op,
        finding.phase if finding.phase != "forward" else "",
        steps,
        f"{PurePath(finding.source.file).name}:{finding.source.line}" if finding.source else "",
    )
    return " · ".join(filter(None, words))


def training_overview(reader: Reader, *, columns: int = _COLUMNS) -> TrainingOverview:
    """The verdict, the loss in at most `columns` ranges of steps, and the timeline of findings."""
    found = reader.document(Findings)
    findings, last_step = found.findings if found is not None else (), reader.last_step()
    return TrainingOverview(
        name=reader.run().name,
        status=reader.status(),
        last_step=last_step,
        findings=findings,
        loss=loss_curve(reader, columns=columns),
        events=finding_events(findings, last_step),
    )


def finding_events(findings: Iterable[Finding], last_step: int) -> tuple[FindingEvent, ...]:
    """One event for each finding, by its first step.

    One without a step covers all steps. One without a last step lasts to the end.
    """
    events = []
    for index, one in enumerate(findings):
        first = one.first_step if one.first_step is not None else one.step
        last = one.last_step if one.last_step is not None else last_step
        events.append(
            FindingEvent(
                first_step=first if first is not None else 0,
                last_step=max(last, first or 0),
                severity=one.severity,
                kind=one.kind,
                path=one.path,
                message=one.message,
                series=one.series,
                index=index,
                is_of_all_steps=first is None,
            )
        )
    return tuple(sorted(events, key=lambda event: (event.first_step, event.index)))


def loss_series(series: Iterable[Series]) -> Series | None:
    """The logged value that is the training loss: "loss" before "train/loss" and "loss_a"."""
    found = {one.name: one for one in series if not one.path and one.kind == "scalar"}
    name = loss_name(found)
    return None if name is None else found[name]


def loss_name(names: Iterable[str]) -> str | None:
    """The name of the training loss among those of values logged for the whole model."""
    found = [name for name in names if is_loss(name)]
    return min(found, key=lambda name: name.lower() != "loss", default=None)


def loss_curve(reader: Reader, *, columns: int = _COLUMNS) -> LossCurve | None:
    """The training loss of a run; None if none was logged."""
    every = reader.series()
    series = loss_series(every)
    if series is None:
        return None
    is_large = len(every) * (reader.last_step() + 1) > _MOST_POINTS
    most = _STEPS_PER_COLUMN * columns if is_large else None
    (points,) = reader.points_of([series.id], most=most)
    steps, values = points.steps, points.column("value")
    if not len(steps):
        return None
    starts = np.arange(0, len(steps), -(-len(steps) // columns))
    finite = np.isfinite(values)
    counts = np.add.reduceat(finite.astype(np.float64), starts)
    with np.errstate(invalid="ignore"):
        means = np.add.reduceat(np.where(finite, values, 0.0), starts) / counts
    known = np.where(finite, values, np.nan)
    return LossCurve(
        name=series.name,
        steps=steps[starts],
        values=means,
        low=np.fmin.reduceat(known, starts),
        high=np.fmax.reduceat(known, starts),
        nonfinite=np.logical_or.reduceat(~finite, starts),
        last=float(values[-1]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """A statistic of modules × steps; see the module's docstring for what a cell is."""

    statistic: Statistic
    title: str
    """What the values are: "gradient norm", "share of zeros"."""
    paths: tuple[str, ...]
    """The modules, in the order in which they run."""
    steps: Steps
    """The first step of each column."""
    last_steps: Steps
    values: Values
    """By module and column; NaN where nothing was measured, or nothing finite."""
    nonfinite: Marks
    is_logarithmic: bool = True
    """Whether colors should follow the logarithm."""

    @property
    def absent(self) -> Marks:
        """The cells without a measurement."""
        return np.isnan(self.values) & ~self.nonfinite

    def __bool__(self) -> bool:
        return bool(self.values.size)

    def column_at(self, step: int) -> int:
        """The column that contains a step, or the last one before it."""
        return max(int(np.searchsorted(self.steps, step, side="right")) - 1, 0)


class HeatMaps:
    """The heat maps of a run. Only new steps are read; earlier ones are kept as columns.

    Args:
        reader: The run.
        columns: The largest number of columns. When there are more, pairs of them are joined.
    """

    def __init__(self, reader: Reader, *, columns: int = _COLUMNS) -> None:
        self._reader = reader
        self._columns = columns
        self._grids: dict[Statistic, _StepGrid] = {}
        self._lock = threading.Lock()

    def available(self) -> list[Statistic]:
        """The statistics that were recorded."""
        series, model, facts = self._structure()
        return [one for one in STATISTICS if _sources(one, series, model) or _tracks(one, facts)]

    def of(self, statistic: Statistic) -> HeatMap:
        """The map of one statistic, up to the latest step; empty if it was not recorded."""
        with self._lock:
            series, model, facts = self._structure()
            sources = _sources(statistic, series, model)
            if sources:
                grid = self._grid_of_series(statistic, sources)
            else:
                grid = _grid_of_tracks(_tracks(statistic, facts), self._columns)
            order = execution_order(model, self._reader.document(Graph), series)
            return _heat_map(statistic, _title(statistic, bool(sources)), grid, order)

    def _structure(self) -> tuple[Sequence[Series], Model | None, TrainingFacts | None]:
        try:
            model = self._reader.model()
        except StoreError:
            model = None
        return self._reader.series(), model, self._reader.document(TrainingFacts)

    def _grid_of_series(
        self, statistic: Statistic, sources: Mapping[str, Sequence[Series]]
    ) -> _StepGrid:
        grid = self._grids.get(statistic)
        if grid is None or self._reader.last_step() < grid.last_step:
            # A resumed training may restart at an earlier step.
            grid = self._grids[statistic] = _StepGrid(self._columns)
        owners = {one.id: path for path, each in sources.items() for one in each}
        most = _STEPS_PER_COLUMN * self._columns if grid.last_step < 0 else None
        read = self._reader.points_of(list(owners), after=grid.last_step, most=most)
        grid.add(*_matrix(statistic, read, owners))
        return grid


def execution_order(
    model: Model | None, graph: Graph | None, series: Iterable[Series] = ()
) -> dict[str, int]:
    """The position of each module in the forward, by path.

    The recorded graph has the order of the calls. Without one it is the order in which outputs were
    first recorded. A module that was not called follows the one before it in the model.
    """
    called: dict[str, int] = {}
    for node in graph.nodes if graph is not None else ():
        if node.kind == "call":
            called.setdefault(node.path, len(called))
    if not called:
        for one in series:
            if _is_output(one.name):
                called.setdefault(one.path, len(called))
    if model is None:
        return called
    keys, before = {}, -1
    for index, module in enumerate(model.modules):
        before = called.get(module.path, before)
        keys[module.path] = before, index
    keys |= {path: (at, 0) for path, at in called.items() if path not in keys}
    return {path: at for at, path in enumerate(sorted(keys, key=keys.__getitem__))}


def _sources(
    statistic: Statistic, series: Sequence[Series], model: Model | None
) -> dict[str, list[Series]]:
    """The series that a map is made of, by module."""
    if statistic in ("gradient", "update"):
        found = layers(model, series) if model is not None else []
        of = "gradients" if statistic == "gradient" else "updates"
        return {one.path: list(getattr(one, of)) for one in found if getattr(one, of)}
    ending = ".zeros" if statistic == "dead" else ""
    by_path: dict[str, list[Series]] = {}
    for one in series:
        if one.name.endswith(ending) and _is_output(one.name.removesuffix(ending)):
            by_path.setdefault(one.path, []).append(one)
    # The output of a container is mostly the output of a module inside.
    around = {above for path in by_path for above in parents_of(path)}
    return {path: each for path, each in by_path.items() if path not in around}


def _is_output(name: str) -> bool:
    """Whether a series is of an output in training, of any call."""
    name = _LATER_CALL.sub("", name)
    return name == "output" or (
        name.startswith("output.") and not name.endswith((".grad", ".grad_norm", ".zeros"))
    )


def _tracks(
    statistic: Statistic, facts: TrainingFacts | None
) -> list[tuple[str, Sequence[int], Sequence[float]]]:
    """What was recorded at a few steps only, if there are no series: module, steps and values."""
    if facts is None:
        return []
    if statistic == "update":
        return [
            (one.name.rpartition(".")[0], one.updates.steps, one.updates.values)
            for one in facts.parameters
            if one.updates
        ]
    if statistic == "dead":
        return [
            (one.path, one.track.steps, one.track.values)
            for one in facts.probes
            if one.measure == "dead units" and one.track
        ]
    return []


def _title(statistic: Statistic, is_of_series: bool) -> str:
    if statistic == "dead":
        return "share of zeros" if is_of_series else "share of dead units"
    return STATISTICS[statistic]


def _values_of(statistic: Statistic, points: Points) -> Values:
    """The statistic at each step of a series; NaN or Inf where the tensor had one."""
    if statistic == "gradient":
        return norms(points)
    if points.series.kind == "scalar":
        return points.column("value")
    spoiled = points.column("nan") + points.column("inf") > 0
    return np.where(spoiled, np.nan, np.hypot(points.column("mean"), points.column("std")))


def _matrix(
    statistic: Statistic, read: Sequence[Points], owners: Mapping[SeriesId, str]
) -> tuple[list[str], Steps, Values, Marks]:
    """Modules × steps of what was read: norms are added, of other values the largest counts."""
    paths = list(dict.fromkeys(owners.values()))
    rows = {path: at for at, path in enumerate(paths)}
    with_points = [one for one in read if len(one)]
    steps = _all_steps([one.steps for one in with_points])
    values = np.full((len(paths), len(steps)), np.nan)
    nonfinite = np.zeros(values.shape, np.bool_)
    join = np.hypot if statistic == "gradient" else np.fmax
    for points in with_points:
        row, columns = rows[owners[points.series.id]], np.searchsorted(steps, points.steps)
        new = _values_of(statistic, points)
        finite = np.isfinite(new)
        nonfinite[row, columns] |= ~finite
        before = values[row, columns]
        joined = np.where(np.isnan(before), new, join(before, new))
        values[row, columns] = np.where(finite, joined, before)
    return paths, steps, values, nonfinite


def _all_steps(each: Sequence[Steps]) -> Steps:
    """The steps of several series, in order. Most series have the same."""
    different: dict[bytes, Steps] = {one.tobytes(): one for one in each}
    return np.unique(np.concatenate([*different.values(), np.empty(0, np.int64)]))


class _StepGrid:
    """Columns of the same number of steps; when there are too many, pairs of them are joined."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._width = 1
        """The number of measured steps of a full column."""
        self._rows: dict[str, int] = {}
        self._counts: Steps = np.empty(0, np.int64)
        self.first: Steps = np.empty(0, np.int64)
        self.last: Steps = np.empty(0, np.int64)
        self.values: Values = np.empty((0, 0))
        self.nonfinite: Marks = np.empty((0, 0), np.bool_)

    @property
    def paths(self) -> list[str]:
        return list(self._rows)

    @property
    def last_step(self) -> int:
        """The latest step that was added, -1 before the first."""
        return int(self.last[-1]) if len(self.last) else -1

    def add(self, paths: Sequence[str], steps: Steps, values: Values, nonfinite: Marks) -> None:
        """Add later steps, as modules × steps."""
        if not len(steps):
            return
        for path in paths:
            self._rows.setdefault(path, len(self._rows))
        at = [self._rows[path] for path in paths]
        shape = len(self._rows), len(self._counts) + len(steps)
        all_values, all_marks = np.full(shape, np.nan), np.zeros(shape, np.bool_)
        known = self.values.shape
        all_values[: known[0], : known[1]] = self.values
        all_marks[: known[0], : known[1]] = self.nonfinite
        all_values[at, known[1] :] = values
        all_marks[at, known[1] :] = nonfinite
        self.values, self.nonfinite = all_values, all_marks
        self._counts = np.append(self._counts, np.ones(len(steps), np.int64))
        self.first, self.last = np.append(self.first, steps), np.append(self.last, steps)
        self._join_columns()

    def _join_columns(self) -> None:
        ends = np.cumsum(self._counts)
        while -(-int(ends[-1]) // self._width) > self._most:
            self._width *= 2
        group = (ends - self._counts) // self._width
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        if len(starts) == len(group):
            return
        self.values = np.fmax.reduceat(self.values, starts, axis=1)
        self.nonfinite = np.logical_or.reduceat(self.nonfinite, starts, axis=1)
        self._counts = np.add.reduceat(self._counts, starts)
        self.first = self.first[starts]
        self.last = self.last[np.append(starts[1:], len(group)) - 1]


def _grid_of_tracks(
    tracks: Iterable[tuple[str, Sequence[int], Sequence[float]]], most: int
) -> _StepGrid:
    grid = _StepGrid(most)
    tracks = list(tracks)
    steps = _all_steps([np.array(steps, np.int64) for _, steps, _ in tracks])
    paths = list(dict.fromkeys(path for path, _, _ in tracks))
    rows = {path: at for at, path in enumerate(paths)}
    values = np.full((len(paths), len(steps)), np.nan)
    nonfinite = np.zeros(values.shape, np.bool_)
    for path, own_steps, own_values in tracks:
        columns, new = np.searchsorted(steps, own_steps), np.array(own_values, np.float64)
        finite = np.isfinite(new)
        nonfinite[rows[path], columns] |= ~finite
        known = np.where(finite, new, np.nan)
        values[rows[path], columns] = np.fmax(values[rows[path], columns], known)
    grid.add(paths, steps, values, nonfinite)
    return grid


def _heat_map(
    statistic: Statistic, title: str, grid: _StepGrid, order: Mapping[str, int]
) -> HeatMap:
    paths = grid.paths
    rows = sorted(range(len(paths)), key=lambda at: (order.get(paths[at], len(order)), at))
    return HeatMap(
        statistic=statistic,
        title=title,
        paths=tuple(paths[at] for at in rows),
        steps=grid.first,
        last_steps=grid.last,
        values=grid.values[rows],
        nonfinite=grid.nonfinite[rows],
        is_logarithmic=statistic != "dead",
    )
