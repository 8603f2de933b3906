"""Draws a block diagram as one page, in SVG or PDF."""

from __future__ import annotations

from collections.abc import Iterator

from torchglass.analyse.block_diagram import BlockDiagram, DiagramPanel, Family
from torchglass.tables.text import format_count, format_flops
from torchglass.views.graph.block_layout import (
    LINE_HEIGHT,
    LINE_SIZE,
    PAD_Y,
    SHAPE_SIZE,
    TIMES_SIZE,
    TITLE_SIZE,
    BlockFrame,
    block_lines,
    place,
)
from torchglass.views.graph.style import LIGHT, NodeColors
from torchglass.views.graph.vector_page import (
    Anchor,
    Drawing,
    Line,
    Rectangle,
    Shape,
    TextLine,
    pdf,
    svg,
    text_width,
)

_MARGIN = 24.0
_HEADLINE = 46.0
_FOOTER = 16.0
_HEADLINE_SIZE = 17.0
_CORNER = 5.0
_STACK = (6.0, 3.0)
"""How far the copies behind a repeated block stick out."""
_COLORS: dict[Family, NodeColors] = {
    "input": NodeColors("#eef1f4", "#8b95a1"),
    "output": NodeColors("#eef1f4", "#8b95a1"),
    "convolution": NodeColors("#dbe9fb", "#5b8fd0"),
    "linear": NodeColors("#dff1e1", "#5ca56a"),
    "attention": NodeColors("#fde8d0", "#d8924a"),
    "embedding": NodeColors("#f9dde8", "#c9709a"),
    "pool": NodeColors("#fbe0de", "#cf7a72"),
    "norm": NodeColors("#fbf5d3", "#bfa83d"),
    "activation": NodeColors("#f4f4f6", "#9a9fa8"),
    "join": NodeColors("#ffffff", "#5c6470"),
    "module": NodeColors("#e9e4f7", "#8673bf"),
    "other": NodeColors("#ffffff", "#8b95a1"),
}
_NOTE = "Arrows without a shape carry the same shape as the arrow before."


def draw_blocks(diagram: BlockDiagram, format: str) -> bytes:
    """The page as the bytes of a file, "svg" or "pdf"."""
    page = place(diagram)
    shapes: list[Shape] = [
        TextLine(_MARGIN, _MARGIN + 14, diagram.info.model, _HEADLINE_SIZE, LIGHT.text, bold=True),
        TextLine(_MARGIN, _MARGIN + 29, _facts(diagram), LINE_SIZE + 0.5, LIGHT.dim),
    ]
    for x, y, panel, frame in page.panels:
        shapes += _framed(frame, x + _MARGIN, y + _MARGIN + _HEADLINE, panel)
    width = max(page.width, text_width(_NOTE, SHAPE_SIZE)) + 2 * _MARGIN
    height = page.height + 2 * _MARGIN + _HEADLINE + _FOOTER
    shapes.append(TextLine(_MARGIN, height - _MARGIN + 6, _NOTE, SHAPE_SIZE, LIGHT.dim))
    drawing = Drawing(width, height, diagram.info.model, tuple(shapes))
    return pdf(drawing) if format == "pdf" else svg(drawing).encode()


def _facts(diagram: BlockDiagram) -> str:
    info = diagram.info
    parts = [f"{format_count(info.parameters)} parameters"]
    if info.cost.flops:
        parts.append(f"{format_flops(info.cost.flops)}FLOPs forward")
    if diagram.is_closed:
        parts.append("inner modules closed")
    return " · ".join(parts)


def _framed(
    frame: BlockFrame, x: float, y: float, panel: DiagramPanel | None, level: int = 0
) -> Iterator[Shape]:
    block = frame.block
    if not frame.parts:
        yield from (_symbol if block.is_symbol else _layer)(frame, x, y)
        return
    if panel is None or panel.title:
        repeats = block.times > 1
        line = LIGHT.repeat if repeats else LIGHT.box_line
        fill = LIGHT.boxes[level % len(LIGHT.boxes)]
        yield Rectangle(x, y, frame.width, frame.height, 8, NodeColors(fill, line), 1 + repeats / 2)
        title = panel.title if panel is not None else block.name
        yield TextLine(x + 10, y + 16, title, TITLE_SIZE, LIGHT.text, bold=True)
        if repeats:
            at = x + frame.width - 10
            yield TextLine(at, y + 17, f"× {block.times}", TIMES_SIZE, LIGHT.repeat, True, "end")
    for wire in frame.wires:
        yield Line(tuple((a + x, b + y) for a, b in wire.points), LIGHT.edge, wire.has_arrow)
    for left, top, part in frame.parts:
        yield from _framed(part, x + left, y + top, None, level + 1)
    for wire in frame.wires:
        if wire.label:
            a, b = wire.label_at
            anchor: Anchor = "end" if wire.is_label_left else "start"
            yield TextLine(a + x, b + y, wire.label, SHAPE_SIZE, LIGHT.dim, False, anchor)


def _symbol(frame: BlockFrame, x: float, y: float) -> Iterator[Shape]:
    middle = x + frame.width / 2
    colors = _COLORS[frame.block.family]
    yield Rectangle(x, y, frame.width, frame.height, frame.height / 2, colors, 1.2)
    base = y + frame.height / 2 + 4.6
    yield TextLine(middle, base, frame.block.name, 14, LIGHT.text, False, "middle")
    if frame.block.times > 1:
        times = f"× {frame.block.times}"
        yield TextLine(x + frame.width, y + 1, times, TITLE_SIZE, LIGHT.repeat, bold=True)


def _layer(frame: BlockFrame, x: float, y: float) -> Iterator[Shape]:
    block, middle = frame.block, x + frame.width / 2
    is_round = block.family in ("input", "output", "join")
    radius = frame.height / 2 if is_round else _CORNER
    colors = _COLORS[block.family]
    for out in _STACK if block.times > 1 else ():
        yield Rectangle(x + out, y + out, frame.width, frame.height, radius, colors)
    yield Rectangle(x, y, frame.width, frame.height, radius, colors, 1.1)
    base = y + PAD_Y + 9
    title = text_width(block.title, TITLE_SIZE, bold=True)
    times = f"× {block.times}" if block.times > 1 else ""
    shift = (text_width(times, TITLE_SIZE, bold=True) + 8) / 2 if times else 0.0
    yield TextLine(middle - shift, base, block.title, TITLE_SIZE, LIGHT.text, True, "middle")
    if times:
        at = middle - shift + title / 2 + 8
        yield TextLine(at, base, times, TITLE_SIZE, LIGHT.repeat, bold=True)
    for number, line in enumerate(block_lines(block), 1):
        below = base + number * LINE_HEIGHT
        yield TextLine(middle, below, line, LINE_SIZE, LIGHT.dim, False, "middle")
