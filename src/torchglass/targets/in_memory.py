"""Records in memory and results of verbs as readers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torchglass.analyse.module_measures import measures
from torchglass.records.calls import CallTensor, ForwardStats, ModuleStatistics, Statistics, Totals
from torchglass.records.model import Model
from torchglass.records.reader import Document, Reader
from torchglass.records.run import RunRecord
from torchglass.records.trace import Value

if TYPE_CHECKING:
    from torchglass.results.trace import Trace


def hold(model: Model, *documents: Document) -> Reader:
    """A model and its documents as a finished run, so that a view does not wait for more."""
    from torchglass.store.memory import MemoryStore

    store = MemoryStore(RunRecord(name=model.name, created_ns=time.time_ns()))
    store.put_model(model)
    for document in documents:
        store.put_document(document)
    store.close()
    return store


def reader_of_result(target: object) -> Reader | None:
    """A reader of the result of another verb; None for anything else."""
    from torchglass.results.memory import Memory
    from torchglass.results.profile import Profile
    from torchglass.results.run import SavedRun
    from torchglass.results.summary import Summary
    from torchglass.results.trace import Trace

    if isinstance(target, SavedRun):
        return target.reader
    if isinstance(target, Summary):
        return hold(target.model)
    if isinstance(target, Trace):
        return hold(target.model, target.record, *_values_of(target))
    if isinstance(target, Memory):
        return hold(target.model, target.footprint)
    if isinstance(target, Profile):
        return hold(target.model, measures(target.rows, {}, {}, target.timing.notes))
    return None


def _values_of(trace: Trace) -> list[Statistics]:
    """The statistics of a trace's saved tensors, if it has any.

    A part for each module that ran, and one for each op, whose path is "op:" and its number.
    """
    record = trace.record
    kept = {op for op, _ in trace.saved_tensors}
    if not kept:
        return []

    def measured(value: Value) -> CallTensor:
        # Only the first output of an op is measured.
        op = None if value.output else value.op
        stats = trace.stats(op) if op in kept and op is not None else None
        return CallTensor(place=value.place, spec=value.spec, stats=stats)

    calls: dict[tuple[str, str], list[ForwardStats]] = {}
    for call in record.calls:
        known = trace.model.find(call.path)
        class_name = known.class_name.rpartition(".")[2] if known is not None else ""
        one = ForwardStats(
            path=call.path,
            number=call.number,
            forward=1,
            inputs=tuple(map(measured, call.inputs)),
            outputs=tuple(map(measured, call.outputs)),
            start_ns=call.start_ns,
            total_ns=call.total_ns,
        )
        calls.setdefault((call.path, class_name), []).append(one)
    for op in (op for op in record.ops if op.kind == "op" and op.id in kept and op.outputs):
        out = CallTensor(place="", spec=op.outputs[0].spec, stats=trace.stats(op.id))
        place, taken = f"op:{op.id}", op.end_ns - op.start_ns
        one = ForwardStats(path=place, number=1, forward=1, outputs=(out,), total_ns=taken)
        calls[place, op.function] = [one]
    return [
        Statistics(
            modules=tuple(
                ModuleStatistics(
                    path=path,
                    class_name=class_name,
                    calls=tuple(all_calls),
                    totals=Totals(
                        calls=len(all_calls), total_ns=sum(one.total_ns for one in all_calls)
                    ),
                )
                for (path, class_name), all_calls in calls.items()
            )
        )
    ]
