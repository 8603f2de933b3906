"""Histograms with bins of a power of two, of many samples at once.

>>> binned(np.array([[0.0, 1.0, 2.0, 3.0]]), bins=4).counts.tolist()
[1, 1, 1, 1]

The bins are as wide as the bulk of the values needs. Outside the bulk there may be four times as
many bins; the few values beyond are in no bin, so that one outlier does not make all bins coarse.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from torchglass.records.step_points import BinColumns

Numbers = npt.NDArray[np.float64]

ROOM = 4
"""A grid has at most this many times the bins of the bulk."""
_BEYOND = 100
"""One in this many values on either side may be an outlier."""
_EXACT_BITS = 52
"""The bits of a float's mantissa."""
_FINEST, _COARSEST = -1000, 1023
_OF_ONE_VALUE = 6
"""The bin of a single value is as wide as the value over two to this power."""
_OF_ZEROS = -30


def binned(rows: Numbers, bins: int) -> BinColumns:
    """The bins of each row; values that are not finite are in no bin."""
    if rows.size == 0:
        none = np.zeros(len(rows), np.int64)
        return BinColumns(none, none, none, np.empty(0, np.uint8))
    with np.errstate(all="ignore"):
        ordered = np.sort(np.where(np.isinf(rows), np.nan, rows), axis=1)
        finite = rows.shape[1] - np.isnan(ordered).sum(axis=1)
        exponents = _exponents(ordered, finite, bins)
        cells = ordered * np.ldexp(1.0, -exponents)[:, None]
        np.floor(cells, out=cells)
        if exponents.max() > 0:
            # The smallest values become zero when they are divided, and would lose their sign.
            cells[(cells == 0) & (ordered < 0)] = -1
        starts = _starts(cells, finite, bins)
        cells -= starts[:, None]
        counts = _count(cells, bins * ROOM)
        firsts = np.where(np.isfinite(starts), starts, 0).astype(np.int64)
    narrow = counts.astype(np.uint8) if counts.max() < 1 << 8 else counts
    return BinColumns.trimmed(exponents, firsts, narrow)


def _exponents(ordered: Numbers, finite: npt.NDArray[np.intp], bins: int) -> npt.NDArray[np.intp]:
    """The bin width of each row, as a power of two: the bulk takes at most `bins`."""
    beyond = finite // _BEYOND
    low, high = _at(ordered, beyond), _at(ordered, finite - 1 - beyond)
    # Halves, because the whole range may overflow.
    half = high / 2 - low / 2
    largest = np.maximum(np.abs(low), np.abs(high))
    wanted = np.ceil(np.log2(half) + 1 - math.log2(bins))
    alone = np.where(largest > 0, np.frexp(largest)[1] - _OF_ONE_VALUE, _OF_ZEROS)
    exponents = np.where(half > 0, wanted, alone)
    exact = np.frexp(largest)[1] - _EXACT_BITS
    exponents = np.where(largest > 0, np.maximum(exponents, exact), exponents)
    whole: npt.NDArray[np.intp] = np.nan_to_num(exponents).astype(np.intp)
    return np.clip(whole, _FINEST, _COARSEST)


def _starts(cells: Numbers, finite: npt.NDArray[np.intp], bins: int) -> Numbers:
    """The first bin of each row."""
    beyond = finite // _BEYOND
    lowest, low = _at(cells, finite * 0), _at(cells, beyond)
    taken = _at(cells, finite - 1 - beyond) - low + 1
    return np.maximum(lowest, low - np.floor((bins * ROOM - taken) / 2))


def _count(places: Numbers, room: int) -> npt.NDArray[np.intp]:
    """How many values of each row are in each bin; `places` may be overwritten."""
    # What is before all bins, after them, or NaN goes into an extra bin at either end.
    np.fmax(places, -1, out=places)
    np.fmin(places, room, out=places)
    width = room + 2
    places += np.arange(1, 1 + width * len(places), width)[:, None]
    flat = np.bincount(places.astype(np.intp).ravel(), minlength=len(places) * width)
    counts: npt.NDArray[np.intp] = flat.reshape(len(places), width)[:, 1:-1]
    return counts


def _at(rows: Numbers, columns: npt.NDArray[np.intp]) -> Numbers:
    """One value of each row."""
    there = np.clip(columns, 0, rows.shape[1] - 1)
    chosen: Numbers = rows[np.arange(len(rows)), there]
    return chosen
