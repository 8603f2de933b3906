"""Places the nodes, edges and boxes of a graph: by Graphviz' dot, or in rows.

Rows take time linear in the size of the graph, where dot takes minutes. Edges that leave the same
node share a lane.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchglass.records.trace import Edge, Graph, Node, NodeId
from torchglass.views.graph.graphviz import POINTS, DotGraph, Graphviz
from torchglass.views.graph.layout import (
    Area,
    BoxFrame,
    Corners,
    FlowDirection,
    GraphLayout,
    Point,
    Route,
    around,
    rounded,
    union,
)
from torchglass.views.graph.style import GraphStyle, edge_lines, words_only

Placed = Mapping[str, Any]
"""A node, edge or box with its position, as in Graphviz' JSON."""

_LINE = 11.0
"""The height of a line of an edge's label."""
_ABOVE_BASELINE = 3.0
"""From the baseline of a line to its middle."""
_MITER = 1.66
"""How much shorter an arrow is drawn, to make room for the outline of its tip."""


def arrange(style: GraphStyle, heading: FlowDirection, graphviz: Graphviz) -> GraphLayout:
    """The layout of a graph, not wrapped."""
    graph = style.graph
    spaces = {"ranksep": "0.3", "nodesep": "0.2"}
    attributes = {"rankdir": heading.rank, **spaces, **style.of_graph()}
    # The positions that dot writes have five digits, too few for a long picture; its drawing
    # is exact.
    drawn = graphviz.layout(_drawing(style, attributes))
    placed = {
        part["comment"]: part for part in (*drawn.get("objects", ()), *drawn.get("edges", ()))
    }
    nodes = {
        node.id: heading.flow_area(_node_corners(placed[f"node {number}"]))
        for number, node in enumerate(graph.leaves)
    }
    routes = [_route(placed[f"edge {number}"], heading) for number, _ in enumerate(graph.edges)]
    frames = _frames(graph, placed, cores(graph, nodes), heading)
    return GraphLayout(nodes=nodes, routes=tuple(routes), frames=tuple(frames))


def _drawing(style: GraphStyle, attributes: Mapping[str, str]) -> DotGraph:
    """All parts of a graph, each with a comment that identifies it."""
    drawing = DotGraph(attributes)
    clusters: dict[NodeId | None, str | None] = {None: None}
    for number, box in enumerate(style.graph.boxes):
        clusters[box.id] = f"cluster_{number}"
        shown = {"comment": f"box {number}", "label": style.title_of(box), **style.of_box(box)}
        drawing.boxes.append((f"cluster_{number}", clusters[box.parent], shown))
    for number, node in enumerate(style.graph.leaves):
        shown = {"comment": f"node {number}", **style.of_node(node)}
        drawing.nodes.append((style.names[node.id], clusters[node.parent], shown))
    for number, edge in enumerate(style.graph.edges):
        ends = style.names[edge.source], style.names[edge.target]
        drawing.edges.append((*ends, {"comment": f"edge {number}", **style.of_edge(edge)}))
    return drawing


def _node_corners(part: Placed) -> Corners:
    corners = list(_outline(part))
    # A shape without an outline has no drawing, so use its position.
    x, y = around(corners).centre if corners else map(float, part["pos"].split(","))
    width, height = float(part["width"]) * POINTS, float(part["height"]) * POINTS
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _route(part: Placed, heading: FlowDirection) -> Route:
    [curve] = [stroke["points"] for stroke in part["_draw_"] if stroke["op"] == "b"]
    flowing = [heading.into_flow(x, y) for x, y in curve]
    tips = [stroke["points"][1] for stroke in part.get("_hdraw_", ()) if stroke["op"] == "P"]
    lines = [stroke for stroke in part.get("_ldraw_", ()) if stroke["op"] == "T"]
    return Route(
        curve=tuple(flowing),
        tip=heading.into_flow(*_beyond(curve[-1], tips[0])) if tips else flowing[-1],
        label=heading.flow_area(_label_corners(lines)) if lines else None,
    )


def _beyond(base: Point, tip: Point) -> Point:
    """The end of an arrow before its tip was drawn shorter."""
    length = math.dist(base, tip) or 1.0
    share = 1 + _MITER / length
    return base[0] + (tip[0] - base[0]) * share, base[1] + (tip[1] - base[1]) * share


def _label_corners(lines: list[Placed]) -> Corners:
    x, y = around(line["pt"] for line in lines).centre
    y += _ABOVE_BASELINE
    width = max(line["width"] for line in lines) / 2
    height = len(lines) * _LINE / 2
    return x - width, y - height, x + width, y + height


def _frames(
    graph: Graph, placed: Mapping[str, Placed], cores: Mapping[NodeId, Area], heading: FlowDirection
) -> Iterator[BoxFrame]:
    for number, box in enumerate(graph.boxes):
        part = placed[f"box {number}"]
        page = around(_outline(part))
        height = float(part["lheight"]) * POINTS
        yield BoxFrame(
            box=box.id,
            area=heading.flow_area((page.begin, page.left, page.end, page.right)),
            core=cores[box.id],
            title_room=0.0 if heading.titles_beside else height,
        )


def cores(graph: Graph, nodes: Mapping[NodeId, Area]) -> dict[NodeId, Area]:
    """The areas of the nodes in each box, inner boxes included."""
    inside: dict[NodeId | None, list[Area]] = {}
    for node in graph.leaves:
        inside.setdefault(node.parent, []).append(nodes[node.id])
    found: dict[NodeId, Area] = {}
    for box in reversed(graph.boxes):
        found[box.id] = union(inside[box.id])
        inside.setdefault(box.parent, []).append(found[box.id])
    return found


def _outline(part: Placed) -> Iterator[Point]:
    """Points of the outline of a node or a box."""
    for stroke in part.get("_draw_", ()):
        if "rect" in stroke:
            x, y, width, height = stroke["rect"]
            yield x - width, y - height
            yield x + width, y + height
        yield from stroke.get("points", ())


_MOST_NODES = 400
_LONGEST_EDGES = 1500
"""Total ranks spanned by all edges, above which dot takes seconds."""
_GAP = 20.0
"""The distance between two rows."""
_LANE = 9.0
_PAD = 8.0
_BEND = 6.0
_ARROW = 6.0
_LABEL_LINE = 11.0
_ENTRIES = (0.15, 0.7)
"""The part of a node's side where edges enter."""
_EXIT = 0.85
"""The position on a node's side where edges leave."""


def is_too_much_for_dot(graph: Graph) -> bool:
    """Whether dot would take more than a few seconds."""
    if len(graph.leaves) > _MOST_NODES:
        return True
    ranks = {node.id: 0 for node in graph.leaves}
    places = {node.id: place for place, node in enumerate(graph.leaves)}
    edges = sorted(graph.edges, key=lambda edge: places[edge.source])
    for edge in edges:
        if places[edge.source] < places[edge.target]:
            ranks[edge.target] = max(ranks[edge.target], ranks[edge.source] + 1)
    reach = sum(abs(ranks[edge.target] - ranks[edge.source]) for edge in edges)
    return reach > _LONGEST_EDGES


def arrange_in_rows(style: GraphStyle, heading: FlowDirection, graphviz: Graphviz) -> GraphLayout:
    """The layout of a graph as one column of nodes."""
    return _RowPlacement(style, heading, graphviz).layout()


@dataclass(frozen=True, slots=True)
class _Size:
    along: float
    across: float


class _RowPlacement:
    """Finds the positions of the rows of one graph."""

    def __init__(self, style: GraphStyle, heading: FlowDirection, graphviz: Graphviz) -> None:
        graph = style.graph
        self._graph = graph
        self._beside = heading.titles_beside
        measured = graphviz.measure(
            [style.of_node(node) for node in graph.leaves]
            + [words_only(style.title_of(box)) for box in graph.boxes]
            + [_label(style, edge) for edge in graph.edges]
        )
        sizes = [_Size(w, h) if self._beside else _Size(h, w) for w, h in measured]
        boxes = len(graph.leaves) + len(graph.boxes)
        self._sizes = dict(zip((node.id for node in graph.leaves), sizes, strict=False))
        boxed = (box.id for box in graph.boxes)
        self._titles = dict(zip(boxed, sizes[len(graph.leaves) :], strict=False))
        self._labels = [
            size if any(edge_lines(edge)) else None
            for edge, size in zip(graph.edges, sizes[boxes:], strict=True)
        ]
        self._order = list(_in_boxes(graph))
        self._row = {
            part.id: row
            for row, part in enumerate(part for part in self._order if part.id in self._sizes)
        }
        self._nodes: dict[NodeId, Area] = {}
        self._spans: dict[NodeId, tuple[float, float]] = {}
        """The start and end of each box."""
        self._place_rows()
        names = {node.id: node.name for node in graph.nodes}
        self._lanes, self._borders = _slots(self._lane_spans(), self._spans, names)
        self._first_lane = self._room_for_labels()

    def layout(self) -> GraphLayout:
        entries = self._entries()
        routes = [self._route(number, entries.get(number)) for number in range(len(self._labels))]
        inner = cores(self._graph, self._nodes)
        frames = [self._frame(box, inner[box.id]) for box in self._graph.boxes]
        return GraphLayout(nodes=self._nodes, routes=tuple(routes), frames=tuple(frames))

    def _place_rows(self) -> None:
        """Place nodes along the flow, with space for the titles and ends of boxes."""
        extra = self._room_above()
        begins: dict[NodeId, float] = {}
        along = 0.0
        for part in self._order:
            if part.id in self._sizes:
                size = self._sizes[part.id]
                along += extra.get(part.id, 0.0)
                half = size.across / 2
                self._nodes[part.id] = Area(along, along + size.along, -half, half)
                along += size.along + _GAP
            elif part.id in begins:
                end = along - _GAP + _PAD
                self._spans[part.id] = begins[part.id], end
                along = end + _GAP
            else:
                begins[part.id] = along
                along += _PAD + (0.0 if self._beside else self._titles[part.id].along)

    def _room_above(self) -> dict[NodeId, float]:
        """The extra space that the label of the edge from the row above needs."""
        room: dict[NodeId, float] = {}
        for edge, size in zip(self._graph.edges, self._labels, strict=True):
            if size is not None and self._is_next(edge):
                more = size.along + 2 * _ARROW - _GAP
                room[edge.target] = max(room.get(edge.target, 0.0), more)
        return room

    def _is_next(self, edge: Edge) -> bool:
        return self._row[edge.target] == self._row[edge.source] + 1

    def _lane_spans(self) -> dict[NodeId, tuple[float, float]]:
        """The start and end of the lane of each node with edges beyond the next row."""
        spans: dict[NodeId, tuple[float, float]] = {}
        for edge in self._graph.edges:
            if not self._is_next(edge):
                ends = self._nodes[edge.source].centre[0], self._nodes[edge.target].centre[0]
                known = spans.get(edge.source, ends)
                spans[edge.source] = min(*known, *ends), max(*known, *ends)
        return spans

    def _room_for_labels(self) -> float:
        """Where the lanes start: right of all nodes and labels."""
        room = {name: area.right for name, area in self._nodes.items()}
        for edge, size in zip(self._graph.edges, self._labels, strict=True):
            if size is not None and not self._is_next(edge):
                reach = self._nodes[edge.target].right + _ARROW + size.across
                room[edge.target] = max(room[edge.target], reach)
        titles = (title.across / 2 for title in self._titles.values())
        return max((*room.values(), *titles), default=0.0) + 2 * _PAD

    def _entries(self) -> dict[int, float]:
        """Where each edge from a lane enters, spread over the side of its node."""
        coming: dict[NodeId, list[int]] = {}
        for number, edge in enumerate(self._graph.edges):
            if not self._is_next(edge):
                coming.setdefault(edge.target, []).append(number)
        places: dict[int, float] = {}
        for target, numbers in coming.items():
            area = self._nodes[target]
            low, high = (area.begin + area.length * share for share in _ENTRIES)
            step = min(_LABEL_LINE, (high - low) / len(numbers))
            for place, number in enumerate(numbers):
                places[number] = low + step * (place + 0.5)
        return places

    def _route(self, number: int, entry: float | None) -> Route:
        edge, label = self._graph.edges[number], self._labels[number]
        source, target = self._nodes[edge.source], self._nodes[edge.target]
        if entry is None:
            tip: Point = (target.begin, 0.0)
            corners: list[Point] = [(source.end, 0.0), (target.begin - _ARROW, 0.0)]
            begin = (source.end + target.begin - _ARROW) / 2
            corner = begin - (label.along / 2 if label else 0.0), _PAD / 2
        else:
            leave = source.begin + source.length * _EXIT
            lane = self._lane_place(self._lanes[edge.source])
            tip = (entry, target.right)
            corners = [(leave, source.right), (leave, lane), (entry, lane)]
            corners.append((entry, target.right + _ARROW))
            corner = entry - (label.along if label else 0.0), target.right + _ARROW
        area = None
        if label is not None:
            area = Area(corner[0], corner[0] + label.along, corner[1], corner[1] + label.across)
        return Route(curve=rounded(corners, _BEND), tip=tip, label=area)

    def _frame(self, box: Node, core: Area) -> BoxFrame:
        begin, end = self._spans[box.id]
        left = min(core.left, -self._titles[box.id].across / 2) - _PAD * self._heights[box.id]
        right = self._lane_place(self._borders[box.id])
        title = 0.0 if self._beside else self._titles[box.id].along
        return BoxFrame(box=box.id, area=Area(begin, end, left, right), core=core, title_room=title)

    @property
    def _heights(self) -> Mapping[NodeId, int]:
        """The number of levels of boxes in each box, including itself."""
        heights: dict[NodeId | None, int] = {}
        for box in reversed(self._graph.boxes):
            heights[box.id] = heights.get(box.id, 0) + 1
            heights[box.parent] = max(heights.get(box.parent, 0), heights[box.id])
        return {box: height for box, height in heights.items() if box is not None}

    def _lane_place(self, slot: int) -> float:
        return self._first_lane + _LANE * slot


def _label(style: GraphStyle, edge: Edge) -> Mapping[str, str]:
    shown = style.of_edge(edge)
    font = {name: shown[name] for name in ("fontname", "fontsize")}
    return {"shape": "plain", "label": shown.get("label", ""), **font}


def _in_boxes(graph: Graph) -> Iterator[Node]:
    """All nodes in order; each box once before and once after its contents."""
    inside: dict[NodeId | None, list[Node]] = {}
    boxes = {box.id: box for box in graph.boxes}
    seen: set[NodeId] = set()
    for node in graph.leaves:
        part: Node = node
        parent = node.parent
        while parent is not None and parent not in seen:
            seen.add(parent)
            inside.setdefault(parent, []).append(part)
            part, parent = boxes[parent], boxes[parent].parent
        inside.setdefault(parent, []).append(part)
    waiting: list[tuple[Node, bool]] = [(part, False) for part in inside.get(None, ())][::-1]
    while waiting:
        part, opened = waiting.pop()
        yield part
        if part.id in boxes and not opened:
            waiting.append((part, True))
            waiting += [(inner, False) for inner in reversed(inside[part.id])]


def _slots(
    lanes: Mapping[NodeId, tuple[float, float]],
    boxes: Mapping[NodeId, tuple[float, float]],
    names: Mapping[NodeId, str],
) -> tuple[dict[NodeId, int], dict[NodeId, int]]:
    """The slot beside the nodes of each lane and of each box's border, the shortest innermost.

    Longer ones are placed later and so further out: no border cuts through a lane inside its box.
    """
    waiting = [
        (end - begin, is_box, names[node], begin, end, node)
        for is_box, spans in ((False, lanes), (True, boxes))
        for node, (begin, end) in spans.items()
    ]
    taken: list[_SlotSpans] = []
    found: tuple[dict[NodeId, int], dict[NodeId, int]] = {}, {}
    for _, is_box, _, begin, end, node in sorted(waiting):
        slot = 0
        if is_box:
            used = [number for number, one in enumerate(taken) if not one.is_free(begin, end)]
            slot = max(used, default=-1) + 1
        else:
            while slot < len(taken) and not taken[slot].is_free(begin, end):
                slot += 1
        if slot == len(taken):
            taken.append(_SlotSpans())
        taken[slot].take(begin, end)
        found[is_box][node] = slot
    return found


class _SlotSpans:
    """The occupied intervals of one slot, which do not overlap."""

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []

    def is_free(self, begin: float, end: float) -> bool:
        return bisect_left(self._ends, begin) == bisect_left(self._begins, end)

    def take(self, begin: float, end: float) -> None:
        place = bisect_left(self._begins, begin)
        self._begins.insert(place, begin)
        self._ends.insert(place, end)
