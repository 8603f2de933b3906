"""Reduces series and step records to a few hundred columns."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from torchglass.analyse.histograms import merged
from torchglass.records.model import Histogram
from torchglass.records.run import Points, Reader, SeriesId
from torchglass.records.step_points import SeriesKind

_PLOTTED_FIELDS: dict[SeriesKind, tuple[str, ...]] = {
    "scalar": ("value",),
    "stats": ("mean", "min", "max"),
    "histogram": ("mean", "min", "max"),
}
"""The fields whose extremes must be kept."""


def in_order(points: Points) -> Points:
    """The points by step, the last one of each: a resumed training repeats steps."""
    if np.all(np.diff(points.steps) > 0):
        return points
    newest_first = points.steps[::-1]
    _, first_seen = np.unique(newest_first, return_index=True)
    kept = len(points.steps) - 1 - first_seen
    return Points(series=points.series, steps=points.steps[kept], values=points.values[kept])


def decimate(points: Points, limit: int) -> Points:
    """At most `limit` of the measured points: the lowest and highest of each interval.

    NaN and Inf are kept too, because they are what people look for.
    """
    if len(points) <= limit:
        return points
    columns = [points.column(field) for field in _PLOTTED_FIELDS[points.series.kind]]
    kept = _rows_to_keep(columns, intervals=max(1, (limit - 2) // (3 * len(columns))))
    return Points(series=points.series, steps=points.steps[kept], values=points.values[kept])


def _rows_to_keep(
    columns: Sequence[npt.NDArray[np.float64]], intervals: int
) -> npt.NDArray[np.intp]:
    last = len(columns[0]) - 1
    width = -(-len(columns[0]) // intervals)
    # One line per interval; the last one is padded with the last row.
    rows = np.minimum(np.arange(intervals * width), last).reshape(intervals, width)
    lines = np.arange(intervals)
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


T = TypeVar("T")

MOST_COLUMNS = 600
"""More than a plot in a panel has pixels."""


@dataclass(frozen=True, slots=True)
class StepColumn(Generic[T]):
    """The measurements of consecutive steps, merged into one."""

    first_step: int
    last_step: int
    steps: int
    """The number of measured steps."""
    content: T


class StepColumns(Generic[T]):
    """Columns of the same number of steps; when there are too many, pairs of columns are merged."""

    def __init__(self, join: Callable[[Sequence[T]], T], most: int = MOST_COLUMNS) -> None:
        self.columns: list[StepColumn[T]] = []
        self.width = 1
        """The number of steps of a full column."""
        self._join = join
        self._most = most

    @property
    def last_step(self) -> int:
        """The latest step that was added, -1 before the first."""
        return self.columns[-1].last_step if self.columns else -1

    def extend(self, steps: Sequence[int], contents: Sequence[T]) -> None:
        if not steps:
            return
        news = [StepColumn(step, step, 1, each) for step, each in zip(steps, contents, strict=True)]
        total = sum(column.steps for column in self.columns) + len(news)
        last = self.columns[-1:] if self.columns and self.columns[-1].steps < self.width else []
        full = self.columns[: len(self.columns) - len(last)]
        while -(-total // self.width) > self._most:
            self.width *= 2
            news, last, full = [*full, *last, *news], [], []
        self.columns = [*full, *self._packed([*last, *news])]

    def at(self, step: int) -> StepColumn[T] | None:
        """The column that contains a step, or the last one before it."""
        place = bisect_right(self.columns, step, key=lambda column: column.first_step)
        return self.columns[place - 1] if place else None

    def _packed(self, columns: Sequence[StepColumn[T]]) -> list[StepColumn[T]]:
        """Neighbors merged until each column has the full number of steps."""
        packed: list[StepColumn[T]] = []
        group: list[StepColumn[T]] = []
        for column in columns:
            group.append(column)
            if sum(each.steps for each in group) >= self.width:
                packed.append(self._joined(group))
                group = []
        return [*packed, self._joined(group)] if group else packed

    def _joined(self, group: Sequence[StepColumn[T]]) -> StepColumn[T]:
        if len(group) == 1:
            return group[0]
        return StepColumn(
            min(each.first_step for each in group),
            max(each.last_step for each in group),
            sum(each.steps for each in group),
            self._join([each.content for each in group]),
        )


class HistogramColumns:
    """The histograms of a run. Only new steps are read; earlier ones are cached."""

    def __init__(self, reader: Reader, most_columns: int = MOST_COLUMNS) -> None:
        self._reader = reader
        self._most_columns = most_columns
        self._columns: dict[SeriesId, StepColumns[Histogram]] = {}
        self._lock = threading.Lock()

    def columns_of(self, ids: Sequence[SeriesId]) -> list[StepColumns[Histogram]]:
        """The columns of some series, up to their latest steps."""
        with self._lock:
            behind: dict[int, list[SeriesId]] = {}
            for one in dict.fromkeys(ids):
                columns = self._columns.setdefault(one, StepColumns(merged, self._most_columns))
                behind.setdefault(columns.last_step, []).append(one)
            for last_step, group in behind.items():
                for news in self._reader.histograms_of(group, after=last_step):
                    self._columns[news.series.id].extend(news.steps.tolist(), news.bins)
            return [self._columns[one] for one in ids]
