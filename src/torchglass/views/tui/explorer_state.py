"""What the explorer knows about a model and its run. All panels read the same state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from torchglass.analyse.failure.failure import Failure
from torchglass.analyse.model_diff import ModelDiff
from torchglass.analyse.parameters import ModuleCounts, count
from torchglass.analyse.pixels import Scale
from torchglass.analyse.sibling_order import alike, builds
from torchglass.analyse.summary import kinds_below
from torchglass.analyse.trace import TraceStructure
from torchglass.analyse.training_overview import HeatMap, Statistic, TrainingOverview
from torchglass.records.calls import ModuleStatistics, Statistics
from torchglass.records.findings import Finding, Findings, Severity
from torchglass.records.measures import Measures, ModuleMeasure, ReportRecord
from torchglass.records.model import (
    Histograms,
    LiveModel,
    Model,
    Module,
    ModuleId,
    Slot,
    TensorSpec,
    join_path,
    paths_above,
)
from torchglass.records.run import D, Document, Points, RunRecord, Series, SeriesId
from torchglass.records.trace import CallRecord, OpId, OpRecord, TraceRecord
from torchglass.tables.text import SAME_AS
from torchglass.views.tui.tree_rows import Outline


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleActivity:
    """Inputs, outputs and cost of a module over all of its calls. None: not measured."""

    inputs: tuple[TensorSpec, ...] = ()
    """The inputs of its last call."""
    outputs: tuple[TensorSpec, ...] = ()
    calls: int | None = None
    total_ns: int | None = None
    self_ns: int | None = None
    backward_ns: int | None = None
    flops: int | None = None
    self_flops: int | None = None
    activation_bytes: int | None = None
    peak_bytes: int | None = None

    @property
    def input_bytes(self) -> int | None:
        return sum(spec.bytes for spec in self.inputs) if self.inputs else None

    @property
    def output_bytes(self) -> int | None:
        return sum(spec.bytes for spec in self.outputs) if self.outputs else None

    @property
    def mean_ns(self) -> float | None:
        if self.total_ns is None or not self.calls:
            return None
        return self.total_ns / self.calls


def module_activities(documents: Mapping[type[Document], Document]) -> dict[str, ModuleActivity]:
    """The activity of each module by path; measures win over statistics, and these over a trace."""
    found: defaultdict[str, ModuleActivity] = defaultdict(ModuleActivity)
    trace = cast(TraceRecord | None, documents.get(TraceRecord))
    for call in trace.calls if trace else ():
        before = found[call.path]
        found[call.path] = ModuleActivity(
            inputs=tuple(value.spec for value in call.inputs),
            outputs=tuple(value.spec for value in call.outputs),
            calls=(before.calls or 0) + 1,
            total_ns=(before.total_ns or 0) + call.total_ns,
        )
    statistics = cast(Statistics | None, documents.get(Statistics))
    for module in statistics.modules if statistics else ():
        before, last = found[module.path], module.calls[-1] if module.calls else None
        found[module.path] = replace(
            before,
            inputs=tuple(one.spec for one in last.inputs) if last else before.inputs,
            outputs=tuple(one.spec for one in last.outputs) if last else before.outputs,
            calls=module.totals.calls,
            total_ns=module.totals.total_ns,
            self_ns=module.totals.self_ns,
        )
    measures = cast(Measures | None, documents.get(Measures))
    for row in measures.rows if measures else ():
        found[row.path] = _with_measure(found[row.path], row)
    return found


def _with_measure(before: ModuleActivity, row: ModuleMeasure) -> ModuleActivity:
    timed = row.total_forward_ns is not None
    shapes = tuple(TensorSpec(shape=shape, dtype="") for shape in row.output_shapes)
    return replace(
        before,
        outputs=before.outputs or shapes,
        calls=row.calls or before.calls,
        total_ns=row.total_forward_ns if timed else before.total_ns,
        self_ns=row.self_forward_ns if timed else before.self_ns,
        backward_ns=row.total_backward_ns,
        flops=row.total_forward_flops,
        self_flops=row.self_forward_flops,
        activation_bytes=row.total_activation_bytes,
        peak_bytes=row.total_peak_bytes,
    )


class OpMaps(Protocol):
    """Pictures of one tensor: the channels of an output, or the heads of an attention."""

    @property
    def maps(self) -> npt.NDArray[np.float64]:
        """The values, as maps × height × width."""

    @property
    def scale(self) -> Scale:
        """The values at the ends of the colors, the same for all maps."""

    @property
    def heading(self) -> str:
        """What they are, and how they were computed."""


MapSource = Callable[[OpId], OpMaps | None]
"""The pictures of an op; None if its output was not kept, or is not a picture."""

_MOST_COMPOSED = 400
"""After more ops, the screen does not wait for a receptive field."""


class TracedForward:
    """A traced forward, with its ops by module."""

    def __init__(self, trace: TraceRecord) -> None:
        self.trace = trace
        self.anatomy = TraceStructure(trace)
        self._fields: dict[OpId, str] = {}

    def op(self, id: OpId) -> OpRecord:
        return self.trace.ops[id]

    def name(self, id: OpId) -> str:
        return str(self.anatomy.labels[id])

    def field(self, id: OpId) -> str:
        """The receptive field of an op in one line; "" if it would take long."""
        if id not in self._fields:
            from torchglass.analyse.receptive_field import field_line

            self._fields[id] = field_line(self.trace, id, most_ops=_MOST_COMPOSED)
        return self._fields[id]

    def known_field(self, id: OpId) -> str | None:
        """The same if it was computed before; else None."""
        return self._fields.get(id)

    @cached_property
    def calls(self) -> Mapping[str, Sequence[CallRecord]]:
        return _by_path(self.trace.calls)

    def output_op(self, path: str) -> OpId | None:
        """The op that made the first output of a module, in its last call."""
        calls = self.calls.get(path, ())
        outputs = calls[-1].outputs if calls else ()
        return outputs[0].op if outputs else None

    def ops(self, path: str) -> list[OpId]:
        """The ops that ran in a module, inner modules included, in order."""
        if not path:
            return [op.id for op in self.trace.ops]
        calls = self.calls.get(path, ())
        return sorted({op for call in calls for op in self.anatomy.ops_of_call[call.id]})

    def path(self, id: OpId) -> str:
        """The module that an op ran in."""
        call = self.op(id).call
        return "" if call is None else self.trace.calls[call].path


P = TypeVar("P", CallRecord, Finding)


def _by_path(records: Iterable[P]) -> Mapping[str, Sequence[P]]:
    found: dict[str, list[P]] = {}
    for one in records:
        found.setdefault(one.path, []).append(one)
    return found


LOST, SHARED, TIED, FOUND, BELOW = "!", SAME_AS, "=", "✗", "↓"
"""Marks of a module that could not be read, is shared, has a tied tensor, has a problem, or has
one below it."""
SEVERITY_MARKS: Mapping[Severity, tuple[str, str]] = {
    "error": (FOUND, "problem"),
    "warning": ("!", "warning"),
    "info": ("·", "muted"),
}
"""The mark of a finding, and its style."""
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


class ProblemsBelow(NamedTuple):
    """The problems of modules inside another one."""

    problems: int
    style: str
    """The style of the worst one."""


_NO_ACTIVITY = ModuleActivity()


@dataclass(frozen=True, kw_only=True)
class ModelContents:
    """What takes a while to compute on a large model."""

    model: Model
    counts: Sequence[ModuleCounts]
    notes: Mapping[ModuleId, str]
    """Problems, shared modules and tied tensors; each note starts with its mark."""

    @cached_property
    def devices(self) -> Sequence[tuple[str, ...]]:
        """The devices of the tensors in each branch."""
        return kinds_below(self.model, lambda slot: slot.spec.device, of_all=True)

    @cached_property
    def dtypes(self) -> Sequence[tuple[str, ...]]:
        """The types of the parameters in each branch, or of its buffers if it has none."""
        return kinds_below(self.model, lambda slot: slot.spec.dtype)


def count_model(model: Model) -> ModelContents:
    """Count all modules, and find problems, shared modules and tied tensors."""
    tied = model.tied
    # Most modules of a large model have no note, and are skipped here without a call.
    notable = [
        module
        for module in model.modules
        if module.problem
        or module.alias_of is not None
        or (tied and any(slot.tensor in tied for slot in module.slots))
    ]
    notes = {module.id: note for module in notable if (note := _note(model, module))}
    return ModelContents(model=model, counts=count(model), notes=notes)


class ExplorerState:
    """The model and the run that are explored. Only the screen changes it."""

    def __init__(
        self,
        run: RunRecord,
        model: Model,
        *,
        live: LiveModel | None = None,
        comparison: ModelDiff | None = None,
        failure: Failure | None = None,
        reports: Sequence[ReportRecord] = (),
        maps: MapSource | None = None,
        is_run: bool = False,
    ) -> None:
        self.run = run
        self.reports = tuple(reports)
        """What other verbs found out about the model."""
        self.maps = maps
        self.is_run = is_run
        """Whether it is a training, maybe one without steps yet."""
        self.overview: TrainingOverview | None = None
        self.heat_map: HeatMap | None = None
        self.heat_statistics: Sequence[Statistic] = ()
        """The statistics of which there is a heat map."""
        self.failure = failure
        """The forward that raised, if one did."""
        self.values_checked: bool | None = None if live is None else False
        """Whether all weights were checked; None if there are no values to check."""
        self._bad_values: tuple[Finding, ...] = ()
        self.live = live
        self.comparison = comparison
        self.side_by_side = False
        """Whether there is room for the trees of both models of a comparison."""
        self.step = -1
        self._series: dict[str, list[Series]] = {}
        self._points: dict[SeriesId, Points] = {}
        self._histograms: dict[SeriesId, Histograms] = {}
        self._documents: Mapping[type[Document], Document] = {}
        self._traced: TracedForward | None = None
        self.take_model(model)

    def take_model(self, model: Model) -> None:
        """Explore another model: a run may report it later. It is not counted yet."""
        self.model = model
        self.outline = Outline(model)
        self.contents: ModelContents | None = None
        self.__dict__.pop("repeats", None)

    def counts(self, module: Module) -> ModuleCounts | None:
        """The counts of a module; None until the model is counted."""
        return None if self.contents is None else self.contents.counts[module.id]

    def devices(self, module: Module) -> tuple[str, ...]:
        return () if self.contents is None else self.contents.devices[_own(module)]

    def dtypes(self, module: Module) -> tuple[str, ...]:
        return () if self.contents is None else self.contents.dtypes[_own(module)]

    def note(self, module: Module) -> str:
        """A problem of the module, or where it is shared; it starts with its mark."""
        if worst := self._worst_finding(module):
            return f"{SEVERITY_MARKS[worst.severity][0]} {worst.message}"
        return "" if self.contents is None else self.contents.notes.get(module.id, "")

    def note_style(self, module: Module) -> str:
        """The style of the note, by how bad it is."""
        if worst := self._worst_finding(module):
            return SEVERITY_MARKS[worst.severity][1]
        return "problem" if module.problem else "note"

    def problems_below(self, modules: Iterable[Module]) -> ProblemsBelow | None:
        """The problems inside some modules, without their own; notes are not counted."""
        found = [one for module in modules for one in self._findings_below.get(module.path, ())]
        if not found:
            return None
        worst = min((one.severity for one in found), key=_SEVERITIES.index)
        return ProblemsBelow(len(found), SEVERITY_MARKS[worst][1])

    @property
    def has_problems_below(self) -> bool:
        return bool(self._findings_below)

    def _worst_finding(self, module: Module) -> Finding | None:
        found = self._findings_by_path.get(module.path, ())
        return min(found, key=lambda one: _SEVERITIES.index(one.severity), default=None)

    def has_notes(self) -> bool:
        return bool(self.findings() or (self.contents and self.contents.notes))

    @cached_property
    def repeats(self) -> Mapping[ModuleId, tuple[ModuleId, ...]]:
        """Consecutive modules of the same build, by the first: the blocks of a transformer."""
        model = self.model
        build = builds(model)
        runs = (run for module in model.modules for run in alike(model, module.children, build))
        return {run[0]: run for run in runs if len(run) > 1 and not self._differs(run)}

    def _differs(self, run: Iterable[ModuleId]) -> bool:
        """Whether one of these modules, or a module below it, differs in the comparison."""
        if self.comparison is None:
            return False
        paths = [self.model[one].path for one in run]
        return any(
            path in self.comparison.changes or path in self.comparison.below for path in paths
        )

    def change_style(self, module: Module) -> str:
        """The color of a module in a comparison: what was done to it, or how far its values moved.

        A module that did not change itself has a paler color of the largest change below it.
        """
        if self.comparison is None:
            return "name"
        change = self.comparison.changes.get(module.path)
        if change is not None and change.verdict != "changed":
            return change.verdict
        if change is not None and not change.has_only_values:
            return "changed"
        if change is not None:
            return _distance_style(change.distance)
        return self._styles_below.get(module.id, "muted")

    @cached_property
    def _styles_below(self) -> Mapping[ModuleId, str]:
        """The style of modules with changes below them only."""
        assert self.comparison is not None
        found: dict[ModuleId, float] = {}
        for module in reversed(self.model.modules):
            change = self.comparison.changes.get(module.path)
            here = found.get(module.id, -1.0)
            if change is not None:
                size = change.distance if change.has_only_values else 0.0
                here = max(here, np.inf if size is None or np.isnan(size) else size)
            if here >= 0 and module.parent is not None:
                found[module.parent] = max(found.get(module.parent, -1.0), here)
        return {top: _distance_style(size) if size else "warning" for top, size in found.items()}

    def learn(
        self,
        step: int,
        series: Iterable[Series],
        news: Iterable[Points],
        histograms: Iterable[Histograms] = (),
    ) -> None:
        self.step = step
        for one in series:
            self._series.setdefault(one.path, []).append(one)
        for points in news:
            known = self._points.get(points.series.id)
            parts = [points] if known is None else [known, points]
            self._points[points.series.id] = replace(
                points,
                steps=np.concatenate([part.steps for part in parts]),
                values=np.concatenate([part.values for part in parts]),
            )
        for bins in histograms:
            before = self._histograms.get(bins.series.id)
            steps = bins.steps if before is None else np.concatenate([before.steps, bins.steps])
            all_bins = [*(before.bins if before else ()), *bins.bins]
            self._histograms[bins.series.id] = replace(bins, steps=steps, bins=all_bins)

    def take_documents(self, documents: Mapping[type[Document], Document]) -> None:
        self._documents = documents
        self._forget_derived()

    def take_checked(self, found: Iterable[Finding] | None) -> None:
        """Keep the weights that contain NaN or Inf; None if there are no values to check."""
        self.values_checked = None if found is None else True
        self._bad_values = tuple(found or ())
        self._forget_derived()

    def document(self, kind: type[D]) -> D | None:
        """The record of this class; the same object until another one is read."""
        return cast(D | None, self._documents.get(kind))

    def _forget_derived(self) -> None:
        for name in (
            *("measures", "statistics", "_activities", "_known_fields"),
            *("_findings_by_path", "_findings_below"),
        ):
            self.__dict__.pop(name, None)

    @cached_property
    def measures(self) -> Mapping[str, ModuleMeasure]:
        """By module."""
        found = self.document(Measures)
        return {row.path: row for row in found.rows} if found else {}

    @cached_property
    def statistics(self) -> Mapping[str, ModuleStatistics]:
        """By module."""
        found = self.document(Statistics)
        return {module.path: module for module in found.modules} if found else {}

    @property
    def traced_forward(self) -> TracedForward | None:
        """The same object while the trace is the same."""
        trace = self.document(TraceRecord)
        if trace is None:
            return None
        if self._traced is None or self._traced.trace is not trace:
            self._traced = TracedForward(trace)
        return self._traced

    @cached_property
    def _activities(self) -> Mapping[str, ModuleActivity]:
        return module_activities(self._documents)

    def activity(self, module: Module) -> ModuleActivity:
        return self._activities.get(self.path_of_calls(module), _NO_ACTIVITY)

    @cached_property
    def _known_fields(self) -> set[str]:
        flows = self._activities.values()
        names = ModuleActivity.__dataclass_fields__
        return {
            name for name in names if any(getattr(one, name) not in (None, ()) for one in flows)
        }

    def has_activity(self, field: str) -> bool:
        """Whether this field is known of any module."""
        return field in self._known_fields

    def path_of_calls(self, module: Module) -> str:
        """The path under which a module's calls are recorded: the first one of a shared module."""
        return module.path if module.alias_of is None else self.model[module.alias_of].path

    def findings(self) -> Sequence[Finding]:
        found = self.document(Findings)
        return (*self._bad_values, *(found.findings if found else ()))

    @cached_property
    def _findings_by_path(self) -> Mapping[str, Sequence[Finding]]:
        return _by_path(self.findings())

    @cached_property
    def _findings_below(self) -> Mapping[str, Sequence[Finding]]:
        """The problems inside each module that has any inside."""
        found: dict[str, list[Finding]] = {}
        for one in self.findings():
            if one.path and one.severity != "info":
                for above in (*paths_above(one.path), ""):
                    found.setdefault(above, []).append(one)
        return found

    def has_series(self) -> bool:
        return bool(self._series)

    def all_series(self) -> Sequence[Series]:
        return [one for series in self._series.values() for one in series]

    def series_at(self, module: Module) -> Sequence[Series]:
        return self._series.get(module.path, ())

    def has_trends(self) -> bool:
        return any(_is_gradient(one) for one in self.all_series())

    def trend(self, module: Module) -> Series | None:
        return next(filter(_is_gradient, self.series_at(module)), None)

    def points(self, series: Series) -> Points | None:
        return self._points.get(series.id)

    def histograms(self, series: Series) -> Histograms | None:
        return self._histograms.get(series.id)

    def values(self, series: Series) -> npt.NDArray[np.float64]:
        """The values of a series, or the standard deviation of what it summarizes."""
        points = self._points.get(series.id)
        return np.empty(0) if points is None else points.column(moving(series))


def _distance_style(distance: float | None) -> str:
    """A hotter color for a larger change of values, in steps of about ten."""
    if distance is None or not np.isfinite(distance):
        return "problem"
    return f"heat{sum(distance >= limit for limit in (1e-3, 1e-2, 1e-1, 0.5))}"


def _own(module: Module) -> ModuleId:
    return module.id if module.alias_of is None else module.alias_of


def moving(series: Series) -> str:
    """The column of a series' points that is drawn as a line."""
    return "value" if series.kind == "scalar" else "std"


def tied_to(model: Model, module: Module, slot: Slot) -> list[str]:
    """The other names of this slot's tensor."""
    own = join_path(module.path, slot.name)
    return [place for place in model.tied.get(slot.tensor, ()) if place != own]


def _note(model: Model, module: Module) -> str:
    if module.problem:
        return f"{LOST} {module.problem}"
    if module.alias_of is not None:
        return f"{SHARED} {model[module.alias_of].path or 'the model itself'}"
    others = (place for slot in module.slots for place in tied_to(model, module, slot))
    first = next(others, "")
    return f"{TIED} {first}" if first else ""


def _is_gradient(series: Series) -> bool:
    """Whether it is the gradient of a parameter, not of an input or output."""
    place, dot, last = series.name.rpartition(".")
    side = place.rpartition(":")[2].partition(".")[0]
    return bool(dot) and last == "grad" and side not in ("input", "output")
