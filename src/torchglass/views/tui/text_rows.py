"""Text that fits the cells of a terminal: pieces, rows, tables and meters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from rich.cells import cell_len, chop_cells, set_cell_size

Piece = tuple[str, str]
"""A text and the name of its style."""


def fit(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly `width` cells, cut with "…" or padded with spaces."""
    excess = cell_len(text) - width
    if excess > 0:
        return set_cell_size(text, width - 1) + "…" if width > 0 else ""
    return " " * -excess + text if right else text + " " * -excess


def fit_path(path: str, width: int) -> str:
    """A dotted path in exactly `width` cells.

    The first names are shortened first, because numbers and last names tell paths apart:
    "blocks.10.attn.proj" becomes "b.10.attn.proj", "b.10.a.proj", "b.1…proj".
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
    """The pieces cut to `width` cells, and padded to them with `fill`."""
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
    """A bar that fills `share` of `width` cells in half cells, and the rest of the line."""
    halves = round(min(max(share, 0.0), 1.0) * width * 2)
    full, half = divmod(max(halves, 1), 2)
    drawn = "━" * full + "╸" * half
    return drawn, "─" * (width - len(drawn))


Line = Sequence[Piece]

_WORDS = re.compile(r"\s*\S+|\s+$")
_BETWEEN = 2
"""Cells between two groups of words."""


@dataclass(frozen=True, slots=True)
class TextRow:
    """One line of a panel."""

    pieces: Line = ()
    target: Any = None
    """What the panel goes to when the row is selected; None if there is nothing to go to."""
    tone: str = "plain"
    """The style of its background."""
    pictures: Sequence[Pixels] = ()
    """Half-block pictures after the text."""


Pixels = Sequence[tuple[str, str]]
"""The colours of the upper and the lower half of each cell."""


class LazyRows(Sequence[TextRow]):
    """Rows that are drawn when they become visible."""

    def __init__(self, count: int, draw: Callable[[int], TextRow]) -> None:
        self._count = count
        self._draw = draw

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> TextRow: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[TextRow]: ...

    def __getitem__(self, at: int | slice) -> TextRow | Sequence[TextRow]:
        if isinstance(at, slice):
            return [self._draw(one) for one in range(self._count)[at]]
        return self._draw(range(self._count)[at])


@dataclass(frozen=True, slots=True)
class TableCell:
    """One cell of a table."""

    text: str
    style: str = "plain"
    right: bool = False


def text(words: str, style: str = "plain", *, target: Any = None) -> TextRow:
    """A row of one piece."""
    return TextRow([(words, style)], target)


def heading(words: str, beside: str = "") -> TextRow:
    """The heading of a section, and a remark."""
    return TextRow([(words, "heading"), (f"  {beside}" if beside else "", "muted")])


def sections(*parts: Sequence[TextRow]) -> list[TextRow]:
    """Sections with an empty row between them; empty sections are left out."""
    rows: list[TextRow] = []
    for part in parts:
        if part:
            rows += [TextRow(), *part] if rows else part
    return rows


def wrap(pieces: Line, width: int, indent: str = "") -> Iterator[Line]:
    """A line wrapped to `width` cells, between words where possible."""
    width = max(width, len(indent) + 1)
    line: list[Piece] = []
    used = 0
    for words, style in pieces:
        for word in _WORDS.findall(words):
            fitting = word
            if line and used + cell_len(word) > width:
                yield line
                line, used = [(indent, "plain")], len(indent)
                fitting = word.lstrip()
            # A word that is too long for any line is broken at the end of the line.
            *full, rest = chop_cells(fitting, width - used) or [""]
            for part in full:
                yield [*line, (part, style)]
                line, used = [], 0
            _append(line, rest, style)
            used += cell_len(rest)
    yield line


def gather(groups: Iterable[Line], width: int) -> Iterator[Line]:
    """Groups of words side by side; a group that does not fit starts the next line."""
    line: list[Piece] = []
    for group in groups:
        if line and _cells(line) + _BETWEEN + _cells(group) > width:
            yield from wrap(line, width)
            line = []
        line += [(" " * _BETWEEN, "plain"), *group] if line else group
    yield from wrap(line, width)


def _cells(line: Line) -> int:
    return sum(cell_len(words) for words, _ in line)


def _append(line: list[Piece], words: str, style: str) -> None:
    """Add words to a line; pieces of the same style are joined."""
    if line and line[-1][1] == style:
        words = line.pop()[0] + words
    line.append((words, style))


def paragraph(words: str, width: int, style: str = "plain", indent: str = "") -> list[TextRow]:
    """Words over as many rows as they need."""
    return [TextRow(line) for line in wrap([(words, style)], width, indent)]


def table(cells: Sequence[Sequence[TableCell]], gap: int = 2) -> list[Line]:
    """Cells in aligned columns, each as wide as its widest cell."""
    if not cells:
        return []
    widths = [max(cell_len(cell.text) for cell in column) for column in zip(*cells, strict=True)]
    return [
        [
            (fit(cell.text, width, right=cell.right) + " " * gap, cell.style)
            for cell, width in zip(line, widths, strict=True)
        ]
        for line in cells
    ]


def line_width(line: Line) -> int:
    """The cells of a line without the space at its end."""
    return cell_len("".join(words for words, _ in line).rstrip())


def meter(share: float, width: int, style: str = "bar") -> Line:
    """A bar that fills a share of its width."""
    filled, rest = bar(share, width)
    return [(filled, style), (rest, "faint")]
