"""Positions of everything in a drawing: areas, curves, directions.

Drawn downwards, "along" runs down the page and "across" to the right; drawn to the right, "along"
runs to the right and "across" down the page. The layout code is the same for both.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from torchglass.records.trace import NodeId

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

_FITS_A_PAGE = 800.0
"""Length in points that needs no wrapping: that of a sheet of paper."""
_SLENDER = 2.0
"""A picture is wrapped if its length is more than this many times its width."""
_MOST_COLUMNS = 60
_TOO_BROAD = 1.6
"""Above this ratio to the wanted shape, more columns are not tried."""
_LANE = 9.0
"""The distance between two edges that run from column to column."""
_GUTTER = 26.0
_PAD = 8.0
_BEND = 8.0
_STRAY = 0.45
"""How far a cut may be from equal columns, in columns."""
_CROSSED, _CLOSED = 0.05, 0.2
"""The cost of cutting an edge and a box; an unequal column costs its difference."""


@dataclass(frozen=True, slots=True, order=True)
class _ColumnCut:
    """A position where a layout could be cut."""

    place: float
    cost: float


@dataclass(frozen=True, slots=True)
class _LayoutColumn:
    """A part of a layout, and its offset."""

    area: Area
    along: float
    across: float


def wrap(layout: GraphLayout, *, shape: float) -> GraphLayout:
    """The layout in columns if it is long: about `shape` times as wide as long."""
    areas = list(layout.areas())
    whole = union(areas)
    if whole.length <= max(_FITS_A_PAGE, _SLENDER * whole.breadth):
        return layout
    possible = _possible_cuts(layout)
    best: list[_ColumnCut] = []
    lowest = math.inf
    for columns in range(2, _MOST_COLUMNS):
        cuts = _choose(possible, whole, columns)
        bands = _bands(areas, [cut.place for cut in cuts])
        long = max(band.length for band in bands)
        broad = sum(band.breadth for band in bands) + _GUTTER * len(cuts)
        empty = long * len(bands) / whole.length - 1
        hardest = max((cut.cost for cut in cuts), default=0.0)
        cost = abs(math.log(broad / long / shape)) + empty + hardest
        if cuts and cost < lowest:
            best, lowest = cuts, cost
        if broad > long * shape * _TOO_BROAD:
            break
    return _Wrapped(layout, areas, [cut.place for cut in best]).layout() if best else layout


def _possible_cuts(layout: GraphLayout) -> list[_ColumnCut]:
    """The middle of each gap without nodes, labels and arrows, and the cost of a cut there."""
    taken = sorted(
        (area.begin, area.end)
        for area in (
            *layout.nodes.values(),
            *(route.label for route in layout.routes if route.label is not None),
            *(around((route.curve[-1], route.tip)) for route in layout.routes),
            *(part for frame in layout.frames for part in _margins(frame)),
        )
    )
    borders = sorted(
        border for frame in layout.frames for border in (frame.area.begin, frame.area.end)
    )
    edges = _Spans([around(route.curve) for route in layout.routes])
    boxes = _Spans([frame.area for frame in layout.frames])
    cuts = []
    reached = taken[0][1]
    for begin, end in taken:
        inside = borders[bisect_left(borders, reached) : bisect_left(borders, begin)]
        for low, high in pairwise((reached, *inside, begin)):
            if high - low > 1:
                place = (low + high) / 2
                cost = _CROSSED * edges.over(place) + _CLOSED * boxes.over(place)
                cuts.append(_ColumnCut(place, cost))
        reached = max(reached, end)
    return cuts


def _margins(frame: BoxFrame) -> tuple[Area, Area]:
    """The areas of a box before and after its nodes, where a cut would leave an empty part."""
    return replace(frame.area, end=frame.core.begin), replace(frame.area, begin=frame.core.end)


class _Spans:
    """Counts the areas that cover a position."""

    def __init__(self, areas: Sequence[Area]) -> None:
        self._begins = sorted(area.begin for area in areas)
        self._ends = sorted(area.end for area in areas)

    def over(self, place: float) -> int:
        return bisect_left(self._begins, place) - bisect_left(self._ends, place)


def _choose(possible: Sequence[_ColumnCut], whole: Area, columns: int) -> list[_ColumnCut]:
    """The cheapest cuts near the positions of equal columns."""
    chosen: list[_ColumnCut] = []
    begin = whole.begin
    for left in range(columns, 1, -1):
        size = (whole.end - begin) / left
        low, high = (begin + size * (1 + stray) for stray in (-_STRAY, _STRAY))
        near = possible[
            bisect_left(possible, _ColumnCut(low, 0)) : bisect_left(possible, _ColumnCut(high, 0))
        ]
        if near:
            ideal = begin + size
            chosen.append(min(near, key=lambda cut: cut.cost + abs(cut.place - ideal) / size))
            begin = chosen[-1].place
    return chosen


def _bands(areas: Iterable[Area], cuts: Sequence[float]) -> list[Area]:
    """The area between each two cuts."""
    found: list[list[Area]] = [[] for _ in range(len(cuts) + 1)]
    for area in areas:
        for band in range(bisect_left(cuts, area.begin), bisect_left(cuts, area.end) + 1):
            found[band].append(area)
    whole = [union(band) for band in found]
    borders = [whole[0].begin, *cuts, whole[-1].end]
    return [
        replace(band, begin=begin, end=end)
        for band, (begin, end) in zip(whole, pairwise(borders), strict=True)
    ]


class _Wrapped:
    """A layout whose cuts are chosen."""

    def __init__(self, layout: GraphLayout, areas: Sequence[Area], cuts: Sequence[float]) -> None:
        self._layout = layout
        self._cuts = cuts
        self._bands = _bands(areas, cuts)
        self._pieces = [split(route.curve, cuts) for route in layout.routes]
        self._lanes = [sorted(found) for found in self._crossed()]
        """Where edges cross each cut; overlapping edges of one node share a lane."""
        self._closed = [
            [frame for frame in layout.frames if frame.area.begin < cut < frame.area.end]
            for cut in cuts
        ]
        self._columns = self._place_columns()

    def layout(self) -> GraphLayout:
        nodes = {name: self._moved(area) for name, area in self._layout.nodes.items()}
        routes = [self._route(number) for number in range(len(self._layout.routes))]
        frames = [part for frame in self._layout.frames for part in self._parts(frame)]
        return GraphLayout(nodes=nodes, routes=tuple(routes), frames=tuple(frames))

    def _crossed(self) -> list[set[float]]:
        found: list[set[float]] = [set() for _ in self._cuts]
        for pieces in self._pieces:
            for (band, piece), (following, _) in pairwise(pieces):
                found[min(band, following)].add(_lane_of(piece))
        return found

    def _place_columns(self) -> list[_LayoutColumn]:
        columns: list[_LayoutColumn] = []
        edge = 0.0
        for number, band in enumerate(self._bands):
            along = self._head(number) - band.begin
            columns.append(_LayoutColumn(band, along, edge - band.left))
            lanes = len(self._lanes[number]) if number < len(self._cuts) else 0
            edge += band.breadth + _GUTTER + _LANE * lanes
        return columns

    def _head(self, column: int) -> float:
        """The space that a column needs above its first node."""
        if column == 0:
            return 0.0
        titles = sum(frame.title_room + _PAD for frame in self._closed[column - 1])
        return _LANE * len(self._lanes[column - 1]) + titles + _PAD

    def _foot(self, column: int) -> float:
        """The end of a column, after it is moved."""
        return self._columns[column].area.end + self._columns[column].along

    def _column_of(self, along: float) -> _LayoutColumn:
        return self._columns[bisect_left(self._cuts, along)]

    def _moved(self, area: Area) -> Area:
        column = self._column_of(area.centre[0])
        return area.moved(column.along, column.across)

    def _route(self, number: int) -> Route:
        route, pieces = self._layout.routes[number], self._pieces[number]
        curve: Curve = ()
        for index, (band, piece) in enumerate(pieces):
            column = self._columns[band]
            here = moved(piece, column.along, column.across)
            if not curve:
                curve = here
                continue
            before = pieces[index - 1][0]
            way = self._way_round(min(band, before), _lane_of(pieces[index - 1][1]))
            curve += (way if band > before else way[::-1])[1:] + here[1:]
        column = self._columns[pieces[-1][0]]
        tip = moved((route.tip,), column.along, column.across)[0]
        label = self._moved(route.label) if route.label is not None else None
        return Route(curve=curve, tip=tip, label=label)

    def _way_round(self, cut: int, across: float) -> Curve:
        """From the foot of a column, through the gutter, to the head of the next.

        Nested like this, no two paths cross: an edge further left goes lower at the foot, further
        right in the gutter, and lower again at the head.
        """
        lanes = self._lanes[cut]
        outer = len(lanes) - 1 - bisect_left(lanes, across)
        column, following = self._columns[cut], self._columns[cut + 1]
        foot, begin = self._foot(cut), self._cuts[cut] + following.along
        turn = foot + _PAD * (len(self._closed[cut]) + 1) + _LANE * outer
        gutter = column.area.right + column.across + _GUTTER / 2 + _LANE * outer
        head = _LANE * outer
        leave, enter = across + column.across, across + following.across
        corners: list[Point] = [
            (foot, leave),
            (turn, leave),
            (turn, gutter),
            (head, gutter),
            (head, enter),
            (begin, enter),
        ]
        return rounded(corners, _BEND)

    def _parts(self, frame: BoxFrame) -> Iterator[BoxFrame]:
        first = bisect_left(self._cuts, frame.area.begin)
        last = bisect_left(self._cuts, frame.area.end)
        for number in range(first, last + 1):
            column = self._columns[number]
            area = frame.area.moved(column.along, column.across)
            if number < last:
                around_it = self._closed[number]
                room = _PAD * (len(around_it) - around_it.index(frame))
                area = replace(area, end=self._foot(number) + room)
            if number > first:
                area = replace(area, begin=self._opening(number, frame))
            yield replace(frame, area=area, continued=number > first)

    def _opening(self, column: int, frame: BoxFrame) -> float:
        """Where a cut box continues: outer boxes first, each with its title."""
        closed = self._closed[column - 1]
        before = closed[: closed.index(frame)]
        lanes = _LANE * len(self._lanes[column - 1])
        return lanes + sum(other.title_room + _PAD for other in before)


def _lane_of(piece: Curve) -> float:
    """Where a piece of an edge meets a cut, across the flow."""
    return round(piece[-1][1], 3)
