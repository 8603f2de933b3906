"""Histograms on dyadic grids, and statistics of several tensors taken together.

    edges     0   1   2   3   4
    fine      | 1 | 2 | 3 |           exponent 0
    coarse            |   4   |       exponent 1
    merged    |   3   |   7   |       exponent 1

Each step and each rank has its own grid, as fine as its values need. To show two histograms
together, bins of the finer one are merged in pairs, so each value stays in its bin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torchglass.records.model import Histogram, Stats

Rows = npt.NDArray[np.float64]
"""Statistics of one tensor in each row, in the columns that `FIELDS` names."""


def joined(parts: Iterable[Stats]) -> Stats:
    """The statistics of all values, from the statistics of the parts.

    >>> zero_and_two = Stats(count=2, min=0, max=2, mean=1, std=2**0.5)
    >>> joined([zero_and_two, Stats(count=1, min=4, max=4, mean=4, std=0)])
    Stats(count=3, min=0, max=4, mean=2.0, std=2.0, nan=0, inf=0)
    """
    parts = list(parts)
    sizes = [part.count - part.nan - part.inf for part in parts]
    finite, total = [pair for pair in zip(parts, sizes, strict=True) if pair[1]], sum(sizes)
    mean = sum(part.mean * (size / total) for part, size in finite) if finite else math.nan
    # Adds lengths instead of squares, which underflow or overflow sooner.
    lengths = (
        (part.std * math.sqrt(size - 1), (part.mean - mean) * math.sqrt(size))
        for part, size in finite
    )
    length = math.hypot(*chain.from_iterable(lengths))
    return Stats(
        count=sum(part.count for part in parts),
        min=min((part.min for part, _ in finite), default=math.nan),
        max=max((part.max for part, _ in finite), default=math.nan),
        mean=mean,
        std=length / math.sqrt(max(total - 1, 1)) if finite else math.nan,
        nan=sum(part.nan for part in parts),
        inf=sum(part.inf for part in parts),
        negative_inf=sum(part.negative_inf for part in parts),
    )


def joined_rows(rows: Rows, groups: npt.NDArray[np.intp], number: int) -> Rows:
    """One row per group, which combines the rows of the group."""
    all_counts, nans, infs = (_sums(rows[:, column], groups, number) for column in (0, 5, 6))
    has_finite = _finite(rows) > 0
    rows, groups = rows[has_finite], groups[has_finite]
    _, lows, highs, means, stds, _, _ = rows.T
    counts = _finite(rows)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        finite_counts = _sums(counts, groups, number)
        mean = _sums(means * (counts / finite_counts[groups]), groups, number)
        away = means - mean[groups]
        # Relative to the largest of a group: squares underflow or overflow sooner than lengths.
        scale = np.zeros(number)
        np.maximum.at(scale, groups, np.maximum(stds, np.abs(away)))
        scale[~((scale > 0) & np.isfinite(scale))] = 1
        stds, away = stds / scale[groups], away / scale[groups]
        squares = _sums(stds * stds * (counts - 1) + away * away * counts, groups, number)
        std = scale * np.sqrt(squares / np.maximum(finite_counts - 1, 1))
    low, high = np.full(number, np.inf), np.full(number, -np.inf)
    np.minimum.at(low, groups, lows)
    np.maximum.at(high, groups, highs)
    moments = np.stack([low, high, mean, std])
    moments[:, finite_counts == 0] = np.nan
    return np.stack([all_counts, *moments, nans, infs], axis=1)


def _finite(rows: Rows) -> Rows:
    """The number of finite values of each row."""
    count: Rows = rows[:, 0] - rows[:, 5] - rows[:, 6]
    return count


def _sums(values: Rows, groups: npt.NDArray[np.intp], number: int) -> Rows:
    return np.bincount(groups, values, number).astype(np.float64, copy=False)


Numbers = npt.NDArray[np.float64]

MOST_BINS = 256
"""More bins than a plot can show."""


class DyadicGrid(NamedTuple):
    """Bins on a dyadic grid: bin i is from `(first + i) · 2**exponent` to the next edge."""

    exponent: int
    first: int
    length: int

    @property
    def edges(self) -> Numbers:
        """The edges of its bins, one more than there are bins."""
        places = np.arange(self.first, self.first + self.length + 1, dtype=np.float64)
        edges: Numbers = np.ldexp(places, self.exponent)
        return edges


def grid_of(histogram: Histogram) -> DyadicGrid:
    """The grid of a histogram."""
    return DyadicGrid(histogram.exponent, histogram.first, len(histogram.counts))


def common_grid(histograms: Iterable[Histogram], most_bins: int = MOST_BINS) -> DyadicGrid:
    """The finest grid that covers all bins of all histograms."""
    binned = [histogram for histogram in histograms if histogram.counts]
    exponent = max((histogram.exponent for histogram in binned), default=0)
    while True:
        first, last = _ends(binned, exponent)
        if last - first < most_bins:
            return DyadicGrid(exponent, first, last - first + 1)
        exponent += 1


def merged(histograms: Sequence[Histogram], most_bins: int = MOST_BINS) -> Histogram:
    """The histogram of all values together. The order of merging does not matter.

    It is as fine as the coarsest part, or coarser if that exceeds `most_bins`.
    """
    grid = common_grid(histograms, most_bins)
    counts = [0] * grid.length
    # Bin by bin: arrays take five times as long for two histograms of a few bins.
    for histogram in histograms:
        halvings = grid.exponent - histogram.exponent
        for place, count in enumerate(histogram.counts, histogram.first):
            counts[(place >> halvings) - grid.first] += count
    return Histogram(
        exponent=grid.exponent,
        first=grid.first,
        counts=tuple(counts),
        stats=joined(histogram.stats for histogram in histograms),
    )


def on_grid(histograms: Sequence[Histogram], grid: DyadicGrid) -> npt.NDArray[np.int64]:
    """The counts of each histogram, a row each, in the bins of a grid that is not finer.

    Values outside the grid are not counted.
    """
    rows = np.zeros((len(histograms), grid.length), np.int64)
    for row, histogram in zip(rows, histograms, strict=True):
        if histogram.counts:
            places = _places(histogram, grid.exponent) - grid.first
            inside = (places >= 0) & (places < grid.length)
            np.add.at(row, places[inside], np.asarray(histogram.counts, np.int64)[inside])
    return rows


def quantiles(histogram: Histogram, fractions: Sequence[float]) -> Numbers:
    """The quantiles for these fractions, to the width of a bin.

    NaN without any values.
    """
    counts = np.asarray(histogram.counts, np.int64)
    if not counts.sum():
        return np.full(len(fractions), math.nan)
    edges = grid_of(histogram).edges
    below = np.concatenate([[0], np.cumsum(counts)]) / counts.sum()
    values = np.interp(fractions, below, edges)
    clipped: Numbers = np.clip(values, histogram.stats.min, histogram.stats.max)
    return clipped


def display_grid(histograms: Sequence[Histogram], bins: int, *, reject: float = 0.0) -> DyadicGrid:
    """A grid of at most `bins` bins that covers all histograms except outliers.

    A fraction `reject` of all values may be outside it, half on either side. It may be finer than
    some of the histograms, so use `rebinned` to fill it: one extreme step does not make the others
    coarser.
    """
    binned = [histogram for histogram in histograms if any(histogram.counts)]
    if not binned:
        return DyadicGrid(0, 0, 0)
    low, high = _bulk(binned, reject)
    exponent = min(histogram.exponent for histogram in binned)
    while True:
        first = math.floor(math.ldexp(low, -exponent))
        length = math.ceil(math.ldexp(high, -exponent)) - first
        if length <= bins:
            return DyadicGrid(exponent, first, length)
        exponent += 1


def rebinned(histogram: Histogram, edges: Numbers) -> Numbers:
    """The counts in bins with any edges, assuming values are uniform within a bin."""
    if not histogram.counts:
        return np.zeros(len(edges) - 1)
    below = np.concatenate([[0], np.cumsum(np.asarray(histogram.counts, np.int64))])
    return np.diff(np.interp(edges, grid_of(histogram).edges, below))


def _bulk(histograms: Sequence[Histogram], reject: float) -> tuple[float, float]:
    """The edges between which all values lie except a fraction, half of it on each side."""
    edges = [grid_of(histogram).edges for histogram in histograms]
    starts = np.concatenate([each[:-1] for each in edges])
    ends = np.concatenate([each[1:] for each in edges])
    counts = np.concatenate([np.asarray(each.counts, np.int64) for each in histograms])
    starts, ends, counts = (each[counts > 0] for each in (starts, ends, counts))
    spared = reject / 2 * counts.sum()
    upwards, downwards = np.argsort(starts), np.argsort(-ends)
    lowest = np.searchsorted(np.cumsum(counts[upwards]), spared, side="right")
    highest = np.searchsorted(np.cumsum(counts[downwards]), spared, side="right")
    return float(starts[upwards][lowest]), float(ends[downwards][highest])


def _places(histogram: Histogram, exponent: int) -> npt.NDArray[np.int64]:
    """The bin of a coarser grid that contains each bin."""
    if exponent < histogram.exponent:
        raise ValueError(f"bins of 2**{histogram.exponent} do not fit into bins of 2**{exponent}")
    halvings = min(exponent - histogram.exponent, 63)
    return (histogram.first + np.arange(len(histogram.counts), dtype=np.int64)) >> halvings


def _ends(histograms: Iterable[Histogram], exponent: int) -> tuple[int, int]:
    """The first and the last bin of all histograms at a width of 2**exponent."""
    first, last = [], []
    for histogram in histograms:
        halvings = exponent - histogram.exponent
        first.append(histogram.first >> halvings)
        last.append((histogram.first + len(histogram.counts) - 1) >> halvings)
    return min(first, default=0), max(last, default=-1)
