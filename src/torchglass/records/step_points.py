"""The points of one step: numbers, statistics and histograms, one by one or as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from torchglass.records.model import Histogram, Stats

_Whole = npt.NDArray[np.int64]
_Numbers = npt.NDArray[np.float64]

SeriesKind = Literal["scalar", "stats", "histogram"]
Point = float | Stats | Histogram

_OF_STATS = ("count", "min", "max", "mean", "std", "nan", "inf")
FIELDS: Mapping[SeriesKind, tuple[str, ...]] = {
    "scalar": ("value",),
    "stats": _OF_STATS,
    "histogram": _OF_STATS,
}
"""The values of one point of each kind, in the order in which they are stored; bins are extra."""

_stats_numbers: Callable[[Stats], tuple[float, ...]] = attrgetter(*_OF_STATS)


def point_values(point: Point) -> tuple[float, ...]:
    """The values of a point, in the order of its kind's `FIELDS`."""
    if isinstance(point, Histogram):
        return _stats_numbers(point.stats)
    return _stats_numbers(point) if isinstance(point, Stats) else (point,)


class Bins(NamedTuple):
    """The bins of one histogram."""

    exponent: int
    first: int
    counts: tuple[int, ...]


def _ranges(starts: _Whole, lengths: _Whole, end: int) -> npt.NDArray[np.integer[Any]]:
    """The numbers in several ranges, one range after the other; all are below `end`."""
    # There may be a hundred million bins: half the memory, where that is enough.
    whole = np.int32 if max(end, lengths.sum()) < 1 << 31 else np.int64
    numbers = np.repeat((starts - (np.cumsum(lengths) - lengths)).astype(whole), lengths)
    numbers += np.arange(len(numbers), dtype=whole)
    return numbers


class BinColumns(NamedTuple):
    """The bins of many histograms as columns, one after the other."""

    exponents: _Whole
    firsts: _Whole
    lengths: _Whole
    """The number of bins of each."""
    counts: npt.NDArray[np.integer[Any]]
    """The counts of all bins, in a type that is large enough."""

    @classmethod
    def of(cls, bins: Sequence[Histogram | Bins]) -> BinColumns:
        """The bins of some histograms."""
        counts = [np.array(one.counts, np.int64) for one in bins]
        every = np.concatenate(counts) if counts else np.empty(0, np.uint8)
        return cls(
            np.array([one.exponent for one in bins], np.int64),
            np.array([one.first for one in bins], np.int64),
            np.array([len(one) for one in counts], np.int64),
            every,
        )

    @classmethod
    def trimmed(
        cls, exponents: _Whole, firsts: _Whole, counts: npt.NDArray[np.integer[Any]]
    ) -> BinColumns:
        """Histograms of as many bins each, a row of counts each, without empty bins at the ends."""
        filled = counts > 0
        has_any = filled.any(axis=1)
        begins = filled.argmax(axis=1)
        ends = np.where(has_any, counts.shape[1] - filled[:, ::-1].argmax(axis=1), begins)
        starts = np.arange(len(counts)) * counts.shape[1] + begins
        return cls(
            np.where(has_any, exponents, 0),
            np.where(has_any, firsts + begins, 0),
            ends - begins,
            counts.ravel()[_ranges(starts, ends - begins, counts.size)],
        )

    @classmethod
    def joined(cls, parts: Iterable[BinColumns]) -> BinColumns:
        """The histograms of several parts, one part after the other."""
        return cls(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    def take(self, order: npt.NDArray[np.integer[Any]]) -> BinColumns:
        """The histograms at these indices."""
        lengths = self.lengths[order]
        counts = self.counts[_ranges(self.starts()[order], lengths, len(self.counts))]
        return BinColumns(self.exponents[order], self.firsts[order], lengths, counts)

    def each(self) -> Iterator[Bins]:
        """The bins of each histogram."""
        counts = np.split(self.counts, np.cumsum(self.lengths)[:-1])
        for exponent, first, own in zip(self.exponents, self.firsts, counts, strict=True):
            yield Bins(int(exponent), int(first), tuple(own.tolist()))

    def starts(self) -> _Whole:
        """Where the counts of each histogram begin."""
        starts: _Whole = np.cumsum(self.lengths) - self.lengths
        return starts


class HistogramTable:
    """Many histograms as columns: a large model has thousands in every step."""

    def __init__(
        self, stats: _Numbers, bins: BinColumns, exact: Mapping[int, Stats] | None = None
    ) -> None:
        self.stats = stats
        """A row per histogram, with the columns of `FIELDS`."""
        self.bins = bins
        self._exact = exact or {}
        """The statistics, by index, of which the columns do not say everything."""

    @classmethod
    def of(cls, histograms: Sequence[Histogram]) -> HistogramTable:
        """The same histograms as columns."""
        stats = [_stats_numbers(one.stats) for one in histograms]
        numbers = np.array(stats, np.float64).reshape(-1, len(_OF_STATS))
        exact = {index: one.stats for index, one in enumerate(histograms) if one.stats.inf}
        return cls(numbers, BinColumns.of(histograms), exact)

    @classmethod
    def joined(cls, parts: Sequence[HistogramTable]) -> HistogramTable:
        """The histograms of several parts, one part after the other."""
        exact: dict[int, Stats] = {}
        before = 0
        for part in parts:
            exact.update((before + index, stats) for index, stats in part._exact.items())
            before += len(part)
        stats = np.concatenate([part.stats for part in parts])
        return cls(stats, BinColumns.joined([part.bins for part in parts]), exact)

    def take(self, rows: npt.NDArray[np.integer[Any]]) -> HistogramTable:
        """The histograms at these indices."""
        exact = self._exact
        if exact:
            exact = {new: exact[old] for new, old in enumerate(rows.tolist()) if old in exact}
        return HistogramTable(self.stats[rows], self.bins.take(rows), exact)

    def stats_at(self, row: int) -> Stats:
        """The statistics of one histogram."""
        if row in self._exact:
            return self._exact[row]
        count, low, high, mean, std, nan, inf = self.stats[row].tolist()
        return Stats(
            count=int(count), min=low, max=high, mean=mean, std=std, nan=int(nan), inf=int(inf)
        )

    def __getitem__(self, row: int) -> Histogram:
        start = int(self._starts[row])
        return Histogram(
            exponent=int(self.bins.exponents[row]),
            first=int(self.bins.firsts[row]),
            counts=tuple(self.bins.counts[start : start + int(self.bins.lengths[row])].tolist()),
            stats=self.stats_at(row),
        )

    def __iter__(self) -> Iterator[Histogram]:
        return (self[row] for row in range(len(self)))

    def __len__(self) -> int:
        return len(self.stats)

    @cached_property
    def _starts(self) -> _Whole:
        return self.bins.starts()


Key = TypeVar("Key")


class PointTable(Mapping[Key, Point], Generic[Key]):
    """The points of one step, the histograms as columns; an object is made only on request."""

    def __init__(
        self, keys: Sequence[Key], histograms: HistogramTable, numbers: Mapping[Key, float]
    ) -> None:
        self.histogram_keys = keys
        self.histograms = histograms
        self.numbers = numbers

    def __getitem__(self, key: Key) -> Point:
        row = self._rows.get(key)
        return self.numbers[key] if row is None else self.histograms[row]

    def __iter__(self) -> Iterator[Key]:
        yield from self.histogram_keys
        yield from self.numbers

    def __len__(self) -> int:
        return len(self.histogram_keys) + len(self.numbers)

    @cached_property
    def _rows(self) -> dict[Key, int]:
        return {key: row for row, key in enumerate(self.histogram_keys)}
