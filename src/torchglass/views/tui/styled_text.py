"""Styled text that fits the cells of a terminal: themes, pieces, rows, tables and meters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from rich.cells import cell_len, chop_cells, set_cell_size
from textual.theme import Theme

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


DARK = Theme(
    name="glass-dark",
    primary="#7aa8ff",
    secondary="#5f87d7",
    accent="#ffb454",
    warning="#ffb454",
    error="#ff7a85",
    success="#7fd88f",
    foreground="#d7dce5",
    background="#12151b",
    surface="#171b23",
    panel="#1e2430",
)
LIGHT = Theme(
    name="glass-light",
    primary="#1c5fc4",
    secondary="#3b78d8",
    accent="#a85b00",
    warning="#a85b00",
    error="#b3243b",
    success="#1f7a3a",
    foreground="#1f2430",
    background="#fbfcfe",
    surface="#f2f4f8",
    panel="#e6eaf1",
    dark=False,
)
SIXTEEN = Theme(
    name="glass-16",
    primary="#0000ff",
    secondary="#00ffff",
    accent="#ffff00",
    warning="#ffff00",
    error="#ff0000",
    success="#00ff00",
    foreground="#c0c0c0",
    background="#000000",
    surface="#000000",
    panel="#000000",
)
"""Only uses the colours of a 16-colour terminal, so that none is rounded to another."""
THEMES = (DARK, LIGHT, SIXTEEN)

_ON_DARK = {
    "glass-name": "#ff8fc0",
    "glass-class": "#6cb6ff",
    "glass-args": "#4f9bd6",
    "glass-count": "#ffb454",
    "glass-own": "#e09a4a",
    "glass-bar": "#c88a3a",
    "glass-bytes": "#56c596",
    "glass-time": "#ff8a65",
    "glass-flops": "#d4a5ff",
    "glass-in": "#e8cf5a",
    "glass-out": "#d9bd3c",
    "glass-calls": "#ffb454",
    "glass-shape": "#9bd65c",
    "glass-device": "#b39dff",
    "glass-dtype": "#5cc8dc",
    "glass-spark": "#f78fb3",
    "glass-gutter": "#22c04a",
    "glass-same": "#183026",
    "glass-cursor": "#2b3a55",
    "glass-resting": "#232a38",
    "glass-heat0": "#4a6b8a",
    "glass-heat1": "#5c9e8f",
    "glass-heat2": "#c9b458",
    "glass-heat3": "#e8964a",
    "glass-heat4": "#f2616b",
}
_ON_LIGHT = {
    "glass-name": "#a8205f",
    "glass-class": "#0a5fb4",
    "glass-args": "#2b6ca3",
    "glass-count": "#a85b00",
    "glass-own": "#8f5a14",
    "glass-bar": "#d08c34",
    "glass-bytes": "#0d7a50",
    "glass-time": "#b3401e",
    "glass-flops": "#7a3fb0",
    "glass-in": "#7d6608",
    "glass-out": "#6b5a00",
    "glass-calls": "#a85b00",
    "glass-shape": "#4a7a12",
    "glass-device": "#6242c7",
    "glass-dtype": "#0b7285",
    "glass-spark": "#b8336a",
    "glass-gutter": "#1a8f3c",
    "glass-same": "#dcf3e3",
    "glass-cursor": "#cfe0fb",
    "glass-resting": "#e3e8f0",
    "glass-heat0": "#7f9bb5",
    "glass-heat1": "#3f8f7d",
    "glass-heat2": "#b3941f",
    "glass-heat3": "#d0701a",
    "glass-heat4": "#c42f3d",
}
_OF_SIXTEEN = {
    **_ON_DARK,
    "glass-name": "#ff00ff",
    "glass-class": "#00ffff",
    "glass-args": "#008080",
    "glass-count": "#ffff00",
    "glass-own": "#808000",
    "glass-bar": "#808000",
    "glass-bytes": "#00ff00",
    "glass-time": "#ff0000",
    "glass-flops": "#ff00ff",
    "glass-in": "#ffff00",
    "glass-out": "#808000",
    "glass-calls": "#ffff00",
    "glass-shape": "#00ff00",
    "glass-device": "#ff00ff",
    "glass-dtype": "#00ffff",
    "glass-spark": "#ff00ff",
    "glass-gutter": "#00ff00",
    "glass-same": "#008000",
    "glass-cursor": "#000080",
    "glass-resting": "#808080",
    "glass-heat0": "#808080",
    "glass-heat1": "#00ff00",
    "glass-heat2": "#ffff00",
    "glass-heat3": "#ffff00",
    "glass-heat4": "#ff0000",
}


def column_colours(theme: Theme) -> Mapping[str, str]:
    """The colours that the style sheet calls `$glass-…`."""
    if theme.name == SIXTEEN.name:
        return _OF_SIXTEEN
    return _ON_DARK if theme.dark else _ON_LIGHT


def theme_for(environment: Mapping[str, str], colours: str | None = "truecolor") -> str:
    """The theme to start with: the user's choice, else one that fits the terminal.

    `colours` is rich's name of the colour system: "standard" has sixteen.
    """
    if asked := environment.get("TEXTUAL_THEME"):
        return asked
    if colours == "standard":
        return SIXTEEN.name
    # Some terminals set "foreground;background" here; 7 and 15 are white.
    light = environment.get("COLORFGBG", "").rpartition(";")[2] in {"7", "15"}
    return LIGHT.name if light else DARK.name
