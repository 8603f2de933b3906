"""Fewer points that draw the same picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from torchglass.records.series import Kind, Points

_DRAWN: dict[Kind, tuple[str, ...]] = {
    "scalar": ("value",),
    "stats": ("mean", "min", "max"),
    "histogram": ("mean", "min", "max"),
}
"""The numbers whose peaks must not get lost."""


def in_order(points: Points) -> Points:
    """The points by step, the last one of each: a training that was resumed repeats steps."""
    if np.all(np.diff(points.steps) > 0):
        return points
    newest_first = points.steps[::-1]
    _, first_seen = np.unique(newest_first, return_index=True)
    kept = len(points.steps) - 1 - first_seen
    return Points(series=points.series, steps=points.steps[kept], values=points.values[kept])


def decimate(points: Points, limit: int) -> Points:
    """At most `limit` of the points, measured ones all: of each stretch the lowest and highest.

    A value that is not finite stays too, because it is what people look for.
    """
    if len(points) <= limit:
        return points
    columns = [points.column(field) for field in _DRAWN[points.series.kind]]
    kept = _rows_to_keep(columns, stretches=max(1, (limit - 2) // (3 * len(columns))))
    return Points(series=points.series, steps=points.steps[kept], values=points.values[kept])


def _rows_to_keep(
    columns: Sequence[npt.NDArray[np.float64]], stretches: int
) -> npt.NDArray[np.intp]:
    last = len(columns[0]) - 1
    width = -(-len(columns[0]) // stretches)
    # One line a stretch; the last one is filled up by repeating the last row.
    rows = np.minimum(np.arange(stretches * width), last).reshape(stretches, width)
    lines = np.arange(stretches)
    kept = [np.array([0, last])]
    for column in columns:
        values = column[rows]
        finite = np.isfinite(values)
        kept += [
            rows[lines, np.where(finite, values, np.inf).argmin(axis=1)],
            rows[lines, np.where(finite, values, -np.inf).argmax(axis=1)],
            rows[lines, finite.argmin(axis=1)],
        ]
    return np.unique(np.concatenate(kept))
