"""Calls added up, one by one, so that none of them need be kept."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torchglass.records.statistics import Totals
from torchglass.records.tensors import Stats

if TYPE_CHECKING:
    from torchglass.capture.statistics.history import Call
    from torchglass.capture.statistics.readings import Reading


def plus(totals: Totals, call: Call) -> Totals:
    """The totals with one more call, whose statistics are there."""
    return Totals(
        calls=totals.calls + 1,
        failed=totals.failed + bool(call.error),
        total_ns=totals.total_ns + call.total_ns,
        self_ns=totals.self_ns + call.self_ns,
        inputs=joined(totals.inputs, _first(call.located_inputs)),
        outputs=joined(totals.outputs, _first(call.located_outputs)),
    )


def joined(one: Stats | None, other: Stats | None) -> Stats | None:
    """The statistics of the numbers of two tensors taken together."""
    if one is None or other is None:
        return one or other
    count, one_finite, other_finite = one.count + other.count, _finite(one), _finite(other)
    nan, inf = one.nan + other.nan, one.inf + other.inf
    if not one_finite or not other_finite:
        of = one if one_finite else other
        return Stats(
            count=count, min=of.min, max=of.max, mean=of.mean, std=of.std, nan=nan, inf=inf
        )
    finite = one_finite + other_finite
    distance = other.mean - one.mean
    squares = (
        one.std * one.std * (one_finite - 1)
        + other.std * other.std * (other_finite - 1)
        + distance * distance * one_finite * other_finite / finite
    )
    return Stats(
        count=count,
        min=min(one.min, other.min),
        max=max(one.max, other.max),
        mean=one.mean + distance * other_finite / finite,
        std=math.sqrt(squares / (finite - 1)),
        nan=nan,
        inf=inf,
    )


def _first(located: tuple[tuple[str, Reading], ...]) -> Stats | None:
    return located[0][1].ready_stats if located else None


def _finite(stats: Stats) -> int:
    return stats.count - stats.nan - stats.inf
