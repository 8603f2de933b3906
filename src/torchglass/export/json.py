"""A summary as JSON: everything it knows, as plain numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torchglass.analyse.model.parameters import Counts
from torchglass.analyse.model.summary import MemoryEstimate, Row, SummaryReport
from torchglass.export.texts import json_text
from torchglass.records.model import Model
from torchglass.records.plain import to_plain
from torchglass.records.trace import Value


def summary_dict(report: SummaryReport) -> dict[str, Any]:
    """A report as dicts, lists, strings and numbers."""
    model = report.model
    return {
        "model": model.name,
        "class": model.root.class_name,
        "origin": model.origin,
        "also_in_file": [dataclasses.asdict(part) for part in model.also_in_file],
        "totals": _totals(report),
        "memory": _memory(report.memory),
        "modules": [_module(row, model) for row in report.rows],
        "tied": [list(names) for names in model.tied.values()],
        "aliases": {
            module.path: model[module.alias_of].path
            for module in model.modules
            if module.alias_of is not None
        },
        "problems": {module.path: module.problem for module in model.modules if module.problem},
    }


def summary_json(report: SummaryReport) -> str:
    """A report as JSON text."""
    return json_text(summary_dict(report))


def _totals(report: SummaryReport) -> dict[str, int]:
    return {
        "modules": len(report.model.modules),
        **_counts(report.counts.total),
        "parameters_per_use": report.counts.per_use.parameters,
    }


def _counts(counts: Counts) -> dict[str, int]:
    return {
        "parameters": counts.parameters,
        "trainable": counts.trainable,
        "frozen": counts.frozen,
        "buffers": counts.buffers,
        "bytes": counts.bytes,
    }


def _memory(memory: MemoryEstimate) -> dict[str, int | None]:
    return {
        **to_plain(memory),
        "activation_bytes": memory.activation_bytes,
        "largest_call_bytes": memory.largest_call_bytes,
        "inference_bytes": memory.inference_bytes,
        "training_bytes": memory.training_bytes,
    }


def _module(row: Row, model: Model) -> dict[str, Any]:
    module = row.module
    first = row.calls[0] if row.calls else None
    return {
        "path": module.path,
        "name": module.name,
        "class": module.class_name,
        "extra": module.extra,
        "depth": row.depth,
        "repeats": [model[member].path for member in row.members[1:]],
        "alias_of": None if module.alias_of is None else model[module.alias_of].path,
        "tied_to": list(row.tied_to),
        "training": module.training,
        "own_parameters": row.own.parameters,
        **_counts(row.total),
        "dtypes": list(row.dtypes),
        "devices": list(row.devices),
        "calls": len(row.calls),
        "inputs": _values(first.inputs) if first else [],
        "outputs": _values(first.outputs) if first else [],
    }


def _values(values: Sequence[Value]) -> list[dict[str, Any]]:
    return [
        {
            "place": value.place,
            "shape": value.spec.shape and list(value.spec.shape),
            "dtype": value.spec.dtype,
        }
        for value in values
    ]
