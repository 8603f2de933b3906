"""Histograms on dyadic grids: merging without loss, common grids, quantiles.

    edges     0   1   2   3   4
    fine      | 1 | 2 | 3 |           exponent 0
    coarse            |   4   |       exponent 1
    merged    |   3   |   7   |       exponent 1

Each step and each rank has a grid of its own, as fine as its numbers want it. Where two are to be
seen together the finer one is halved; a number that lies in a bin before lies in it after.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torchglass.analyse import moments
from torchglass.records.tensors import Histogram

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


def coarsened(histogram: Histogram, exponent: int) -> Histogram:
    """The same counts in wider bins, of width 2**exponent."""
    if exponent == histogram.exponent or not histogram.counts:
        return histogram
    places = _places(histogram, exponent)
    first = int(places[0])
    counts = np.zeros(int(places[-1]) - first + 1, np.int64)
    np.add.at(counts, places - first, np.asarray(histogram.counts, np.int64))
    return Histogram(
        exponent=exponent, first=first, counts=tuple(counts.tolist()), stats=histogram.stats
    )


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

    It is as fine as the coarsest part, or so much coarser that all fits into `most_bins`.
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
        stats=moments.joined(histogram.stats for histogram in histograms),
    )


def on_grid(histograms: Sequence[Histogram], grid: DyadicGrid) -> npt.NDArray[np.int64]:
    """The counts of each histogram, a row each, in the bins of a grid that is not finer.

    What lies beside the grid is in no bin.
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

    NaN where there are no numbers.
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
    """A grid of at most `bins` bins for all histograms, which covers all but the outliers.

    Of the numbers of all histograms together the fraction `reject` may lie beside it, half of it on
    either side. It may be finer than some of them, so `rebinned` is what fills it: one wild step
    makes the others no coarser.
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
        raise ValueError(f"bins of 2**{histogram.exponent} are no multiples of 2**{exponent}")
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
