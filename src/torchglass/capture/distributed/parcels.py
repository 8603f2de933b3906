"""What one rank has measured at a step, in a form that is added to that of another rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torchglass.analyse.histograms import merged
from torchglass.analyse.moments import joined
from torchglass.analyse.training_health import is_loss, is_spoiled
from torchglass.capture.watch.histograms import ROOM
from torchglass.records.histogram import Histogram
from torchglass.records.series import Kind, Point
from torchglass.records.tensors import Stats

Label = tuple[str, str, Kind]
"""A series by its path, its name and its kind: ids differ from rank to rank."""
_SCALE: Label = ("", "grad_scale", "scalar")


@dataclass(frozen=True)
class Mean:
    """A number of which every rank has its own."""

    total: float
    count: int

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.count + other.count)


Part = Mean | Stats | Histogram


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """The points of one or several ranks at one step."""

    parts: Mapping[Label, Part]
    seconds: Mapping[int, float] = field(default_factory=dict)
    """How long each rank took for the step."""
    spoiled: Mapping[Label, tuple[int, ...]] = field(default_factory=dict)
    """For series with numbers that are not finite, the ranks that had them."""

    @classmethod
    def of(cls, rank: int, points: Mapping[Label, Point], seconds: float) -> Parcel:
        """What a rank has measured."""
        parts = {label: _part(point) for label, point in points.items()}
        spoiled = {label: (rank,) for label in parts if _is_spoiled(label, parts)}
        return cls(parts=parts, seconds={rank: seconds}, spoiled=spoiled)

    def plus(self, other: Parcel, bins: int) -> Parcel:
        """Both together: histograms, extremes and moments as if all numbers were in one place."""
        parts = dict(self.parts)
        for label, part in other.parts.items():
            parts[label] = _sum(parts[label], part, bins) if label in parts else part
        spoiled = dict(self.spoiled)
        for label, ranks in other.spoiled.items():
            spoiled[label] = (*spoiled.get(label, ()), *ranks)
        return Parcel(parts=parts, seconds={**self.seconds, **other.seconds}, spoiled=spoiled)

    def points(self) -> dict[Label, Point]:
        """The parts as points again, numbers by their mean."""
        return {label: _point(part) for label, part in self.parts.items()}

    def about_ranks(self) -> dict[Label, Point]:
        """How the ranks differ: which was the slowest, and how long it and the fastest took."""
        if not self.seconds:
            return {}
        slowest = max(self.seconds, key=lambda rank: self.seconds[rank])
        return {
            ("", "ranks.slowest", "scalar"): float(slowest),
            ("", "ranks.longest_seconds", "scalar"): self.seconds[slowest],
            ("", "ranks.shortest_seconds", "scalar"): min(self.seconds.values()),
        }


def total(parcels: Iterable[Parcel], bins: int) -> Parcel:
    """All of some parcels together."""
    whole = Parcel(parts={})
    for parcel in parcels:
        whole = whole.plus(parcel, bins)
    return whole


def _part(point: Point) -> Part:
    return point if isinstance(point, (Stats, Histogram)) else Mean(point, 1)


def _point(part: Part) -> Point:
    return part.total / part.count if isinstance(part, Mean) else part


def _sum(one: Part, other: Part, bins: int) -> Part:
    if isinstance(one, Histogram) and isinstance(other, Histogram):
        return merged([one, other], bins * ROOM)
    if isinstance(one, Stats) and isinstance(other, Stats):
        return joined([one, other])
    if isinstance(one, Mean) and isinstance(other, Mean):
        return one + other
    return one


def _is_spoiled(label: Label, parts: Mapping[Label, Part]) -> bool:
    path, name, kind = label
    part = parts[label]
    if isinstance(part, Mean):
        return not math.isfinite(part.total) and (bool(path) or is_loss(name))
    if name.endswith(".grad") and _SCALE in parts:
        # The scaler skips a step in which scaled gradients overflow.
        return False
    stats = part.stats if isinstance(part, Histogram) else part
    return is_spoiled(name, stats, is_trained=(path, f"{name}.grad", kind) in parts)
