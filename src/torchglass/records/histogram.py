"""How the numbers of a tensor are spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from torchglass.records.tensors import Stats

if TYPE_CHECKING:
    from torchglass.records.series import Series


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts on a dyadic grid: bin i reaches from `(first + i) · 2**exponent` to the next edge.

    All grids have edges at multiples of a power of two, so any two histograms are added without
    loss after the finer one is halved until its bins are as wide as those of the coarser one.
    """

    exponent: int
    first: int
    counts: tuple[int, ...]
    """They add up to fewer than the finite values in `stats` where only a sample was looked at, or
    where up to one in a hundred on a side lies too far out."""
    stats: Stats
    """Of all values, exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histograms:
    """A stretch of one series of histograms: `bins[i]` was measured at `steps[i]`."""

    series: Series
    steps: npt.NDArray[np.int64]
    bins: Sequence[Histogram]

    def __len__(self) -> int:
        return len(self.steps)
