"""Areas and curves in the coordinates of a flow: along it, and across it.

Drawn downwards, "along" runs down the page and "across" to the right; drawn to the right, "along"
runs to the right and "across" down the page. What is laid out here need not know which it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Point = tuple[float, float]
"""Along, across."""
Curve = tuple[Point, ...]
"""Bézier curves end to end: a start, then two control points and an end for each."""

_SAMPLES = 8
_HALVINGS = 24


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle."""

    begin: float
    end: float
    left: float
    right: float

    @property
    def centre(self) -> Point:
        """Its middle."""
        return (self.begin + self.end) / 2, (self.left + self.right) / 2

    @property
    def length(self) -> float:
        """How far it reaches along the flow."""
        return self.end - self.begin

    @property
    def breadth(self) -> float:
        """How far it reaches across the flow."""
        return self.right - self.left

    def moved(self, along: float, across: float) -> Area:
        """The same area elsewhere."""
        return Area(self.begin + along, self.end + along, self.left + across, self.right + across)


def around(points: Iterable[Point]) -> Area:
    """The smallest area that has all points in it."""
    found = list(points)
    along, across = [point[0] for point in found], [point[1] for point in found]
    return Area(min(along), max(along), min(across), max(across))


def union(areas: Iterable[Area]) -> Area:
    """The smallest area that has all others in it; a point where there are none."""
    found = list(areas) or [Area(0.0, 0.0, 0.0, 0.0)]
    return Area(
        min(area.begin for area in found),
        max(area.end for area in found),
        min(area.left for area in found),
        max(area.right for area in found),
    )


def moved(curve: Iterable[Point], along: float, across: float) -> Curve:
    """The same curve elsewhere."""
    return tuple((point[0] + along, point[1] + across) for point in curve)


def split(curve: Curve, cuts: Sequence[float]) -> list[tuple[int, Curve]]:
    """The pieces of a curve between cuts along the flow, each with the number of cuts before it."""
    pieces: list[tuple[int, Curve]] = []
    for start in range(0, len(curve) - 1, 3):
        for piece in _split_at(curve[start : start + 4], cuts):
            middle = _at(piece, 0.5)[0]
            band = sum(cut < middle for cut in cuts)
            if pieces and pieces[-1][0] == band:
                pieces[-1] = (band, pieces[-1][1] + piece[1:])
            else:
                pieces.append((band, piece))
    return pieces


def rounded(corners: Sequence[Point], radius: float) -> Curve:
    """A way along straight lines with its corners rounded off."""
    curve: list[Point] = [corners[0]]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        bend = min(radius, _distance(before, corner) / 2, _distance(corner, after) / 2)
        enter, leave = _towards(corner, before, bend), _towards(corner, after, bend)
        curve += _straight(curve[-1], enter)
        curve += (_towards(corner, before, bend / 2), _towards(corner, after, bend / 2), leave)
    return (*curve, *_straight(curve[-1], corners[-1]))


def _split_at(piece: Curve, cuts: Sequence[float]) -> list[Curve]:
    low, high = min(point[0] for point in piece), max(point[0] for point in piece)
    places = sorted(place for cut in cuts if low < cut < high for place in _crossings(piece, cut))
    pieces: list[Curve] = []
    done = 0.0
    for place in places:
        first, piece = _halves(piece, (place - done) / (1 - done))
        pieces.append(first)
        done = place
    return [*pieces, piece]


def _crossings(piece: Curve, cut: float) -> Iterator[float]:
    """Where on a Bézier curve the flow has come as far as a cut."""
    for step in range(_SAMPLES):
        low, high = step / _SAMPLES, (step + 1) / _SAMPLES
        before = _at(piece, low)[0] < cut
        if before == (_at(piece, high)[0] < cut):
            continue
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if (_at(piece, middle)[0] < cut) == before:
                low = middle
            else:
                high = middle
        yield (low + high) / 2


def _halves(piece: Curve, place: float) -> tuple[Curve, Curve]:
    """The two curves that a Bézier curve is made of (de Casteljau)."""
    a, b, c, d = piece
    ab, bc, cd = _mix(a, b, place), _mix(b, c, place), _mix(c, d, place)
    abc, bcd = _mix(ab, bc, place), _mix(bc, cd, place)
    middle = _mix(abc, bcd, place)
    return (a, ab, abc, middle), (middle, bcd, cd, d)


def _at(piece: Curve, place: float) -> Point:
    return _halves(piece, place)[0][-1]


def _mix(one: Point, other: Point, share: float) -> Point:
    return (
        one[0] + (other[0] - one[0]) * share,
        one[1] + (other[1] - one[1]) * share,
    )


def _towards(start: Point, goal: Point, distance: float) -> Point:
    whole = _distance(start, goal)
    return _mix(start, goal, distance / whole) if whole else start


def _distance(one: Point, other: Point) -> float:
    return math.hypot(other[0] - one[0], other[1] - one[1])


def _straight(start: Point, goal: Point) -> Curve:
    return _mix(start, goal, 1 / 3), _mix(start, goal, 2 / 3), goal
