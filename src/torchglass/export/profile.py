"""A profile as JSON: every time of every run, in nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchglass.analyse.latency import Latency, ModuleTime, Times
from torchglass.records.model import Model
from torchglass.records.timing import Timing
from torchglass.records.trace import Call


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


def _module(
    time: ModuleTime, found: Latency, model: Model, first_calls: Mapping[str, Call]
) -> dict[str, Any]:
    assert time.path is not None
    module, call = model.find(time.path), first_calls.get(time.path)
    return {
        "path": time.path,
        "class": None if module is None else module.class_name,
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
