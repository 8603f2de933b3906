"""Styled text that fits the cells of a terminal: themes, pieces, rows, tables and meters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast, overload

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.style import Style
from textual.color import Color
from textual.theme import Theme

from torchglass.tables.text import harmless

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
"""The colors of the upper and the lower half of each cell."""


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


def section(words: str, rows: Iterable[TextRow]) -> list[TextRow]:
    """Rows below a heading; nothing if there are no rows."""
    below = list(rows)
    return [heading(words), *below] if below else []


def sections(*parts: Iterable[TextRow]) -> list[TextRow]:
    """Sections with an empty row between them; empty sections are left out."""
    rows: list[TextRow] = []
    for part in map(list, parts):
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


def table(cells: Sequence[Sequence[str | TableCell]], styles: str = "", gap: int = 2) -> list[Line]:
    """Cells in aligned columns, each as wide as its widest cell.

    `styles` are those of the columns with plain texts; ">bytes" aligns a column at the right.
    """
    rows = [
        [
            cell
            if isinstance(cell, TableCell)
            else TableCell(harmless(cell), style.lstrip(">"), style[0] == ">")
            for cell, style in zip(line, (*styles.split(), *["plain"] * len(line)), strict=False)
        ]
        for line in cells
    ]
    widths = [max(cell_len(cell.text) for cell in column) for column in zip(*rows, strict=True)]
    return [
        [
            (fit(cell.text, width, right=cell.right) + " " * gap, cell.style)
            for cell, width in zip(line, widths, strict=True)
        ]
        for line in rows
    ]


def line_width(line: Line) -> int:
    """The cells of a line without the space at its end."""
    return cell_len("".join(words for words, _ in line).rstrip())


def meter(share: float, width: int) -> Line:
    """A bar that fills a share of its width."""
    filled, rest = bar(share, width)
    return [(filled, "bar"), (rest, "faint")]


# fmt: off
_PALETTE = {
    # On dark, on light, and of the colors of a 16-color terminal, so that none is rounded.
    "primary":     ("#7aa8ff", "#1c5fc4", "#0000ff"),
    "secondary":   ("#5f87d7", "#3b78d8", "#00ffff"),
    "accent":      ("#ffb454", "#a85b00", "#ffff00"),
    "warning":     ("#ffb454", "#a85b00", "#ffff00"),
    "error":       ("#ff7a85", "#b3243b", "#ff0000"),
    "success":     ("#7fd88f", "#1f7a3a", "#00ff00"),
    "foreground":  ("#d7dce5", "#1f2430", "#c0c0c0"),
    "background":  ("#12151b", "#fbfcfe", "#000000"),
    "surface":     ("#171b23", "#f2f4f8", "#000000"),
    "panel":       ("#1e2430", "#e6eaf1", "#000000"),
    "glass-name":    ("#ff8fc0", "#a8205f", "#ff00ff"),
    "glass-class":   ("#6cb6ff", "#0a5fb4", "#00ffff"),
    "glass-args":    ("#4f9bd6", "#2b6ca3", "#008080"),
    "glass-count":   ("#ffb454", "#a85b00", "#ffff00"),
    "glass-own":     ("#e09a4a", "#8f5a14", "#808000"),
    "glass-bar":     ("#c88a3a", "#d08c34", "#808000"),
    "glass-bytes":   ("#56c596", "#0d7a50", "#00ff00"),
    "glass-time":    ("#ff8a65", "#b3401e", "#ff0000"),
    "glass-flops":   ("#d4a5ff", "#7a3fb0", "#ff00ff"),
    "glass-in":      ("#e8cf5a", "#7d6608", "#ffff00"),
    "glass-out":     ("#d9bd3c", "#6b5a00", "#808000"),
    "glass-calls":   ("#ffb454", "#a85b00", "#ffff00"),
    "glass-shape":   ("#9bd65c", "#4a7a12", "#00ff00"),
    "glass-device":  ("#b39dff", "#6242c7", "#ff00ff"),
    "glass-dtype":   ("#5cc8dc", "#0b7285", "#00ffff"),
    "glass-spark":   ("#f78fb3", "#b8336a", "#ff00ff"),
    "glass-gutter":  ("#22c04a", "#1a8f3c", "#00ff00"),
    "glass-same":    ("#183026", "#dcf3e3", "#008000"),
    "glass-cursor":  ("#2b3a55", "#cfe0fb", "#000080"),
    "glass-resting": ("#232a38", "#e3e8f0", "#808080"),
    "glass-heat0":   ("#4a6b8a", "#7f9bb5", "#808080"),
    "glass-heat1":   ("#5c9e8f", "#3f8f7d", "#00ff00"),
    "glass-heat2":   ("#c9b458", "#b3941f", "#ffff00"),
    "glass-heat3":   ("#e8964a", "#d0701a", "#ffff00"),
    "glass-heat4":   ("#f2616b", "#c42f3d", "#ff0000"),
}
# fmt: on


def _theme(name: str, column: int) -> Theme:
    own = {key: colors[column] for key, colors in _PALETTE.items() if "-" not in key}
    return Theme(name=name, dark=name != "glass-light", **cast(Any, own))


DARK, LIGHT, SIXTEEN = THEMES = (
    _theme("glass-dark", 0),
    _theme("glass-light", 1),
    _theme("glass-16", 2),
)

TEXT_STYLES: Mapping[str, str] = {
    "plain": "foreground",
    "path": "foreground bold",
    "heading": "foreground 75% bold",
    "header": "foreground 60% bold",
    **dict.fromkeys(("share", "value", "slot", "shared", "muted"), "foreground 60%"),
    "comment": "foreground 50% italic",
    **dict.fromkeys(("guide", "line"), "foreground 35%"),
    "faint": "foreground 30%",
    **{
        name: f"glass-{name}"
        for name in ("count", "own", "bar", "bytes", "time", "flops", "out", "spark", "shape")
    },
    **{f"heat{heat}": f"glass-heat{heat}" for heat in range(5)},
    "gutter": "glass-gutter",
    "name": "glass-name bold",
    **dict.fromkeys(("class", "definition"), "glass-class bold"),
    "extra": "glass-class",
    "args": "glass-args italic",
    "in": "glass-in italic",
    "calls": "glass-calls italic",
    "device": "glass-device bold",
    "dtype": "glass-dtype italic",
    **dict.fromkeys(("number", "literal"), "glass-count"),
    "keyword": "glass-device",
    "string": "glass-shape",
    "builtin": "glass-dtype",
    "decorator": "glass-spark",
    "match": "text-accent bold underline",
    **dict.fromkeys(("sorted", "key"), "text-accent bold"),
    **dict.fromkeys(("mark", "note"), "text-success"),
    "problem": "text-error",
    "warning": "text-warning",
    "failed": "text-error bold",
    "added": "text-success bold",
    "removed": "text-error bold strike",
    "changed": "text-warning bold",
}
"""A color of the theme, its opacity, and how text is drawn in it."""
PANEL_STYLES: Mapping[str, str] = {
    **TEXT_STYLES,
    "name": "foreground",
    "dtype": "glass-dtype",
    "device": "glass-device",
    "mark": "glass-gutter",
}
"""A panel has fewer colors side by side than the tree, and emphasizes less."""


def rich_style(variables: Mapping[str, str], style: str, behind: str) -> Style:
    """A text style on a background, as rich draws it. The variables are those of the theme.

    Styles are not component classes of the style sheet: applying forty of these to a widget takes
    longer than drawing it.
    """
    return _rich_style(variables[style.partition(" ")[0]], variables[behind], style)


@lru_cache(maxsize=1 << 10)
def _rich_style(color: str, behind: str, style: str) -> Style:
    ground, words = Color.parse(behind), style.split()
    percent = next((int(word[:-1]) for word in words if word.endswith("%")), 100)
    return Style(
        color=ground.blend(Color.parse(color), percent / 100).rich_color,
        bgcolor=ground.rich_color,
        bold="bold" in words,
        italic="italic" in words,
        underline="underline" in words,
        strike="strike" in words,
    )


def column_colors(theme: Theme) -> Mapping[str, str]:
    """The colors that the style sheet calls `$glass-…`."""
    column = 2 if theme.name == SIXTEEN.name else 0 if theme.dark else 1
    return {name: colors[column] for name, colors in _PALETTE.items() if "-" in name}


def theme_for(environment: Mapping[str, str], colors: str | None = "truecolor") -> str:
    """The theme to start with: the user's choice, else one that fits the terminal.

    `colors` is rich's name of the color system: "standard" has sixteen.
    """
    if asked := environment.get("TEXTUAL_THEME"):
        return asked
    if colors == "standard":
        return SIXTEEN.name
    # Some terminals set "foreground;background" here; 7 and 15 are white.
    light = environment.get("COLORFGBG", "").rpartition(";")[2] in {"7", "15"}
    return LIGHT.name if light else DARK.name
