"""Series: values over the steps of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, NewType

import numpy as np
import numpy.typing as npt

from torchglass.records.model import join_path
from torchglass.records.tensors import Histogram, Stats

SeriesId = NewType("SeriesId", int)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One quantity of one module, over steps."""

    id: SeriesId
    path: str
    """The module it belongs to; "" for the model as a whole."""
    name: str
    """The quantity: "loss", "weight", "weight.grad"."""
    kind: SeriesKind = "scalar"

    @property
    def label(self) -> str:
        """Its full name: "encoder.0.weight.grad"."""
        return join_path(self.path, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """All measurements of one step."""

    step: int
    time_ns: int
    """Since the epoch."""
    points: Mapping[SeriesId, Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Points of one series: row i of `values` was measured at `steps[i]`."""

    series: Series
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    """One column for each of `FIELDS[series.kind]`."""

    def column(self, field: str) -> npt.NDArray[np.float64]:
        """One value of each point: `points.column("mean")`."""
        column: npt.NDArray[np.float64] = self.values[:, FIELDS[self.series.kind].index(field)]
        return column

    def __len__(self) -> int:
        return len(self.steps)


def point_values(point: Point) -> tuple[float, ...]:
    """The values of a point, in the order of its kind's `FIELDS`."""
    if isinstance(point, Histogram):
        return _stats_numbers(point.stats)
    return _stats_numbers(point) if isinstance(point, Stats) else (point,)
