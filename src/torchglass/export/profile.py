"""A profile as JSON and as comma-separated values, all times in nanoseconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchglass.analyse.latency import Latency, ModuleTime, Times
from torchglass.export.modules import class_of, first_cells
from torchglass.export.texts import csv_text
from torchglass.records.model import Model
from torchglass.records.timing import Timing
from torchglass.records.trace import Call

_NUMBERS = ("self_ns", "total_ns", "share", "self_cpu_ns", "total_cpu_ns", "median_ns")
_HEADINGS = (*_NUMBERS, "lower_quartile_ns", "upper_quartile_ns")


def profile_dict(
    model: Model, calls: Sequence[Call], timing: Timing, found: Latency
) -> dict[str, Any]:
    """A profile as dicts, lists, strings and numbers."""
    first_calls = {call.path: call for call in reversed(calls)}
    return {
        "model": model.name,
        "clock": timing.clock,
        "threads": timing.threads,
        "warmup": timing.warmup,
        "repeats": len(timing.runs),
        "published": timing.published,
        "total_ns": found.root.total_ns,
        "loss_ns": found.loss_ns,
        "busy": found.busy,
        "overhead": found.overhead,
        "notes": list(timing.notes),
        "modules": [_module(time, found, model, first_calls) for time in found.modules.values()],
        "unattributed": _stages(found.unattributed, found),
        "ops": [
            {"op": op.op, "path": op.path, "calls": op.calls, **_stages(op, found)}
            for op in found.ops
        ],
    }


def profile_csv(model: Model, found: Latency) -> str:
    """A line for each module that ran, and a last one for what no module owns."""
    headings = (f"{stage}_{name}" for stage in ("forward", "backward") for name in _HEADINGS)
    every = (*found.modules.values(), found.unattributed)
    lines = ([*first_cells(time, model), time.calls, *_cells(time, found)] for time in every)
    return csv_text(["path", "class", "calls", *headings], lines)


def _cells(time: ModuleTime, found: Latency) -> Iterator[Any]:
    """The numbers of both stages; none of a stage that a module had no part in."""
    for stage in _stages(time, found).values():
        if stage is None:
            yield from [None] * len(_HEADINGS)
        else:
            yield from (stage[name] for name in _NUMBERS)
            yield from stage["spread_ns"]


def _module(
    time: ModuleTime, found: Latency, model: Model, first_calls: Mapping[str, Call]
) -> dict[str, Any]:
    assert time.path is not None
    call = first_calls.get(time.path)
    return {
        "path": time.path,
        "class": class_of(time, model),
        "calls": time.calls,
        "outputs": [value.spec.shape and list(value.spec.shape) for value in call.outputs]
        if call
        else [],
        **_stages(time, found),
    }


def _stages(time: ModuleTime, found: Latency) -> dict[str, Any]:
    root = found.root
    return {
        "forward": _times(time.forward, root.forward),
        "backward": _times(time.backward, root.backward),
    }


def _times(times: Times | None, root: Times | None) -> dict[str, Any] | None:
    if times is None:
        return None
    return {
        "self_ns": times.self_ns,
        "total_ns": times.total_ns,
        "self_cpu_ns": times.cost.self_cpu_ns,
        "total_cpu_ns": times.cost.total_cpu_ns,
        "share": times.total_ns / root.total_ns if root and root.total_ns else None,
        "median_ns": times.median_ns,
        "spread_ns": list(times.spread_ns),
        "median_self_ns": times.median_self_ns,
        "self_spread_ns": list(times.self_spread_ns),
        "runs_ns": [cost.total_ns for cost in times.runs],
    }
