"""What the panels show: a model, its tensors, and what its run has shown so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt

from torchglass.analyse.failure.failure import Failure
from torchglass.analyse.model_diff import Comparison
from torchglass.analyse.parameters import ModuleCounts, count
from torchglass.analyse.summary import alike, builds, kinds_below
from torchglass.records.attributes import LiveModel
from torchglass.records.calls import ModuleStatistics, Statistics
from torchglass.records.findings import Finding, Findings
from torchglass.records.measures import Measures, ModuleMeasure
from torchglass.records.model import Model, Module, ModuleId, Slot, join_path
from torchglass.records.reader import D, Document
from torchglass.records.run import RunRecord
from torchglass.records.series import Points, Series, SeriesId
from torchglass.records.tensors import Histograms, TensorSpec
from torchglass.records.trace import CallRecord, TraceRecord
from torchglass.views.formats import SAME_AS
from torchglass.views.tui.tree.rows import Outline


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleActivity:
    """What went through a module and what that took, all calls together. None is not measured."""

    inputs: tuple[TensorSpec, ...] = ()
    """Of its last call."""
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
    def mean_ns(self) -> float | None:
        """What one call took."""
        if self.total_ns is None or not self.calls:
            return None
        return self.total_ns / self.calls


def module_activities(documents: Mapping[type[Document], Document]) -> dict[str, ModuleActivity]:
    """The flow of each module that ran, by path: measures over statistics over a trace."""
    found: dict[str, ModuleActivity] = {}
    trace = cast(TraceRecord | None, documents.get(TraceRecord))
    if trace:
        found = _of_calls(trace.calls)
    statistics = cast(Statistics | None, documents.get(Statistics))
    for module in statistics.modules if statistics else ():
        found[module.path] = _with_statistics(found.get(module.path, ModuleActivity()), module)
    measures = cast(Measures | None, documents.get(Measures))
    for row in measures.rows if measures else ():
        found[row.path] = _with_measure(found.get(row.path, ModuleActivity()), row)
    return found


def _of_calls(calls: Iterable[CallRecord]) -> dict[str, ModuleActivity]:
    found: dict[str, ModuleActivity] = {}
    for call in calls:
        before = found.get(call.path, ModuleActivity(calls=0, total_ns=0))
        found[call.path] = ModuleActivity(
            inputs=tuple(value.spec for value in call.inputs),
            outputs=tuple(value.spec for value in call.outputs),
            calls=(before.calls or 0) + 1,
            total_ns=(before.total_ns or 0) + call.total_ns,
        )
    return found


def _with_statistics(flow: ModuleActivity, module: ModuleStatistics) -> ModuleActivity:
    last = module.calls[-1] if module.calls else None
    return replace(
        flow,
        inputs=tuple(one.spec for one in last.inputs) if last else flow.inputs,
        outputs=tuple(one.spec for one in last.outputs) if last else flow.outputs,
        calls=module.totals.calls,
        total_ns=module.totals.total_ns,
        self_ns=module.totals.self_ns,
    )


def _with_measure(flow: ModuleActivity, row: ModuleMeasure) -> ModuleActivity:
    timed = row.total_forward_ns is not None
    return replace(
        flow,
        outputs=flow.outputs or _specs(row),
        calls=row.calls or flow.calls,
        total_ns=row.total_forward_ns if timed else flow.total_ns,
        self_ns=row.self_forward_ns if timed else flow.self_ns,
        backward_ns=row.total_backward_ns,
        flops=row.total_forward_flops,
        self_flops=row.self_forward_flops,
        activation_bytes=row.total_activation_bytes,
        peak_bytes=row.total_peak_bytes,
    )


def _specs(row: ModuleMeasure) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(shape=shape, dtype="") for shape in row.output_shapes)


LOST, SHARED, TIED, FOUND = "!", SAME_AS, "=", "✗"
"""Marks of a module that could not be read, stands elsewhere too, shares a tensor, or is ill."""

_NO_ACTIVITY = ModuleActivity()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContents:
    """What takes a while to work out on a large model."""

    counts: Sequence[ModuleCounts]
    notes: Mapping[ModuleId, str]
    """What is out of the ordinary about some modules, each opening with its mark."""
    devices: Sequence[tuple[str, ...]]
    """Where the tensors in each branch are."""
    dtypes: Sequence[tuple[str, ...]]
    """Of which types the parameters in each branch are, or its buffers where it has none."""


def count_model(model: Model) -> ModelContents:
    """Count all modules, and note what is out of the ordinary about them."""
    notes = {module.id: note for module in _notable(model) if (note := _note(model, module))}
    return ModelContents(
        counts=count(model),
        notes=notes,
        devices=kinds_below(model, lambda slot: slot.spec.device, of_all=True),
        dtypes=kinds_below(model, lambda slot: slot.spec.dtype),
    )


class ExplorerState:
    """What is looked at. The screen changes it, and every panel reads the same one."""

    def __init__(
        self,
        run: RunRecord,
        model: Model,
        *,
        live: LiveModel | None = None,
        comparison: Comparison | None = None,
        failure: Failure | None = None,
    ) -> None:
        self.run = run
        self.failure = failure
        """The forward that raised, if one did."""
        self.values_checked: bool | None = None if live is None else False
        """Whether the values of all weights were looked at; None where there are none to see."""
        self._bad_values: tuple[Finding, ...] = ()
        self.live = live
        self.comparison = comparison
        self.step = -1
        self._series: dict[str, list[Series]] = {}
        self._points: dict[SeriesId, Points] = {}
        self._histograms: dict[SeriesId, Histograms] = {}
        self._documents: Mapping[type[Document], Document] = {}
        self._about = _RunRecords(self._documents, ())
        self.take_model(model)

    def take_model(self, model: Model) -> None:
        """Look at another model, which a run may have after a while; nothing is counted yet."""
        self.model = model
        self.outline = Outline(model)
        self.contents: ModelContents | None = None
        self.__dict__.pop("repeats", None)

    def counts(self, module: Module) -> ModuleCounts | None:
        """What a module holds; None as long as it is being counted."""
        return None if self.contents is None else self.contents.counts[module.id]

    def devices(self, module: Module) -> tuple[str, ...]:
        """Where the tensors of a module and of all in it are; () as long as they are counted."""
        return () if self.contents is None else self.contents.devices[_own(module)]

    def dtypes(self, module: Module) -> tuple[str, ...]:
        """Of which types the parameters of a module and of all in it are."""
        return () if self.contents is None else self.contents.dtypes[_own(module)]

    def note(self, module: Module) -> str:
        """What is out of the ordinary about a module, opening with its mark."""
        findings = self.findings_at(module.path)
        if findings:
            return f"{FOUND} {findings[0].message}"
        return "" if self.contents is None else self.contents.notes.get(module.id, "")

    def has_notes(self) -> bool:
        """Whether anything is out of the ordinary."""
        return bool(self._about.findings or (self.contents and self.contents.notes))

    @cached_property
    def repeats(self) -> Mapping[ModuleId, tuple[ModuleId, ...]]:
        """Neighbours that are built alike, by the first of them: the blocks of a transformer."""
        model = self.model
        build = builds(model)
        runs = (run for module in model.modules for run in alike(model, module.children, build))
        return {run[0]: run for run in runs if len(run) > 1 and not self._differs(run)}

    def _differs(self, run: Iterable[ModuleId]) -> bool:
        """Whether a comparison tells something of one of these modules or of what is in it."""
        if self.comparison is None:
            return False
        paths = [self.model[one].path for one in run]
        return any(
            path in self.comparison.changes or path in self.comparison.below for path in paths
        )

    def learn(
        self,
        step: int,
        series: Iterable[Series],
        news: Iterable[Points],
        histograms: Iterable[Histograms] = (),
    ) -> None:
        """Take in what was read since the last time."""
        self.step = step
        for one in series:
            self._series.setdefault(one.path, []).append(one)
        for points in news:
            known = self._points.get(points.series.id)
            self._points[points.series.id] = points if known is None else _joined(known, points)
        for bins in histograms:
            before = self._histograms.get(bins.series.id)
            self._histograms[bins.series.id] = bins if before is None else _appended(before, bins)

    def take_documents(self, documents: Mapping[type[Document], Document]) -> None:
        """Look at these records of the run from now on."""
        self._documents = documents
        self._about = _RunRecords(documents, self._bad_values)

    def take_checked(self, found: Iterable[Finding] | None) -> None:
        """Take in the weights that contain NaN or Inf; None says that no values are there."""
        self.values_checked = None if found is None else True
        self._bad_values = tuple(found or ())
        self._about = _RunRecords(self._documents, self._bad_values)

    def document(self, kind: type[D]) -> D | None:
        """The record of this class, the same object until another one is read."""
        return cast(D | None, self._documents.get(kind))

    def measured(self, path: str) -> ModuleMeasure | None:
        """What a module took to run; None where that was not measured."""
        return self._about.measures.get(path)

    def statistics(self, path: str) -> ModuleStatistics | None:
        """What went through a module; None where that was not recorded."""
        return self._about.statistics.get(path)

    def activity(self, module: Module) -> ModuleActivity:
        """What went through a module and what that took, as far as it is known."""
        return self._about.flows.get(self.path_of_calls(module), _NO_ACTIVITY)

    def path_of_calls(self, module: Module) -> str:
        """The path under which the calls of a module are recorded: of a shared one the first."""
        return module.path if module.alias_of is None else self.model[module.alias_of].path

    def has_activity(self, field: str) -> bool:
        """Whether anything of the run tells this field of a flow."""
        return field in self._about.flow_fields

    def findings(self) -> Sequence[Finding]:
        """The problems that were found, in the order in which they came up."""
        return self._about.all_findings

    def findings_at(self, path: str) -> Sequence[Finding]:
        """The problems that were found at a module."""
        return self._about.findings.get(path, ())

    def has_series(self) -> bool:
        """Whether anything was measured over steps."""
        return bool(self._series)

    def all_series(self) -> Sequence[Series]:
        """Everything that is measured over steps."""
        return [one for series in self._series.values() for one in series]

    def series_at(self, module: Module) -> Sequence[Series]:
        """What is measured at one module."""
        return self._series.get(module.path, ())

    def has_trends(self) -> bool:
        """Whether the gradient of any parameter was measured over steps."""
        return any(_is_gradient(one) for one in self.all_series())

    def trend(self, module: Module) -> Series | None:
        """The gradient of a module's first parameter over steps."""
        return next(filter(_is_gradient, self.series_at(module)), None)

    def points(self, series: Series) -> Points | None:
        """What was read of a series so far; None before anything was."""
        return self._points.get(series.id)

    def histograms(self, series: Series) -> Histograms | None:
        """The histograms of a series; None where there are none, or none were read."""
        return self._histograms.get(series.id)

    def values(self, series: Series) -> npt.NDArray[np.float64]:
        """How a series moves: its values, or the spread of what it sums up."""
        points = self._points.get(series.id)
        return np.empty(0) if points is None else points.column(moving(series))


class _RunRecords:
    """The records of a run by the module that they speak of."""

    def __init__(
        self, documents: Mapping[type[Document], Document], bad_values: tuple[Finding, ...]
    ) -> None:
        self._documents = documents
        self._bad_values = bad_values

    @cached_property
    def measures(self) -> Mapping[str, ModuleMeasure]:
        found = cast(Measures | None, self._documents.get(Measures))
        return {row.path: row for row in found.rows} if found else {}

    @cached_property
    def statistics(self) -> Mapping[str, ModuleStatistics]:
        found = cast(Statistics | None, self._documents.get(Statistics))
        return {module.path: module for module in found.modules} if found else {}

    @cached_property
    def flows(self) -> Mapping[str, ModuleActivity]:
        return module_activities(self._documents)

    @cached_property
    def flow_fields(self) -> set[str]:
        fields = ModuleActivity.__dataclass_fields__
        return {
            name
            for name in fields
            if any(getattr(flow, name) not in (None, ()) for flow in self.flows.values())
        }

    @cached_property
    def all_findings(self) -> Sequence[Finding]:
        found = cast(Findings | None, self._documents.get(Findings))
        return (*self._bad_values, *(found.findings if found else ()))

    @cached_property
    def findings(self) -> Mapping[str, Sequence[Finding]]:
        by_path: dict[str, list[Finding]] = {}
        for finding in self.all_findings:
            by_path.setdefault(finding.path, []).append(finding)
        return by_path


def _own(module: Module) -> ModuleId:
    """The module itself, or the one that it is another name of."""
    return module.id if module.alias_of is None else module.alias_of


def moving(series: Series) -> str:
    """The number of a series' points that is worth a line."""
    return "value" if series.kind == "scalar" else "std"


def tied_to(model: Model, module: Module, slot: Slot) -> list[str]:
    """The other slots that hold the very tensor of this one."""
    own = join_path(module.path, slot.name)
    return [place for place in model.tied.get(slot.tensor, ()) if place != own]


def _notable(model: Model) -> list[Module]:
    """The modules that may be out of the ordinary."""
    tied = model.tied
    return [
        module
        for module in model.modules
        if module.problem
        or module.alias_of is not None
        or (tied and any(slot.tensor in tied for slot in module.slots))
    ]


def _note(model: Model, module: Module) -> str:
    if module.problem:
        return f"{LOST} {module.problem}"
    if module.alias_of is not None:
        return f"{SHARED} {model[module.alias_of].path or 'the model itself'}"
    others = (place for slot in module.slots for place in tied_to(model, module, slot))
    first = next(others, "")
    return f"{TIED} {first}" if first else ""


def _is_gradient(series: Series) -> bool:
    """Whether it is the gradient of a parameter, and not of what goes through a module."""
    place, dot, last = series.name.rpartition(".")
    side = place.rpartition(":")[2].partition(".")[0]
    return bool(dot) and last == "grad" and side not in ("input", "output")


def _joined(known: Points, new: Points) -> Points:
    return replace(
        known,
        steps=np.concatenate([known.steps, new.steps]),
        values=np.concatenate([known.values, new.values]),
    )


def _appended(known: Histograms, new: Histograms) -> Histograms:
    return replace(
        known, steps=np.concatenate([known.steps, new.steps]), bins=[*known.bins, *new.bins]
    )
