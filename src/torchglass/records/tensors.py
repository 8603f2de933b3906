"""Tensors described without keeping them: shape, statistics, histogram, picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from torchglass.records.series import Series


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """What a tensor is: its shape and where and how it is kept, but not its numbers."""

    shape: tuple[int, ...] | None
    """None where it is not known yet, as in `LazyLinear` before its first forward."""
    dtype: str
    """torch's name without the prefix: "float32"."""
    device: str = "cpu"
    bytes: int = 0
    """What it takes in memory, by the real size of its elements; on "meta" what it would take."""
    layout: str = "strided"
    """"strided", "sparse_coo", "jagged", …, or the name of a tensor subclass."""

    @property
    def elements(self) -> int:
        """The number of elements; 0 where the shape is not known yet."""
        if self.shape is None:
            return 0
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The numbers of a tensor, summed up. Extremes and moments speak of its finite values."""

    count: int
    min: float
    max: float
    mean: float
    std: float
    nan: int = 0
    inf: int = 0
    negative_inf: int = field(default=0, repr=False, compare=False)
    """How many of `inf` are −Inf, which masks are made of; 0 in what was read from a run file."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureMap:
    """A part of one output as shades of grey: of images the first channels, side by side."""

    path: str
    name: str
    """That of the series of the same values: "output", "eval:output.0"."""
    step: int
    spec: TensorSpec
    """Of the whole output."""
    low: float
    """What black stands for."""
    high: float
    """What white stands for."""
    rows: int
    columns: int
    pixels: str
    """A byte for each pixel, row by row, in base64."""
    tiles: int = 1
    """How many maps lie side by side in each row of maps."""


@dataclass(frozen=True, kw_only=True)
class Activations:
    """The latest pictures of a run, in the order in which their modules ran."""

    maps: tuple[FeatureMap, ...] = ()
