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
    """The shape, dtype, device and size of a tensor, but not its values."""

    shape: tuple[int, ...] | None
    """None if not known yet, as in `LazyLinear` before its first forward."""
    dtype: str
    """torch's name without the prefix: "float32"."""
    device: str = "cpu"
    bytes: int = 0
    """Its size in memory; on "meta" the size it would have."""
    layout: str = "strided"
    """"strided", "sparse_coo", "jagged", …, or the name of a tensor subclass."""

    @property
    def elements(self) -> int:
        """The number of elements; 0 if the shape is not known yet."""
        if self.shape is None:
            return 0
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Statistics of a tensor. Minimum, maximum, mean and std are of its finite values."""

    count: int
    min: float
    max: float
    mean: float
    std: float
    nan: int = 0
    inf: int = 0
    negative_inf: int = field(default=0, repr=False, compare=False)
    """How many of `inf` are −Inf, as in masks; 0 if read from a run file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts on a dyadic grid: bin i reaches from `(first + i) · 2**exponent` to the next edge.

    All grids have edges at multiples of a power of two, so two histograms can be added without
    loss after the finer one is halved until its bins are as wide as those of the coarser one.
    """

    exponent: int
    first: int
    counts: tuple[int, ...]
    """Their sum is less than the number of finite values if only a sample was read, or if up to
    1 % of the values on a side are outside of the bins."""
    stats: Stats
    """Of all values, exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histograms:
    """Histograms of one series: `bins[i]` was measured at `steps[i]`."""

    series: Series
    steps: npt.NDArray[np.int64]
    bins: Sequence[Histogram]

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureMap:
    """A part of one output as a greyscale picture: for images, the first channels side by side."""

    path: str
    name: str
    """The name of the series of the same values: "output", "eval:output.0"."""
    step: int
    spec: TensorSpec
    """Of the whole output."""
    low: float
    """The value of black."""
    high: float
    """The value of white."""
    rows: int
    columns: int
    pixels: str
    """One byte per pixel, row by row, in base64."""
    tiles: int = 1
    """The number of maps side by side in each row."""


@dataclass(frozen=True, kw_only=True)
class Activations:
    """The latest activation pictures of a run, in the order in which their modules ran."""

    maps: tuple[FeatureMap, ...] = ()
