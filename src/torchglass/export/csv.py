"""A summary as comma-separated values, one line a row."""

from __future__ import annotations

from collections.abc import Sequence

from torchglass.analyse.model.summary import Row, SummaryReport
from torchglass.analyse.rows import full_name
from torchglass.export.texts import csv_text, typed_shape
from torchglass.records.trace import Value

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


def _cells(row: Row, report: SummaryReport) -> tuple[str | int, ...]:
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
