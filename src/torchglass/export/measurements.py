"""FLOPs, memory, profiles and statistics as JSON and CSV."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torchglass.analyse.flops import Amount, FlopReport, ModuleFlops, OpFlops
from torchglass.analyse.latency import Latency, ModuleTime, Times
from torchglass.analyse.memory import Held, MemoryReport, ModuleMemory
from torchglass.analyse.module_rows import Measured, full_name
from torchglass.records.calls import FLAT_NAMES, ForwardStats
from torchglass.records.json_data import to_json_data
from torchglass.records.measures import Footprint
from torchglass.records.model import Model
from torchglass.records.timing import Timing
from torchglass.records.trace import CallRecord
from torchglass.tables.files import csv_text, typed_shape


def class_of(measured: Measured, model: Model) -> str | None:
    """The full name of a module's class; None for one made as the model ran, and for no module."""
    module = None if measured.path is None else model.find(measured.path)
    return None if module is None else module.class_name


def first_cells(measured: Measured, model: Model) -> tuple[str, str | None]:
    """What a line of CSV begins with: a word for the module, as tables have it, and its class."""
    return full_name(measured.path, model), class_of(measured, model)


HEADINGS = (
    "path",
    "class",
    "calls",
    "forward_flops",
    "forward_self_flops",
    "backward_flops",
    "backward_self_flops",
    "recomputed_flops",
    "total_flops",
    "total_macs",
    "bytes",
    "flops_per_byte",
    "uncounted_calls",
    "time_ns",
    "flops_per_second",
    "share",
)
CONVENTION = "1 multiply-add = 2 FLOPs = 1 MAC"


def flops_dict(report: FlopReport) -> dict[str, Any]:
    """A report as dicts, lists, strings and numbers."""
    return {
        "model": report.model.name,
        "convention": CONVENTION,
        "backward": report.work.backward,
        "fake": report.work.fake,
        "total_flops": report.total_flops,
        "total_macs": report.total_macs,
        "forward_flops": report.forward_flops,
        "backward_flops": report.backward_flops,
        "recomputed_flops": report.recomputed_flops,
        "is_lower_bound": report.is_lower_bound,
        "uncounted": [_op(op, report) for op in report.uncounted],
        "uncounted_share": report.uncounted_share,
        "bytes": report.total_bytes,
        "flops_per_byte": report.intensity,
        "flops_per_second": report.flops_per_second,
        "notes": list(report.work.notes),
        "modules": [_module(module, report) for module in report.rows.values()],
        "unattributed": _module(report.unattributed, report),
        "ops": [_op(op, report) for op in report.ops],
    }


def flops_csv(report: FlopReport) -> str:
    """A line for each module, and a last one for what is no module's."""
    every = (*report.rows.values(), report.unattributed)
    return csv_text(HEADINGS, (_cells(module, report) for module in every))


def _cells(module: ModuleFlops, report: FlopReport) -> tuple[Any, ...]:
    return (
        *first_cells(module, report.model),
        module.calls,
        module.forward.total_flops,
        module.forward.self_flops,
        module.backward.total_flops,
        module.backward.self_flops,
        module.recomputed_flops,
        module.total_flops,
        module.total_flops // 2,
        module.total_bytes,
        module.intensity,
        module.uncounted_calls,
        report.time_ns(module),
        report.speed(module),
        module.total_flops / report.total_flops if report.total_flops else None,
    )


def _module(module: ModuleFlops, report: FlopReport) -> dict[str, Any]:
    return {
        "path": module.path,
        "class": class_of(module, report.model),
        "calls": module.calls,
        "forward": _amount(module.forward),
        "backward": _amount(module.backward),
        "recomputed_flops": module.recomputed_flops,
        "flops_per_byte": module.intensity,
        "uncounted_calls": module.uncounted_calls,
        "time_ns": report.time_ns(module),
        "flops_per_second": report.speed(module),
        "ops": [_op(op, report) for op in module.ops],
    }


def _amount(amount: Amount) -> dict[str, int]:
    return {
        "self_flops": amount.self_flops,
        "total_flops": amount.total_flops,
        "self_bytes": amount.self_bytes,
        "total_bytes": amount.total_bytes,
    }


def _op(op: OpFlops, report: FlopReport) -> dict[str, Any]:
    return {
        **to_json_data(op),
        "total_flops": op.total_flops,
        "flops_per_byte": op.intensity,
        "flops_per_second": op.flops_per_second,
        "share": report.share([op]),
    }


_FIELDS = tuple(field.name for field in dataclasses.fields(Held))


def memory_dict(model: Model, footprint: Footprint, report: MemoryReport) -> dict[str, Any]:
    """The report and, as "footprint", the record that it was read from."""
    return {
        "model": model.name,
        "device": report.device,
        "fake": footprint.fake,
        "optimizer": footprint.optimizer,
        "peak_bytes": report.peak_bytes,
        "before_bytes": report.before_bytes,
        "allocator_peak_bytes": report.allocator_peak_bytes,
        "peak": None if report.peak is None else report.peak._asdict(),
        "sizes": dict(report.sizes),
        "peak_holders": [dataclasses.asdict(holder) for holder in report.peak_holders],
        "modules": [_memory_module(memory, model) for memory in report.modules.values()],
        "unattributed": dataclasses.asdict(report.unattributed.own),
        "ops": [dataclasses.asdict(op) for op in report.ops],
        "notes": list(footprint.notes),
        "footprint": to_json_data(footprint),
    }


def memory_csv(model: Model, report: MemoryReport) -> str:
    """A line for each module, and a last one for what no module made."""
    headings = ["path", "class", *_FIELDS, *(f"own_{name}" for name in _FIELDS), "peak_share"]
    every = (*report.modules.values(), report.unattributed)
    return csv_text(headings, (_memory_cells(memory, model, report.peak_bytes) for memory in every))


def _memory_cells(memory: ModuleMemory, model: Model, peak_bytes: int) -> list[Any]:
    sizes = (getattr(side, name) for side in (memory.total, memory.own) for name in _FIELDS)
    share = memory.total.peak_bytes / peak_bytes if peak_bytes else None
    return [*first_cells(memory, model), *sizes, share]


def _memory_module(memory: ModuleMemory, model: Model) -> dict[str, Any]:
    return {
        "path": memory.path,
        "class": class_of(memory, model),
        "own": dataclasses.asdict(memory.own),
        "total": dataclasses.asdict(memory.total),
    }


_NUMBERS = ("self_ns", "total_ns", "share", "self_cpu_ns", "total_cpu_ns", "median_ns")
_HEADINGS = (*_NUMBERS, "lower_quartile_ns", "upper_quartile_ns")


def profile_dict(
    model: Model, calls: Sequence[CallRecord], timing: Timing, found: Latency
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
        "modules": [
            _profile_module(time, found, model, first_calls) for time in found.modules.values()
        ],
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
    lines = (
        [*first_cells(time, model), time.calls, *_profile_cells(time, found)] for time in every
    )
    return csv_text(["path", "class", "calls", *headings], lines)


def _profile_cells(time: ModuleTime, found: Latency) -> Iterator[Any]:
    """The numbers of both stages; none of a stage that a module had no part in."""
    for stage in _stages(time, found).values():
        if stage is None:
            yield from [None] * len(_HEADINGS)
        else:
            yield from (stage[name] for name in _NUMBERS)
            yield from stage["spread_ns"]


def _profile_module(
    time: ModuleTime, found: Latency, model: Model, first_calls: Mapping[str, CallRecord]
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


_SHAPES = ("in_shape", "out_shape")


def statistics_csv(model: str, calls: Iterable[ForwardStats]) -> str:
    """A line for each call with the flat names that it has; the model itself goes by its name."""
    headings = ("path", "number", "forward", *FLAT_NAMES, "error")
    return csv_text(headings, (_statistics_cells(model, call) for call in calls))


def _statistics_cells(model: str, call: ForwardStats) -> Iterator[Any]:
    yield from (call.path or model, call.number, call.forward)
    for name, value in call.items():
        is_shape = name in _SHAPES and value is not None
        yield typed_shape(value) if is_shape else value
    yield call.error
