"""A summary as JSON and CSV."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torchglass.analyse.module_rows import full_name
from torchglass.analyse.parameters import Counts
from torchglass.analyse.summary import MemoryEstimate, SummaryReport, SummaryRow
from torchglass.records.json_data import to_json_data
from torchglass.records.model import Model
from torchglass.records.trace import Value
from torchglass.tables.files import csv_text, json_text, typed_shape

HEADINGS = (
    "path",
    "class",
    "depth",
    "repeats",
    "parameters",
    "trainable",
    "frozen",
    "buffers",
    "bytes",
    "own_parameters",
    "dtypes",
    "devices",
    "calls",
    "input_shapes",
    "output_shapes",
    "alias_of",
)


def summary_csv(report: SummaryReport) -> str:
    """A report as CSV text; several shapes, dtypes or devices in a cell have spaces between."""
    return csv_text(HEADINGS, (_cells(row, report) for row in report.rows))


def _cells(row: SummaryRow, report: SummaryReport) -> tuple[str | int, ...]:
    module = row.module
    first = row.calls[0] if row.calls else None
    return (
        full_name(module.path, report.model),
        module.class_name,
        row.depth,
        len(row.members),
        row.total.parameters,
        row.total.trainable,
        row.total.frozen,
        row.total.buffers,
        row.total.bytes,
        row.own.parameters,
        " ".join(row.dtypes),
        " ".join(row.devices),
        len(row.calls),
        _shapes(first.inputs) if first else "",
        _shapes(first.outputs) if first else "",
        ""
        if module.alias_of is None
        else full_name(report.model[module.alias_of].path, report.model),
    )


def _shapes(values: Sequence[Value]) -> str:
    return " ".join(typed_shape(value.spec.shape) for value in values)


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
        **to_json_data(memory),
        "activation_bytes": memory.activation_bytes,
        "largest_call_bytes": memory.largest_call_bytes,
        "inference_bytes": memory.inference_bytes,
        "training_bytes": memory.training_bytes,
    }


def _module(row: SummaryRow, model: Model) -> dict[str, Any]:
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
