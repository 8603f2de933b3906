"""Calls added up, so that none of them need be kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torchglass.analyse import moments
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
    return moments.joined(parts) if len(parts) > 1 else next(iter(parts), None)


def _first(located: tuple[tuple[str, Reading], ...]) -> Stats | None:
    return located[0][1].ready_stats if located else None
