"""Writes shapes as SVG or PDF. Text is set in Helvetica, which every PDF reader has."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torchglass.views.graph.style import NodeColors

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]
Commands = Mapping[Literal["move", "line", "curve"], str]

# Widths of Helvetica in thousandths of its size, from space to tilde: Adobe's font metrics.
_REGULAR = (
    "278 278 355 556 556 889 667 191 333 333 389 584 278 333 278 278 556 556 556 556 556 556 556 "
    "556 556 556 278 278 584 584 584 556 1015 667 667 722 722 667 611 778 722 278 500 667 556 833 "
    "722 778 667 778 722 667 611 722 667 944 667 667 611 278 278 278 469 556 333 556 556 500 556 "
    "556 278 556 556 222 222 500 222 833 556 556 556 556 333 500 278 556 500 722 500 500 500 334 "
    "260 334 584"
)
_BOLD = (
    "278 333 474 556 556 889 722 238 333 333 389 584 278 333 278 278 556 556 556 556 556 556 556 "
    "556 556 556 333 333 584 584 584 611 975 722 722 722 722 667 611 778 722 278 556 722 611 833 "
    "722 778 667 778 722 667 611 722 667 944 667 667 611 333 278 333 584 556 333 556 611 556 611 "
    "556 333 611 611 278 278 556 278 889 611 611 611 611 389 556 333 611 556 778 556 556 500 389 "
    "280 389 584"
)
_WIDTHS = {
    bold: {chr(32 + place): int(width) for place, width in enumerate(widths.split())}
    | {"×": 584, "·": 278, "…": 1000, "–": 556, "−": 584}
    for bold, widths in ((False, _REGULAR), (True, _BOLD))
}
_OTHER = 600
_FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
_RADIUS = 6.0
_ARROW = 6.0
_CIRCLE = 0.5523
"""Where the control points of a curve are that is nearly a quarter of a circle."""


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """The width of a text in points."""
    widths = _WIDTHS[bold]
    return sum(widths.get(one, _OTHER) for one in text) * size / 1000


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle with round corners."""

    x: float
    y: float
    width: float
    height: float
    radius: float
    colors: NodeColors
    thickness: float = 1.0


@dataclass(frozen=True, slots=True)
class Line:
    """A line with round corners, and with an arrowhead at its end."""

    points: tuple[Point, ...]
    color: str
    has_arrow: bool
    thickness: float = 1.1


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of text; `y` is its baseline."""

    x: float
    y: float
    text: str
    size: float
    color: str
    bold: bool = False
    anchor: Anchor = "start"


Shape = Rectangle | Line | TextLine


@dataclass(frozen=True, slots=True)
class Drawing:
    """The shapes of a page; later ones are drawn over earlier ones."""

    width: float
    height: float
    title: str
    shapes: tuple[Shape, ...]


def svg(drawing: Drawing) -> str:
    """The drawing as an SVG file."""
    width, height = drawing.width, drawing.height
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{html.escape(_FONT)}" role="img">'
    )
    lines = [
        opening,
        f"<title>{html.escape(drawing.title)}</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        *map(_svg_shape, drawing.shapes),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _svg_shape(shape: Shape) -> str:
    if isinstance(shape, Rectangle):
        return (
            f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" '
            f'height="{shape.height:.1f}" rx="{shape.radius:.1f}" fill="{shape.colors.fill}" '
            f'stroke="{shape.colors.line}" stroke-width="{shape.thickness:g}"/>'
        )
    if isinstance(shape, TextLine):
        weight = ' font-weight="bold"' if shape.bold else ""
        anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
        return (
            f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size:g}"{weight}{anchor} '
            f'fill="{shape.color}">{html.escape(shape.text)}</text>'
        )
    way = " ".join(
        command + " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        for command, points in _path(shape, {"move": "M", "line": "L", "curve": "C"})
    )
    path = (
        f'<path d="{way}" fill="none" stroke="{shape.color}" stroke-width="{shape.thickness:g}"/>'
    )
    if not shape.has_arrow:
        return path
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in _arrow(shape))
    return f'{path}<polygon points="{corners}" fill="{shape.color}"/>'


def _path(line: Line, names: Commands) -> Iterator[tuple[str, list[Point]]]:
    """The commands of a line with round corners; an arrow ends before its tip."""
    points = list(dict.fromkeys(line.points))
    if line.has_arrow:
        points[-1] = _towards(points[-1], points[-2], _ARROW - 1)
    yield names["move"], [points[0]]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        reach = min(_RADIUS, _distance(before, corner) / 2, _distance(corner, after) / 2)
        start, end = _towards(corner, before, reach), _towards(corner, after, reach)
        yield names["line"], [start]
        controls = [_towards(one, corner, reach * _CIRCLE) for one in (start, end)]
        yield names["curve"], [*controls, end]
    yield names["line"], [points[-1]]


def _arrow(line: Line) -> list[Point]:
    points = list(dict.fromkeys(line.points))
    tip, before = points[-1], points[-2]
    base = _towards(tip, before, _ARROW)
    length = max(_distance(tip, before), 0.01)
    across = (tip[1] - before[1]) / length * 2.6, (before[0] - tip[0]) / length * 2.6
    return [
        tip,
        (base[0] + across[0], base[1] + across[1]),
        (base[0] - across[0], base[1] - across[1]),
    ]


def _towards(start: Point, goal: Point, reach: float) -> Point:
    length = max(_distance(start, goal), 0.01)
    share = reach / length
    return start[0] + (goal[0] - start[0]) * share, start[1] + (goal[1] - start[1]) * share


def _distance(one: Point, other: Point) -> float:
    return float(((one[0] - other[0]) ** 2 + (one[1] - other[1]) ** 2) ** 0.5)


def pdf(drawing: Drawing) -> bytes:
    """The drawing as a PDF file of one page, which is as large as the drawing."""
    width, height = drawing.width, drawing.height
    content = "\n".join(
        [
            f"1 0 0 -1 0 {height:.2f} cm",
            *(part for one in drawing.shapes for part in _pdf_shape(one)),
        ]
    ).encode("cp1252", errors="replace")
    font = "<< /Type /Font /Subtype /Type1 /BaseFont /{} /Encoding /WinAnsiEncoding >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {width:.2f} {height:.2f}] "
            "/Contents 4 0 R /Resources << /Font << /F0 5 0 R /F1 6 0 R >> >> >>"
        ).encode(),
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        font.format("Helvetica").encode(),
        font.format("Helvetica-Bold").encode(),
        b"<< /Title (%s) /Producer (torchglass) >>"
        % _pdf_text(drawing.title).encode("cp1252", "replace"),
    ]
    return _pdf_file(objects)


def _pdf_file(objects: Sequence[bytes]) -> bytes:
    whole = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(whole))
        whole += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(whole)
    whole += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    for place in places:
        whole += b"%010d 00000 n \n" % place
    whole += b"trailer\n<< /Size %d /Root 1 0 R /Info %d 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1,
        len(objects),
        start,
    )
    return bytes(whole)


def _pdf_shape(shape: Shape) -> Iterator[str]:
    if isinstance(shape, TextLine):
        yield _pdf_string(shape)
    elif isinstance(shape, Rectangle):
        fill, line = _pdf_color(shape.colors.fill), _pdf_color(shape.colors.line)
        yield f"{fill} rg {line} RG {shape.thickness:g} w"
        yield _pdf_rounded(shape) + " B"
    else:
        color = _pdf_color(shape.color)
        yield f"{color} RG {color} rg {shape.thickness:g} w"
        for command, points in _path(shape, {"move": "m", "line": "l", "curve": "c"}):
            yield " ".join(f"{x:.2f} {y:.2f}" for x, y in points) + f" {command}"
        yield "S"
        if shape.has_arrow:
            (x, y), *others = _arrow(shape)
            yield f"{x:.2f} {y:.2f} m " + " ".join(f"{x:.2f} {y:.2f} l" for x, y in others) + " f"


def _pdf_rounded(shape: Rectangle) -> str:
    left, top = shape.x, shape.y
    right, bottom = left + shape.width, top + shape.height
    r = min(shape.radius, shape.width / 2, shape.height / 2)
    k = r * (1 - _CIRCLE)
    return (
        f"{left + r:.2f} {top:.2f} m {right - r:.2f} {top:.2f} l "
        f"{right - k:.2f} {top:.2f} {right:.2f} {top + k:.2f} {right:.2f} {top + r:.2f} c "
        f"{right:.2f} {bottom - r:.2f} l "
        f"{right:.2f} {bottom - k:.2f} {right - k:.2f} {bottom:.2f} {right - r:.2f} {bottom:.2f} c "
        f"{left + r:.2f} {bottom:.2f} l "
        f"{left + k:.2f} {bottom:.2f} {left:.2f} {bottom - k:.2f} {left:.2f} {bottom - r:.2f} c "
        f"{left:.2f} {top + r:.2f} l "
        f"{left:.2f} {top + k:.2f} {left + k:.2f} {top:.2f} {left + r:.2f} {top:.2f} c h"
    )


def _pdf_string(shape: TextLine) -> str:
    width = text_width(shape.text, shape.size, bold=shape.bold)
    x = shape.x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[shape.anchor]
    font = f"/F{int(shape.bold)} {shape.size:g} Tf"
    # The page is upside down, so that y grows downwards as in SVG; text is turned back.
    return (
        f"BT {_pdf_color(shape.color)} rg {font} 1 0 0 -1 {x:.2f} {shape.y:.2f} Tm "
        f"({_pdf_text(shape.text)}) Tj ET"
    )


def _pdf_text(text: str) -> str:
    plain = text.replace("−", "–")
    return plain.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


def _pdf_color(color: str) -> str:
    return " ".join(f"{int(color[place : place + 2], 16) / 255:.3f}" for place in (1, 3, 5))
