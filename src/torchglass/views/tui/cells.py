"""Text and lines made to fit the cells of a terminal."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len, set_cell_size

Piece = tuple[str, str]
"""Text, and the name of the style it is drawn in."""


def fit(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly `width` cells, cut with "…" or filled with spaces."""
    excess = cell_len(text) - width
    if excess > 0:
        return set_cell_size(text, width - 1) + "…" if width > 0 else ""
    return " " * -excess + text if right else text + " " * -excess


def fit_path(path: str, width: int) -> str:
    """A dotted path in exactly `width` cells.

    A long one gives up the letters of its first names, whose numbers and ends tell paths apart:
    "blocks.10.attn.proj" is "b.10.attn.proj", "b.10.a.proj", "b.1…proj".
    """
    names = path.split(".")
    for at, name in enumerate(names[:-1]):
        if cell_len(".".join(names)) <= width:
            break
        names[at] = name if name.isdecimal() else name[:1]
    short = ".".join(names)
    excess = cell_len(short) - width
    if excess > 0 and width > 2:
        tail = width // 2
        while cell_len(short[-tail:]) > width // 2:
            tail -= 1
        head = width - 1 - cell_len(short[-tail:])
        short = f"{set_cell_size(short, head)}…{short[-tail:]}"
    return fit(short, width)


def fit_pieces(
    pieces: Iterable[Piece], width: int, *, right: bool = False, fill: bool = True
) -> list[Piece]:
    """The pieces in exactly `width` cells, or in at most so many where they are not filled up.

    What is too much is cut from the end.
    """
    fitted: list[Piece] = []
    room = width
    for text, style in pieces:
        cells = cell_len(text)
        fitted.append((text if cells <= room else fit(text, room), style))
        room -= min(cells, room)
        if not room:
            break
    if not fill:
        return fitted
    filler = (" " * room, "plain")
    return [filler, *fitted] if right else [*fitted, filler]


def bar(share: float, width: int) -> tuple[str, str]:
    """A line that fills `share` of `width` cells, in half cells, and the rest of its way."""
    halves = round(min(max(share, 0.0), 1.0) * width * 2)
    full, half = divmod(max(halves, 1), 2)
    drawn = "━" * full + "╸" * half
    return drawn, "─" * (width - len(drawn))


def squeeze(values: npt.NDArray[np.float64], width: int) -> list[float]:
    """At most `width` values that stand for all: the mean of each stretch of equal length."""
    if len(values) <= width:
        return list(map(float, values))
    edges = np.linspace(0, len(values), width + 1).astype(int)
    sums = np.add.reduceat(values, edges[:-1])
    return list(map(float, sums / np.diff(edges)))
