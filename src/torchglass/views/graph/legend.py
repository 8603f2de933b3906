"""What the shapes and colours of a picture mean: of those, the ones that are in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from torchglass.analyse.graph.parts import Node
from torchglass.views.graph.palette import Ink, mix
from torchglass.views.graph.style import Attributes, Style, words_only

_ENTRY_WIDTH = 120
_SWATCH_WIDTH = 20
_GAP = 6
_RAMP_STEPS = 5


def legend(style: Style, width: float) -> Attributes | None:
    """The attributes of the legend, as a node of about a width in points, if there is a need."""
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


def _cells(style: Style) -> Iterator[str]:
    palette, nodes = style.palette, style.graph.nodes
    for ink, line, text in _entries(style, nodes):
        yield _entry(_swatch(ink, line), text)
    folded = [*(box.again for box in style.graph.boxes), *(node.again for node in nodes)]
    if any(again.times > 1 for again in folded):
        ink = Ink(fill=palette.boxes[0], line=palette.repeat)
        yield _entry(_swatch(ink, "rounded", border=2), "drawn once, runs n ×")
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


def _entries(style: Style, nodes: Iterable[Node]) -> Iterator[tuple[Ink, str, str]]:
    """Fill and outline, style of the outline, and meaning of what occurs."""
    palette = style.palette
    ramped = style.color_by is not None
    plain = Ink(fill=palette.ground, line=palette.op.line)
    found = list(nodes)
    ops = [node for node in found if node.kind in ("op", "module")]
    candidates = (
        (any(node.kind == "input" for node in found), palette.input, "rounded", "input"),
        (any(node.kind == "output" for node in found), palette.output, "rounded", "output"),
        (
            not ramped and any(node.parameters for node in ops),
            palette.parameters,
            "",
            "has parameters",
        ),
        (any(node.module and node.kind == "op" for node in ops), plain, "", "square: a module"),
        (any(not node.module for node in ops), plain, "rounded", "round: an op"),
        (any(node.kind == "module" for node in ops), plain, "", "solid: a closed module"),
        (any(not node.from_input for node in ops), plain, "dashed", "not from the input"),
        (any(node.kind == "buffer" for node in found), palette.buffer, "", "buffer"),
        (any(node.kind == "stub" for node in found), plain, "dotted", "outside the module"),
        (any(node.failed for node in found), palette.failure, "", "raised"),
    )
    return ((ink, line, text) for occurs, ink, line, text in candidates if occurs)


def _swatch(ink: Ink, line: str, border: int = 1) -> str:
    style = f' style="{line}"' if line else ""
    return (
        f'<td width="{_SWATCH_WIDTH}" height="12" fixedsize="true" border="{border}"'
        f' bgcolor="{ink.fill}" color="{ink.line}"{style}></td>'
    )
