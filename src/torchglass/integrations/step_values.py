"""The values of a step in the form loggers expect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torchglass.analyse.histograms import grid_of, merged
from torchglass.records.series import Frame, Point, Series, SeriesId
from torchglass.records.tensors import Histogram, Stats

Counts = npt.NDArray[np.int64]
Edges = npt.NDArray[np.float64]


class NamedFrame(NamedTuple):
    """A frame with its series."""

    step: int
    time_ns: int
    points: list[tuple[Series, Point]]

    @classmethod
    def of(cls, frame: Frame, series: Mapping[SeriesId, Series]) -> NamedFrame:
        points = [(series[each], point) for each, point in frame.points.items()]
        return cls(frame.step, frame.time_ns, points)


class Thinned:
    """Evenly spaced frames of a training of unknown length, in bounded memory, and the last one."""

    def __init__(self, most_points: int) -> None:
        self._most_points = most_points
        self._all: list[NamedFrame] = []
        self._points = 0
        self._every = 1
        self._last: NamedFrame | None = None
        self.seen = 0

    def add(self, measured: NamedFrame) -> None:
        """Add a frame, which may be dropped."""
        if self.seen % self._every == 0:
            self._all.append(measured)
            self._points += len(measured.points)
        self.seen += 1
        self._last = measured
        while self._points > self._most_points and len(self._all) > 1:
            self._all = self._all[::2]
            self._every *= 2
            self._points = sum(len(each.points) for each in self._all)

    def __iter__(self) -> Iterator[NamedFrame]:
        yield from self._all
        if self._last is not None and self._last is not self._all[-1]:
            yield self._last


def bins_of(histogram: Histogram, most: int) -> tuple[Counts, Edges]:
    """Counts and edges as from `numpy.histogram`; bins are merged to at most this number."""
    if len(histogram.counts) > most:
        histogram = merged([histogram], most)
    return np.array(histogram.counts, np.int64), grid_of(histogram).edges


def numbers_of(name: str, point: Point) -> dict[str, float]:
    """The values of a point by name; for a histogram, those that its bins do not show.

    >>> numbers_of("loss", 0.5)
    {'loss': 0.5}
    """
    if isinstance(point, Histogram):
        beyond = {"nan": point.stats.nan, "inf": point.stats.inf}
        return {f"{name}.{what}": float(count) for what, count in beyond.items() if count}
    if isinstance(point, Stats):
        return {f"{name}.{what}": getattr(point, what) for what in ("min", "max", "mean", "std")}
    return {name: point}
