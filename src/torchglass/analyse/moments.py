"""Combined statistics of several tensors, or of the parts of one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain

import numpy as np
import numpy.typing as npt

from torchglass.records.tensors import Stats

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
