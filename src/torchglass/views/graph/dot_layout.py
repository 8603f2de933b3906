"""The layout by Graphviz' dot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torchglass.records.graph import Graph, NodeId
from torchglass.views.graph.graphviz import POINTS, DotGraph, Graphviz
from torchglass.views.graph.layout import (
    Area,
    BoxFrame,
    Corners,
    FlowDirection,
    GraphLayout,
    Point,
    Route,
    union,
)
from torchglass.views.graph.style import GraphStyle

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
    attributes = {
        "rankdir": heading.rank,
        "ranksep": "0.3",
        "nodesep": "0.2",
        **style.of_graph(),
    }
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
        drawing.add_box(f"cluster_{number}", clusters[box.parent], shown)
    for number, node in enumerate(style.graph.leaves):
        shown = {"comment": f"node {number}", **style.of_node(node)}
        drawing.add_node(style.names[node.id], clusters[node.parent], shown)
    for number, edge in enumerate(style.graph.edges):
        ends = style.names[edge.source], style.names[edge.target]
        drawing.add_edge(*ends, {"comment": f"edge {number}", **style.of_edge(edge)})
    return drawing


def _node_corners(part: Placed) -> Corners:
    corners = list(_outline(part))
    # A shape without an outline has no drawing, so use its position.
    x, y = _middle(corners) if corners else _pair(part["pos"])
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
    x, y = _middle([line["pt"] for line in lines])
    y += _ABOVE_BASELINE
    width = max(line["width"] for line in lines) / 2
    height = len(lines) * _LINE / 2
    return x - width, y - height, x + width, y + height


def _frames(
    graph: Graph, placed: Mapping[str, Placed], cores: Mapping[NodeId, Area], heading: FlowDirection
) -> Iterator[BoxFrame]:
    for number, box in enumerate(graph.boxes):
        part = placed[f"box {number}"]
        outline = list(_outline(part))
        xs, ys = [x for x, _ in outline], [y for _, y in outline]
        height = float(part["lheight"]) * POINTS
        yield BoxFrame(
            box=box.id,
            area=heading.flow_area((min(xs), min(ys), max(xs), max(ys))),
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


def _middle(points: list[Point]) -> Point:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return (min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2


def _pair(text: str) -> Point:
    x, y = text.split(",")
    return float(x), float(y)
