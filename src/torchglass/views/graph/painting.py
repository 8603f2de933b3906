"""The picture of a layout, drawn by Graphviz with everything where the layout has it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchglass.views.graph.directions import Heading
from torchglass.views.graph.geometry import Point
from torchglass.views.graph.graphviz import Drawing, Graphviz
from torchglass.views.graph.layout import Layout
from torchglass.views.graph.style import Attributes, Style

_INSET = 6.0
"""Of a title from the corner of its box."""


@dataclass(frozen=True, slots=True)
class Text:
    """Words on the page that are no node of the graph."""

    attributes: Attributes
    middle: Point
    """On the page."""


def paint(
    layout: Layout,
    style: Style,
    heading: Heading,
    texts: Iterable[Text],
    graphviz: Graphviz,
    *,
    format: str,
    dpi: float,
) -> bytes:
    """The picture as a file of a format."""
    titles = _titles(layout, style, heading, graphviz)
    drawing = Drawing({**style.of_graph(), "pad": "0.25", "dpi": f"{dpi:.0f}"})
    for number, (frame, lines) in enumerate(zip(layout.frames, titles, strict=True)):
        corners = ",".join(f"{side:.2f}" for side in heading.page_corners(frame.area))
        attributes = style.of_box(style.boxes[frame.name])
        if frame.continued:
            attributes["id"] += f" {number}"
        drawing.add_box(f"cluster_{number}", None, {"bb": corners, **attributes})
        _add_text(drawing, lines, f"cluster_{number}")
    _add_text(drawing, texts, None)
    for node in style.graph.nodes:
        middle = heading.onto_page(*layout.nodes[node.name].centre)
        shown = {"pos": _place(middle), **style.of_node(node)}
        drawing.add_node(style.names[node.name], None, shown)
    _add_edges(drawing, layout, style, heading)
    # Everything has its place; Graphviz is not to look for another.
    return graphviz.draw(drawing, format, engine="nop2")


def _add_text(drawing: Drawing, texts: Iterable[Text], box: str | None) -> None:
    """Add words as nodes, since nodes are drawn over edges, and labels are not."""
    for text in texts:
        # Begins with a space of no width, as no name of a node does.
        name = f"\u200b{text.middle}"
        drawing.add_node(name, box, {"pos": _place(text.middle), **text.attributes})


def _add_edges(drawing: Drawing, layout: Layout, style: Style, heading: Heading) -> None:
    for edge, route in zip(style.graph.edges, layout.routes, strict=True):
        attributes = style.of_edge(edge)
        way = " ".join(_place(heading.onto_page(*point)) for point in route.curve)
        attributes["pos"] = f"e,{_place(heading.onto_page(*route.tip))} {way}"
        if route.label is not None:
            attributes["lp"] = _place(heading.onto_page(*route.label.centre))
        drawing.add_edge(style.names[edge.source], style.names[edge.target], attributes)


def _titles(layout: Layout, style: Style, heading: Heading, graphviz: Graphviz) -> list[list[Text]]:
    """The lines of the titles of all boxes, each in the corner where the flow comes in."""
    titles = [
        style.of_title(style.boxes[frame.name], continued=frame.continued)
        for frame in layout.frames
    ]
    sizes = iter(graphviz.measure([line for lines in titles for line in lines]))
    placed: list[list[Text]] = []
    for frame, lines in zip(layout.frames, titles, strict=True):
        left, bottom, _, top = heading.page_corners(frame.area)
        measured = [next(sizes) for _ in lines]
        height = sum(size[1] for size in measured)
        y = top - _INSET if heading.title_edge == "t" else bottom + _INSET + height
        placed.append([])
        for attributes, (width, line) in zip(lines, measured, strict=True):
            placed[-1].append(Text(attributes, (left + _INSET + width / 2, y - line / 2)))
            y -= line
    return placed


def _place(point: Point) -> str:
    return f"{point[0]:.2f},{point[1]:.2f}"
