"""The result of a verb as a reader, so that explorer, page and comparison can show it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchglass.errors import LookupFailedError
from torchglass.records.calls import CallTensor, ForwardStats, Statistics, statistics_of
from torchglass.records.model import Activations, Model
from torchglass.records.run import Reader
from torchglass.records.trace import CallId, OpId, Value
from torchglass.results.feature_maps import ATTENTION
from torchglass.results.report import Report
from torchglass.results.tree_record import measures
from torchglass.targets.readers import hold

if TYPE_CHECKING:
    from torchglass.results.trace import Trace


def reader_of_result(target: object, *, pictures: bool = False) -> Reader | None:
    """A reader of the result of another verb; None for anything else.

    With `pictures`, that of a trace has images of the outputs that it saved.
    """
    from torchglass.results.comparison import Comparison
    from torchglass.results.flops import Flops
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
        images = _pictures_of(target) if pictures else []
        return hold(target.model, target.record, *_values_of(target), *images)
    if isinstance(target, Memory):
        return hold(target.model, target.footprint)
    if isinstance(target, Profile):
        return hold(target.model, measures(target.rows, {}, {}, target.timing.notes))
    if isinstance(target, Flops):
        return hold(target.model, measures({}, target.rows, {}, target.work.notes))
    if isinstance(target, Comparison):
        # What the run is called; the tree of both models has its own name.
        both = target.structure
        return hold(replace(both.model, name=target.title)) if both is not None else None
    model = getattr(target, "model", None) if isinstance(target, Report) else None
    return hold(model) if isinstance(model, Model) else None


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
                statistics_of(path, all_calls, class_name)
                for (path, class_name), all_calls in calls.items()
            )
        )
    ]


def _pictures_of(trace: Trace) -> list[Activations]:
    """Images of the outputs of modules, and of the weights of attention, that a trace saved."""
    if not trace.saved_tensors:
        return []
    from torchglass.capture.watch.activations import MOST_PICTURES, picture_of

    found = [
        picture
        for path, name, tensor in itertools.islice(_tensors_to_picture(trace), MOST_PICTURES)
        if (picture := picture_of(path, name, tensor)) is not None
    ]
    return [Activations(maps=tuple(found))] if found else []


def _tensors_to_picture(trace: Trace) -> Iterator[tuple[str, str, Any]]:
    """The path, name and tensor of each image, in the order of the calls."""
    import torch

    attention: dict[CallId | None, list[OpId]] = {}
    for one in trace.record.ops:
        if one.function == ATTENTION:
            attention.setdefault(one.call, []).append(one.id)
    for call in trace.record.calls:
        for number, value in enumerate(call.outputs):
            if value.op is None or call.number > 1:
                continue
            tensor = trace.saved_tensors.get((value.op, value.output))
            if tensor is not None and tensor.dim() > 1:
                yield call.path, f"output.{number}" if len(call.outputs) > 1 else "output", tensor
        for op in attention.get(call.id, ()):
            # Query or key may not be saved, or were made outside of the trace.
            with contextlib.suppress(LookupFailedError):
                maps = trace.ops[op].attention().maps
                yield call.path, "attention weights (recomputed)", torch.from_numpy(maps)[None]
