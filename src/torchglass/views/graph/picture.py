"""Drawing a graph.

draw(fold(trace, model), Path("model.svg"))
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from torchglass.analyse.graph.parts import Graph
from torchglass.errors import ViewError
from torchglass.views.files import in_its_folder
from torchglass.views.graph.arranging import arrange
from torchglass.views.graph.directions import HEADINGS, Corners, Direction, Heading
from torchglass.views.graph.graphviz import POINTS, Graphviz, graphviz
from torchglass.views.graph.layout import Layout
from torchglass.views.graph.legend import legend
from torchglass.views.graph.painting import Text, paint
from torchglass.views.graph.palette import DARK, LIGHT
from torchglass.views.graph.rows import arrange_in_rows, is_too_much_for_dot
from torchglass.views.graph.style import ColorBy, Overrides, Style
from torchglass.views.graph.wrapping import wrap

FORMATS = ("svg", "png", "pdf", "jpg", "dot")
_PIXELS = ("png", "jpg")

_PAGE_SHAPE = 1.0
"""Width to height that long pictures are wrapped towards, between a sheet's two ways up."""
_DPI = 144.0
_MOST_PIXELS = 40e6
_LONGEST_SIDE = 30_000
"""Pixels; cairo draws no image that is longer."""
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
    """The picture of a graph as the bytes of a file, written to a path if there is one.

    The format is that of the path's ending unless it is given, and SVG without either.
    """
    kind = _format(path, format)
    _check("direction", direction, get_args(Direction))
    if color_by is not None:
        _check("color_by", color_by, get_args(ColorBy))
    style = Style(graph, DARK if dark else LIGHT, color_by, overrides or Overrides())
    heading = HEADINGS[direction]
    with graphviz(f"{len(graph.nodes):,} nodes") as drawer:
        layout = wrap(_laid_out(style, heading, drawer), shape=_PAGE_SHAPE)
        corners = heading.page_corners(layout.area)
        texts = [_headline(style, corners, drawer), *_legend(style, corners, drawer)]
        dpi = _dpi(corners) if kind in _PIXELS else POINTS
        picture = paint(layout, style, heading, texts, drawer, format=kind, dpi=dpi)
    if path is not None:
        in_its_folder(path).write_bytes(picture)
    return picture


def _laid_out(style: Style, heading: Heading, drawer: Graphviz) -> Layout:
    """The layout of dot, and where that would take long, one node a row."""
    if is_too_much_for_dot(style.graph) and not style.chooses_layout:
        return arrange_in_rows(style, heading, drawer)
    return arrange(style, heading, drawer)


def _format(path: Path | None, format: str | None) -> str:
    kind = (format or (path.suffix.lstrip(".") if path is not None else "") or "svg").lower()
    _check("format", kind, FORMATS)
    return kind


def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ViewError(f"{name} is one of {', '.join(known)}, not {value!r}")


def _headline(style: Style, corners: Corners, drawer: Graphviz) -> Text:
    left, _, _, top = corners
    attributes = style.of_headline()
    [(width, height)] = drawer.measure([attributes])
    return Text(attributes, (left + width / 2, top + _APART + height / 2))


def _legend(style: Style, corners: Corners, drawer: Graphviz) -> Iterator[Text]:
    left, bottom, right, _ = corners
    attributes = legend(style, max(right - left, _NARROWEST_LEGEND))
    if attributes is not None:
        [(width, height)] = drawer.measure([attributes])
        yield Text(attributes, (left + width / 2, bottom - _APART - height / 2))


def _dpi(corners: Corners) -> float:
    """Dots per inch, fewer where the picture is so large that a program could not open it."""
    left, bottom, right, top = corners
    width, height = max(1.0, (right - left) / POINTS), max(1.0, (top - bottom) / POINTS)
    return min(
        _DPI,
        math.sqrt(_MOST_PIXELS / (width * height)),
        _LONGEST_SIDE / max(width, height),
    )
