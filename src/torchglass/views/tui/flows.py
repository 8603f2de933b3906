"""What is known of the runs of each module, whichever records of the run tell it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from torchglass.records.documents import Document
from torchglass.records.measures import Measures, ModuleMeasure
from torchglass.records.statistics import ModuleStatistics, Statistics
from torchglass.records.tensors import TensorSpec
from torchglass.records.trace import Call, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
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


def flows(documents: Mapping[type[Document], Document]) -> dict[str, Flow]:
    """The flow of each module that ran, by path: measures over statistics over a trace."""
    found: dict[str, Flow] = {}
    trace = cast(Trace | None, documents.get(Trace))
    if trace:
        found = _of_calls(trace.calls)
    statistics = cast(Statistics | None, documents.get(Statistics))
    for module in statistics.modules if statistics else ():
        found[module.path] = _with_statistics(found.get(module.path, Flow()), module)
    measures = cast(Measures | None, documents.get(Measures))
    for row in measures.rows if measures else ():
        found[row.path] = _with_measure(found.get(row.path, Flow()), row)
    return found


def _of_calls(calls: Iterable[Call]) -> dict[str, Flow]:
    found: dict[str, Flow] = {}
    for call in calls:
        before = found.get(call.path, Flow(calls=0, total_ns=0))
        found[call.path] = Flow(
            inputs=tuple(value.spec for value in call.inputs),
            outputs=tuple(value.spec for value in call.outputs),
            calls=(before.calls or 0) + 1,
            total_ns=(before.total_ns or 0) + call.total_ns,
        )
    return found


def _with_statistics(flow: Flow, module: ModuleStatistics) -> Flow:
    last = module.calls[-1] if module.calls else None
    return replace(
        flow,
        inputs=tuple(one.spec for one in last.inputs) if last else flow.inputs,
        outputs=tuple(one.spec for one in last.outputs) if last else flow.outputs,
        calls=module.totals.calls,
        total_ns=module.totals.total_ns,
        self_ns=module.totals.self_ns,
    )


def _with_measure(flow: Flow, row: ModuleMeasure) -> Flow:
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
