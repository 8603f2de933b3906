"""Reduces series and step records to a few hundred columns."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from torchglass.analyse.gradient_flow import gradient_norms, layers
from torchglass.analyse.histograms import merged
from torchglass.errors import StoreError
from torchglass.records.reader import Reader
from torchglass.records.series import Points, SeriesId, SeriesKind
from torchglass.records.tensors import Histogram

_DRAWN: dict[SeriesKind, tuple[str, ...]] = {
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


T = TypeVar("T")

MOST_COLUMNS = 600
"""More than a plot in a panel has pixels."""


@dataclass(frozen=True, slots=True)
class StepColumn(Generic[T]):
    """What was measured at some steps that follow each other, joined into one."""

    first_step: int
    last_step: int
    steps: int
    """How many measured steps it holds."""
    content: T


class Ribbon(Generic[T]):
    """Columns of equally many steps; when there are too many, each two become one."""

    def __init__(self, join: Callable[[Sequence[T]], T], most: int = MOST_COLUMNS) -> None:
        self.columns: list[StepColumn[T]] = []
        self.width = 1
        """How many steps a full column holds."""
        self._join = join
        self._most = most

    @property
    def last_step(self) -> int:
        """The latest step that was added, -1 before the first."""
        return self.columns[-1].last_step if self.columns else -1

    def extend(self, steps: Sequence[int], contents: Sequence[T]) -> None:
        """Take in what was measured at some steps."""
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
        """The column of a step: the one that holds it, or the last before it."""
        place = bisect_right(self.columns, step, key=lambda column: column.first_step)
        return self.columns[place - 1] if place else None

    def _packed(self, columns: Sequence[StepColumn[T]]) -> list[StepColumn[T]]:
        """Neighbours joined until each column holds as many steps as it should."""
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


class Heat:
    """The histograms of a run. What was read is kept, so that only new steps are read again."""

    def __init__(self, reader: Reader, most_columns: int = MOST_COLUMNS) -> None:
        self._reader = reader
        self._most_columns = most_columns
        self._ribbons: dict[SeriesId, Ribbon[Histogram]] = {}
        self._lock = threading.Lock()

    def ribbons(self, ids: Sequence[SeriesId]) -> list[Ribbon[Histogram]]:
        """Some series, up to their latest steps."""
        with self._lock:
            behind: dict[int, list[SeriesId]] = {}
            for one in dict.fromkeys(ids):
                ribbon = self._ribbons.setdefault(one, Ribbon(merged, self._most_columns))
                behind.setdefault(ribbon.last_step, []).append(one)
            for last_step, group in behind.items():
                for news in self._reader.histograms_of(group, after=last_step):
                    self._ribbons[news.series.id].extend(news.steps.tolist(), news.bins)
            return [self._ribbons[one] for one in ids]


Norms = Mapping[str, float]
"""The norm of the gradients of all parameters of a module, by its path."""


class GradientNorms:
    """The gradient norms of a run. What was read is kept, so that only new steps are read again."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._ribbon: Ribbon[Norms] = Ribbon(_largest)
        self._lock = threading.Lock()

    def ribbon(self) -> Ribbon[Norms]:
        """All layers up to the latest step."""
        with self._lock:
            norms = self._new_norms()
            steps = sorted(norms)
            self._ribbon.extend(steps, [norms[step] for step in steps])
            return self._ribbon

    def _new_norms(self) -> dict[int, dict[str, float]]:
        """The norms of all layers, by the steps since the last ones."""
        try:
            found = layers(self._reader.model(), self._reader.series())
        except StoreError:
            return {}
        ids = [series.id for layer in found for series in layer.gradients]
        read = self._reader.points_of(ids, after=self._ribbon.last_step)
        by_series = {points.series.id: points for points in read}
        norms: dict[int, dict[str, float]] = {}
        for layer in found:
            own = [by_series[series.id] for series in layer.gradients]
            steps = min((points.steps for points in own), key=len, default=np.empty(0))
            of_layer = gradient_norms(layer, lambda series: by_series.get(series.id))
            for step, norm in zip(steps.tolist(), of_layer.tolist(), strict=False):
                norms.setdefault(step, {})[layer.path] = norm
        return norms


def _largest(parts: Sequence[Norms]) -> Norms:
    paths = dict.fromkeys(path for part in parts for path in part)
    return {path: max(part.get(path, 0.0) for part in parts) for path in paths}
