"""Tensors described without holding them."""

from __future__ import annotations

from dataclasses import dataclass, field


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
