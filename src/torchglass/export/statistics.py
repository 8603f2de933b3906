"""What went through modules as comma-separated values, one line a call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torchglass.export.texts import csv_text, typed_shape
from torchglass.records.statistics import FLAT_NAMES, ForwardStats

_SHAPES = ("in_shape", "out_shape")


def statistics_csv(model: str, calls: Iterable[ForwardStats]) -> str:
    """A line for each call with the flat names that it has; the model itself goes by its name."""
    headings = ("path", "number", "forward", *FLAT_NAMES, "error")
    return csv_text(headings, (_cells(model, call) for call in calls))


def _cells(model: str, call: ForwardStats) -> Iterator[Any]:
    yield from (call.path or model, call.number, call.forward)
    for name, value in call.items():
        is_shape = name in _SHAPES and value is not None
        yield typed_shape(value) if is_shape else value
    yield call.error
