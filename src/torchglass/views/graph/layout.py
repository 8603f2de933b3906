"""Positions of everything in a drawing: areas, curves, directions.

Drawn downwards, "along" runs down the page and "across" to the right; drawn to the right, "along"
runs to the right and "across" down the page. The layout code is the same for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torchglass.records.graph import NodeId

Point = tuple[float, float]
"""Along, across."""
Curve = tuple[Point, ...]
"""Connected Bézier curves: a start, then two control points and an end for each."""

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
        return (self.begin + self.end) / 2, (self.left + self.right) / 2

    @property
    def length(self) -> float:
        """Its size along the flow."""
        return self.end - self.begin

    @property
    def breadth(self) -> float:
        """Its size across the flow."""
        return self.right - self.left

    def moved(self, along: float, across: float) -> Area:
        return Area(self.begin + along, self.end + along, self.left + across, self.right + across)


def around(points: Iterable[Point]) -> Area:
    """The smallest area that contains all points."""
    found = list(points)
    along, across = [point[0] for point in found], [point[1] for point in found]
    return Area(min(along), max(along), min(across), max(across))


def union(areas: Iterable[Area]) -> Area:
    """The smallest area that contains all others; a point if there are none."""
    found = list(areas) or [Area(0.0, 0.0, 0.0, 0.0)]
    return Area(
        min(area.begin for area in found),
        max(area.end for area in found),
        min(area.left for area in found),
        max(area.right for area in found),
    )


def moved(curve: Iterable[Point], along: float, across: float) -> Curve:
    """The curve, moved."""
    return tuple((point[0] + along, point[1] + across) for point in curve)


def split(curve: Curve, cuts: Sequence[float]) -> list[tuple[int, Curve]]:
    """The pieces of a curve between cuts, each with the number of cuts before it."""
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
    """A path of straight lines with rounded corners."""
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
    """The parameters at which a Bézier curve crosses a cut."""
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
    """A Bézier curve split in two (de Casteljau)."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The path of an edge."""

    curve: Curve
    tip: Point
    """Where its arrow ends."""
    label: Area | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxFrame:
    """A box, or the part of a box that is in one column."""

    box: NodeId
    area: Area
    core: Area
    """The area of the nodes in it."""
    title_room: float
    """The space of its title along the flow."""
    continued: bool = False
    """Whether it continues from an earlier column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLayout:
    """The positions of the nodes, edges and boxes of a graph."""

    nodes: Mapping[NodeId, Area]
    routes: tuple[Route, ...]
    """In the order of the graph's edges."""
    frames: tuple[BoxFrame, ...]
    """Outer boxes first."""

    @property
    def area(self) -> Area:
        return union(self.areas())

    def areas(self) -> Iterator[Area]:
        yield from self.nodes.values()
        for frame in self.frames:
            yield frame.area
        for route in self.routes:
            yield around(route.curve)
            if route.label is not None:
                yield route.label


Direction = Literal["down", "up", "right"]
Corners = tuple[float, float, float, float]
"""Left, bottom, right and top on the page, in points; upwards is positive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowDirection:
    """The direction of the flow on the page."""

    rank: str
    """Its name in Graphviz."""
    title_edge: str
    """The side of a box where the flow enters: "t" for top, "b" for bottom."""
    titles_beside: bool
    """Whether titles are beside the flow, not at its start."""
    into_flow: Callable[[float, float], Point]
    """From page coordinates to along and across."""
    onto_page: Callable[[float, float], Point]
    """From along and across to page coordinates."""

    def flow_area(self, corners: Corners) -> Area:
        """An area of the page, in the flow."""
        left, bottom, right, top = corners
        one, other = self.into_flow(left, bottom), self.into_flow(right, top)
        (begin, end), (near, far) = (sorted(pair) for pair in zip(one, other, strict=True))
        return Area(begin, end, near, far)

    def page_corners(self, area: Area) -> Corners:
        """An area of the flow, on the page."""
        one, other = self.onto_page(area.begin, area.left), self.onto_page(area.end, area.right)
        (left, right), (bottom, top) = (sorted(pair) for pair in zip(one, other, strict=True))
        return left, bottom, right, top


FLOW_DIRECTIONS: Mapping[Direction, FlowDirection] = {
    "down": FlowDirection(
        rank="TB",
        title_edge="t",
        titles_beside=False,
        into_flow=lambda x, y: (-y, x),
        onto_page=lambda along, across: (across, -along),
    ),
    "up": FlowDirection(
        rank="BT",
        title_edge="b",
        titles_beside=False,
        into_flow=lambda x, y: (y, x),
        onto_page=lambda along, across: (across, along),
    ),
    "right": FlowDirection(
        rank="LR",
        title_edge="t",
        titles_beside=True,
        into_flow=lambda x, y: (x, -y),
        onto_page=lambda along, across: (along, -across),
    ),
}
