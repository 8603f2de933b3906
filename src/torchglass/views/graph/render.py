"""Draws a graph.

draw(fold(trace, model), Path("model.svg"))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from torchglass.errors import ViewError
from torchglass.records.trace import Graph, Node
from torchglass.tables.export import in_its_folder
from torchglass.views.graph.arrange import arrange, arrange_in_rows, is_too_much_for_dot
from torchglass.views.graph.graphviz import POINTS, DotGraph, Graphviz, graphviz
from torchglass.views.graph.layout import (
    FLOW_DIRECTIONS,
    Corners,
    Direction,
    FlowDirection,
    GraphLayout,
    Point,
    wrap,
)
from torchglass.views.graph.style import (
    DARK,
    LIGHT,
    Attributes,
    ColorBy,
    GraphStyle,
    NodeColors,
    Overrides,
    mix,
    words_only,
)

_INSET = 6.0
"""The distance of a title from the corner of its box."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text on the page that is not a node of the graph."""

    attributes: Attributes
    middle: Point
    """On the page."""


def paint(
    layout: GraphLayout,
    style: GraphStyle,
    heading: FlowDirection,
    texts: Iterable[Text],
    graphviz: Graphviz,
    *,
    format: str,
    dpi: float,
) -> bytes:
    """The picture in a file format."""
    titles = _titles(layout, style, heading, graphviz)
    drawing = DotGraph({**style.of_graph(), "pad": "0.25", "dpi": f"{dpi:.0f}"})
    for number, (frame, lines) in enumerate(zip(layout.frames, titles, strict=True)):
        corners = ",".join(f"{side:.2f}" for side in heading.page_corners(frame.area))
        attributes = style.of_box(style.boxes[frame.box])
        if frame.continued:
            attributes["id"] += f" {number}"
        drawing.boxes.append((f"cluster_{number}", None, {"bb": corners, **attributes}))
        _add_text(drawing, lines, f"cluster_{number}")
    _add_text(drawing, texts, None)
    for node in style.graph.leaves:
        middle = heading.onto_page(*layout.nodes[node.id].centre)
        shown = {"pos": _place(middle), **style.of_node(node)}
        drawing.nodes.append((style.names[node.id], None, shown))
    _add_edges(drawing, layout, style, heading)
    # All positions are set, so Graphviz must not choose others.
    return graphviz.draw(drawing, format, engine="nop2")


def _add_text(drawing: DotGraph, texts: Iterable[Text], box: str | None) -> None:
    """Add text as nodes, because nodes are drawn over edges, and labels are not."""
    for text in texts:
        # Starts with a zero-width space, as no node name does.
        name = f"\u200b{text.middle}"
        drawing.nodes.append((name, box, {"pos": _place(text.middle), **text.attributes}))


def _add_edges(
    drawing: DotGraph, layout: GraphLayout, style: GraphStyle, heading: FlowDirection
) -> None:
    for edge, route in zip(style.graph.edges, layout.routes, strict=True):
        attributes = style.of_edge(edge)
        way = " ".join(_place(heading.onto_page(*point)) for point in route.curve)
        attributes["pos"] = f"e,{_place(heading.onto_page(*route.tip))} {way}"
        if route.label is not None:
            attributes["lp"] = _place(heading.onto_page(*route.label.centre))
        drawing.edges.append((style.names[edge.source], style.names[edge.target], attributes))


def _titles(
    layout: GraphLayout, style: GraphStyle, heading: FlowDirection, graphviz: Graphviz
) -> list[list[Text]]:
    """The title lines of all boxes, each in the corner where the flow enters."""
    titles = [
        style.of_title(style.boxes[frame.box], continued=frame.continued) for frame in layout.frames
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


_ENTRY_WIDTH = 120
_SWATCH_WIDTH = 20
_GAP = 6
_RAMP_STEPS = 5


def legend(style: GraphStyle, width: float) -> Attributes | None:
    """The attributes of the legend, as a node of about this width in points; None if not needed."""
    cells = list(_cells(style))
    if not cells:
        return None
    per_row = math.ceil(len(cells) / math.ceil(len(cells) * _ENTRY_WIDTH / width))
    rows = "".join(
        f"<tr>{''.join(cells[start : start + per_row])}</tr>"
        for start in range(0, len(cells), per_row)
    )
    dim = style.palette.dim
    label = (
        f'<<font point-size="9" color="{dim}">'
        f'<table border="0" cellspacing="5" cellpadding="2">{rows}</table></font>>'
    )
    return words_only(label)


def _cells(style: GraphStyle) -> Iterator[str]:
    palette, nodes = style.palette, style.graph.leaves
    for colors, line, text in _entries(style, nodes):
        yield _entry(_swatch(colors, line), text)
    if any(node.detail.repetition.times > 1 for node in style.graph.nodes):
        colors = NodeColors(fill=palette.boxes[0], line=palette.repeat)
        yield _entry(_swatch(colors, "rounded", border=2), "drawn once, runs n ×")
    if style.color_by is not None:
        width = _SWATCH_WIDTH // _RAMP_STEPS
        steps = "".join(
            f'<td bgcolor="{mix(palette, step / (_RAMP_STEPS - 1))}" width="{width}"></td>'
            for step in range(_RAMP_STEPS)
        )
        ramp = (
            '<td cellpadding="0"><table border="0" cellspacing="0" cellborder="0" cellpadding="0">'
            f"<tr>{steps}</tr></table></td>"
        )
        most = f", up to {style.amount(style.most)}" if style.most else ": not known"
        yield _entry(ramp, f"{style.color_by}{most}")


def _entry(sign: str, text: str) -> str:
    return f'{sign}<td align="left">{text}</td><td width="{_GAP}"></td>'


def _entries(style: GraphStyle, nodes: Iterable[Node]) -> Iterator[tuple[NodeColors, str, str]]:
    """The colors, outline style and meaning of each kind of node that occurs."""
    palette = style.palette
    ramped = style.color_by is not None
    plain = NodeColors(fill=palette.ground, line=palette.op.line)
    found = list(nodes)
    ops = [node for node in found if node.kind in ("op", "call")]
    has_parameters = any(node.detail.parameters for node in ops)
    candidates = (
        (any(node.kind == "input" for node in found), palette.input, "rounded", "input"),
        (any(node.kind == "output" for node in found), palette.output, "rounded", "output"),
        (not ramped and has_parameters, palette.parameters, "", "has parameters"),
        (any(node.module and node.kind == "op" for node in ops), plain, "", "square: a module"),
        (any(not node.module for node in ops), plain, "rounded", "round: an op"),
        (any(node.kind == "call" for node in ops), plain, "", "solid: a closed module"),
        (any(not node.detail.from_input for node in ops), plain, "dashed", "not from the input"),
        (any(node.kind == "buffer" for node in found), palette.buffer, "", "buffer"),
        (any(node.kind == "stub" for node in found), plain, "dotted", "outside the module"),
        (any(node.detail.failed for node in found), palette.failure, "", "raised"),
    )
    return ((colors, line, text) for occurs, colors, line, text in candidates if occurs)


def _swatch(colors: NodeColors, line: str, border: int = 1) -> str:
    style = f' style="{line}"' if line else ""
    return (
        f'<td width="{_SWATCH_WIDTH}" height="12" fixedsize="true" border="{border}"'
        f' bgcolor="{colors.fill}" color="{colors.line}"{style}></td>'
    )


FORMATS = ("svg", "png", "pdf", "jpg", "dot")
_PIXELS = ("png", "jpg")

_PAGE_SHAPE = 1.0
"""Width to height of wrapped pictures, between portrait and landscape."""
_DPI = 144.0
_MOST_PIXELS = 40e6
_LONGEST_SIDE = 30_000
"""Pixels; cairo cannot draw longer images."""
_APART = 14.0
_NARROWEST_LEGEND = 270.0


def draw(
    graph: Graph,
    path: Path | None = None,
    *,
    format: str | None = None,
    direction: Direction = "down",
    color_by: ColorBy | None = None,
    dark: bool = False,
    overrides: Overrides | None = None,
) -> bytes:
    """The picture of a graph as the bytes of a file, also written to a path if one is given.

    The format defaults to the suffix of the path, and without a path to SVG.
    """
    kind = _format(path, format)
    _check("direction", direction, get_args(Direction))
    if color_by is not None:
        _check("color_by", color_by, get_args(ColorBy))
    style = GraphStyle(graph, DARK if dark else LIGHT, color_by, overrides or Overrides())
    heading = FLOW_DIRECTIONS[direction]
    with graphviz(f"{len(graph.leaves):,} nodes") as drawer:
        in_rows = is_too_much_for_dot(graph) and not style.chooses_layout
        layout = (arrange_in_rows if in_rows else arrange)(style, heading, drawer)
        layout = wrap(layout, shape=_PAGE_SHAPE)
        corners = heading.page_corners(layout.area)
        texts = [_headline(style, corners, drawer), *_legend(style, corners, drawer)]
        dpi = _dpi(corners) if kind in _PIXELS else POINTS
        picture = paint(layout, style, heading, texts, drawer, format=kind, dpi=dpi)
    if path is not None:
        in_its_folder(path).write_bytes(picture)
    return picture


def _format(path: Path | None, format: str | None) -> str:
    kind = (format or (path.suffix.lstrip(".") if path is not None else "") or "svg").lower()
    _check("format", kind, FORMATS)
    return kind


def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ViewError(f"{name} must be one of {', '.join(known)}, not {value!r}")


def _headline(style: GraphStyle, corners: Corners, drawer: Graphviz) -> Text:
    left, _, _, top = corners
    attributes = style.of_headline()
    [(width, height)] = drawer.measure([attributes])
    return Text(attributes, (left + width / 2, top + _APART + height / 2))


def _legend(style: GraphStyle, corners: Corners, drawer: Graphviz) -> Iterator[Text]:
    left, bottom, right, _ = corners
    attributes = legend(style, max(right - left, _NARROWEST_LEGEND))
    if attributes is not None:
        [(width, height)] = drawer.measure([attributes])
        yield Text(attributes, (left + width / 2, bottom - _APART - height / 2))


def _dpi(corners: Corners) -> float:
    """Dots per inch, reduced for a picture too large for other programs to open."""
    left, bottom, right, top = corners
    width, height = max(1.0, (right - left) / POINTS), max(1.0, (top - bottom) / POINTS)
    sharpest = math.sqrt(_MOST_PIXELS / (width * height))
    return min(_DPI, sharpest, _LONGEST_SIDE / max(width, height))
