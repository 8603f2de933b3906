"""Calls added up, so that none of them need be kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torchglass.records.statistics import Totals
from torchglass.records.tensors import Stats

if TYPE_CHECKING:
    from torchglass.capture.statistics.history import Call
    from torchglass.capture.statistics.readings import Reading


def plus(totals: Totals, calls: Sequence[Call]) -> Totals:
    """The totals with some more calls, whose statistics are there."""
    inputs = [_first(call.located_inputs) for call in calls]
    outputs = [_first(call.located_outputs) for call in calls]
    return Totals(
        calls=totals.calls + len(calls),
        failed=totals.failed + sum(bool(call.error) for call in calls),
        total_ns=totals.total_ns + sum(call.total_ns for call in calls),
        self_ns=totals.self_ns + sum(call.self_ns for call in calls),
        inputs=joined([totals.inputs, *inputs]),
        outputs=joined([totals.outputs, *outputs]),
    )


def joined(every: Iterable[Stats | None]) -> Stats | None:
    """The statistics of the numbers of all these tensors taken together."""
    parts = [stats for stats in every if stats is not None]
    if len(parts) < 2:
        return parts[0] if parts else None
    # One that holds no finite number has no range, and says so where there is no other.
    finite = [part for part in parts if _finite(part)] or parts[-1:]
    mean, std = _moments(finite)
    return Stats(
        count=sum(part.count for part in parts),
        min=min(part.min for part in finite),
        max=max(part.max for part in finite),
        mean=mean,
        std=std,
        nan=sum(part.nan for part in parts),
        inf=sum(part.inf for part in parts),
    )


def _moments(parts: Sequence[Stats]) -> tuple[float, float]:
    if len(parts) == 1:
        return parts[0].mean, parts[0].std
    counts = [_finite(part) for part in parts]
    whole = sum(counts)
    weighed = list(zip(counts, parts, strict=True))
    mean = sum(part.mean * (count / whole) for count, part in weighed)
    squares = sum(
        _square(part.std) * (count - 1) + _square(part.mean - mean) * count
        for count, part in weighed
    )
    return mean, math.sqrt(squares / (whole - 1))


def _first(located: tuple[tuple[str, Reading], ...]) -> Stats | None:
    return located[0][1].ready_stats if located else None


def _finite(stats: Stats) -> int:
    return stats.count - stats.nan - stats.inf


def _square(number: float) -> float:
    # A power of a number that is too large raises, its product with itself is infinite.
    return number * number
