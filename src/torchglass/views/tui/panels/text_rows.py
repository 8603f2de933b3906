"""Rows of coloured text: wrapping, tables and meters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from rich.cells import cell_len, chop_cells

from torchglass.views.tui.cells import Piece, bar, fit

Line = Sequence[Piece]

_WORDS = re.compile(r"\s*\S+|\s+$")
_BETWEEN = 2
"""Cells between two groups of words."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a panel."""

    pieces: Line = ()
    target: Any = None
    """What the panel makes of it when it is picked; None for a line that only says something."""
    tone: str = "plain"
    """The style that lies behind all of it."""
    pictures: Sequence[Pixels] = ()
    """Half-block pictures that end the line, after its text."""


Pixels = Sequence[tuple[str, str]]
"""The colours of the upper and the lower half of each cell."""


class LazyRows(Sequence[Row]):
    """Rows that are drawn when they come into sight."""

    def __init__(self, count: int, draw: Callable[[int], Row]) -> None:
        self._count = count
        self._draw = draw

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> Row: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Row]: ...

    def __getitem__(self, at: int | slice) -> Row | Sequence[Row]:
        if isinstance(at, slice):
            return [self._draw(one) for one in range(self._count)[at]]
        return self._draw(range(self._count)[at])


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of a table."""

    text: str
    style: str = "plain"
    right: bool = False


def text(words: str, style: str = "plain", *, target: Any = None) -> Row:
    """A row of one piece."""
    return Row([(words, style)], target)


def heading(words: str, beside: str = "") -> Row:
    """The title of a section, and a word on it."""
    return Row([(words, "heading"), (f"  {beside}" if beside else "", "muted")])


def sections(*parts: Sequence[Row]) -> list[Row]:
    """Parts with an empty line between those that have something to say."""
    rows: list[Row] = []
    for part in parts:
        if part:
            rows += [Row(), *part] if rows else part
    return rows


def wrap(pieces: Line, width: int, indent: str = "") -> Iterator[Line]:
    """A line as lines of at most `width` cells, broken between words where there are some."""
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
            # A word that is too long for any line is broken where the line ends.
            *full, rest = chop_cells(fitting, width - used) or [""]
            for part in full:
                yield [*line, (part, style)]
                line, used = [], 0
            _append(line, rest, style)
            used += cell_len(rest)
    yield line


def gather(groups: Iterable[Line], width: int) -> Iterator[Line]:
    """Groups of words side by side, each on the next line as a whole where it does not fit."""
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
    """Add words to a line, to its last piece where that has the same style."""
    if line and line[-1][1] == style:
        words = line.pop()[0] + words
    line.append((words, style))


def paragraph(words: str, width: int, style: str = "plain", indent: str = "") -> list[Row]:
    """Words over as many rows as they need."""
    return [Row(line) for line in wrap([(words, style)], width, indent)]


def table(cells: Sequence[Sequence[Cell]], gap: int = 2) -> list[Line]:
    """Cells set below each other, each column as wide as its widest."""
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
    """The cells that a line takes, but for the space at its end."""
    return cell_len("".join(words for words, _ in line).rstrip())


def meter(share: float, width: int, style: str = "bar") -> Line:
    """A bar that fills a share of its way."""
    filled, rest = bar(share, width)
    return [(filled, style), (rest, "faint")]
