"""The memory of a step as JSON and as comma-separated values, all in bytes."""

from __future__ import annotations

import dataclasses
from typing import Any

from torchglass.analyse.memory.report import Held, MemoryReport, ModuleMemory
from torchglass.export.modules import class_of, first_cells
from torchglass.export.texts import csv_text
from torchglass.records.memory import Footprint
from torchglass.records.model import Model
from torchglass.records.plain import to_plain

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
        "modules": [_module(memory, model) for memory in report.modules.values()],
        "unattributed": dataclasses.asdict(report.unattributed.own),
        "ops": [dataclasses.asdict(op) for op in report.ops],
        "notes": list(footprint.notes),
        "footprint": to_plain(footprint),
    }


def memory_csv(model: Model, report: MemoryReport) -> str:
    """A line for each module, and a last one for what no module made."""
    headings = ["path", "class", *_FIELDS, *(f"own_{name}" for name in _FIELDS), "peak_share"]
    every = (*report.modules.values(), report.unattributed)
    return csv_text(headings, (_cells(memory, model, report.peak_bytes) for memory in every))


def _cells(memory: ModuleMemory, model: Model, peak_bytes: int) -> list[Any]:
    sizes = (getattr(side, name) for side in (memory.total, memory.own) for name in _FIELDS)
    share = memory.total.peak_bytes / peak_bytes if peak_bytes else None
    return [*first_cells(memory, model), *sizes, share]


def _module(memory: ModuleMemory, model: Model) -> dict[str, Any]:
    return {
        "path": memory.path,
        "class": class_of(memory, model),
        "own": dataclasses.asdict(memory.own),
        "total": dataclasses.asdict(memory.total),
    }
