"""A scrollable list of text rows, with or without a cursor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.color import Color
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from torchglass.records.attributes import Attribute
from torchglass.views.formats import harmless
from torchglass.views.tui.text_rows import TextRow, paragraph, text
from torchglass.views.tui.themes import SIXTEEN

STYLES = (
    *("plain", "path", "class", "extra", "heading", "name", "number", "bytes", "shape", "dtype"),
    *("device", "muted", "faint", "spark", "bar", "note", "problem", "warning", "key"),
    *("cursor", "header", "marked", "mark", "selected"),
    *("keyword", "string", "comment", "literal", "definition", "builtin", "decorator", "line"),
)
_PAN = 8
_SHADES = "░▒▓█"
_LOST, _LOST_COLOUR = "×", "#ff00ff"
"""NaN and Inf in a picture of shades, and in one of colours."""


class RowList(ScrollView, can_focus=True):
    """A scrollable list of rows below a fixed header, with or without a cursor."""

    has_cursor: bool = False
    """Whether a cursor moves from row to row; otherwise rows only scroll."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"lines--{style}" for style in STYLES}
    DEFAULT_CSS: ClassVar[str] = """
    RowList {
        background: $surface;
        scrollbar-size-horizontal: 0;
        scrollbar-size-vertical: 1;
        scrollbar-background: $surface;
        scrollbar-color: $foreground 25%;
        scrollbar-gutter: stable;
    }
    RowList:focus { background: $panel; }
    RowList .lines--path, RowList .lines--heading { text-style: bold; }
    RowList .lines--heading { color: $foreground 75%; }
    RowList .lines--header { color: $foreground 60%; text-style: bold; }
    RowList .lines--class { color: $glass-class; text-style: bold; }
    RowList .lines--extra { color: $glass-class; }
    RowList .lines--number { color: $glass-count; }
    RowList .lines--bytes { color: $glass-bytes; }
    RowList .lines--shape { color: $glass-shape; }
    RowList .lines--dtype { color: $glass-dtype; }
    RowList .lines--device { color: $glass-device; }
    RowList .lines--muted { color: $foreground 60%; }
    RowList .lines--faint { color: $foreground 30%; }
    RowList .lines--spark { color: $glass-spark; }
    RowList .lines--bar { color: $glass-bar; }
    RowList .lines--note { color: $text-success; }
    RowList .lines--problem { color: $text-error; }
    RowList .lines--warning { color: $text-warning; }
    RowList .lines--key { color: $text-accent; text-style: bold; }
    RowList .lines--cursor { background: $glass-resting; }
    RowList:focus .lines--cursor { background: $glass-cursor; }
    RowList .lines--marked { background: $glass-same; }
    RowList .lines--selected { background: $glass-cursor; }
    RowList .lines--mark { color: $glass-gutter; }
    RowList .lines--keyword { color: $glass-device; }
    RowList .lines--string { color: $glass-shape; }
    RowList .lines--comment { color: $foreground 50%; text-style: italic; }
    RowList .lines--literal { color: $glass-count; }
    RowList .lines--definition { color: $glass-class; text-style: bold; }
    RowList .lines--builtin { color: $glass-dtype; }
    RowList .lines--decorator { color: $glass-spark; }
    RowList .lines--line { color: $foreground 35%; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.row = 0
        self._rows: Sequence[TextRow] = ()
        self._header: Sequence[TextRow] = ()
        self._styles_of: dict[tuple[str, str], Style] = {}

    def choose(self, row: TextRow) -> None:
        """Called when a row is selected."""

    def stood(self) -> None:
        """Called when the cursor moved to another row."""

    def placed(self) -> None:
        """Called when another part may be visible."""

    def is_marker(self, row: TextRow, x: int) -> bool:
        """Whether `x` is on the triangle that opens and closes a row."""
        return False

    def top(self) -> Sequence[TextRow]:
        """The rows above the list that do not scroll."""
        return self._header

    @property
    def room(self) -> int:
        """The cells of a row that are not cut."""
        return max(self.scrollable_content_region.width - 2, 1)

    @property
    def rows(self) -> Sequence[TextRow]:
        return self._rows

    @property
    def window(self) -> int:
        """How many rows are visible at once."""
        return max(self.scrollable_content_region.height - len(self.top()), 1)

    @property
    def position(self) -> str:
        """The row of the cursor, or how much was scrolled; "" if everything fits."""
        count = len(self._rows)
        if count <= self.window:
            return ""
        if self.has_cursor:
            return f"{self.row + 1:,}/{count:,}"
        return f"{min((self.scroll_offset.y + self.window) / count, 1):.0%}"

    def put(self, rows: Sequence[TextRow], header: Sequence[TextRow] = ()) -> None:
        """Show these rows below a fixed header."""
        self._rows, self._header = rows, header
        self.row = min(self.row, max(len(rows) - 1, 0))
        self.lay_out()

    def lay_out(self) -> None:
        """Update the sizes for other rows."""
        near = self.scroll_offset.y
        widest = max(map(_width, self._rows[near : near + 2 * self.window]), default=0)
        self.virtual_size = Size(widest + 2, len(self._rows) + len(self.top()))
        self.refresh()
        self.placed()

    def notify_style_update(self) -> None:
        self._styles_of.clear()
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        top = self.top()
        if y < len(top):
            return self._strip(top[y], "plain", 0)
        at = y - len(top) + self.scroll_offset.y
        if at >= len(self._rows):
            return Strip.blank(self.size.width, self.rich_style)
        row = self._rows[at]
        tone = "cursor" if self.has_cursor and at == self.row else row.tone
        return self._strip(row, tone, self.scroll_offset.x)

    def _strip(self, row: TextRow, tone: str, left: int) -> Strip:
        mark = "▌" if tone == "cursor" and self.has_focus else " "
        behind = self._style(tone, tone)
        pieces = [Segment(text, self._style(tone, style)) for text, style in row.pieces if text]
        draw = self._shade if self.has_few_colours else _half_block
        pieces += [draw(*pair, behind) for pixels in row.pictures for pair in pixels]
        width = self.size.width
        strip = Strip(pieces).crop(left, left + width - 1)
        gutter = Strip([Segment(mark, self._style(tone, "mark"))])
        return Strip.join([gutter, strip]).adjust_cell_length(width, behind)

    @property
    def has_few_colours(self) -> bool:
        """Whether the terminal has too few colours for pictures; they are drawn in shades."""
        app = self.app
        # Without a terminal there is no limit to the colours.
        sixteen = not app.is_headless and app.console.color_system == "standard"
        return sixteen or app.no_color or app.theme == SIXTEEN.name

    def _shade(self, upper: str, lower: str, behind: Style) -> Segment:
        """Two pixels as one character, denser for brighter ones."""
        return Segment(_shade(upper, lower, self.app.current_theme.dark), behind)

    def _style(self, tone: str, style: str) -> Style:
        key = tone, style
        if key not in self._styles_of:
            visual = self.get_visual_style(f"lines--{tone}", f"lines--{style}")
            self._styles_of[key] = visual.rich_style
        return self._styles_of[key]

    def go(self, row: int) -> None:
        """Move the cursor to a row, and scroll to it."""
        self.row = min(max(row, 0), max(len(self._rows) - 1, 0))
        top = self.scroll_offset.y
        if self.row < top:
            self.turn_to(y=self.row)
        elif self.row >= top + self.window:
            self.turn_to(y=self.row - self.window + 1)
        self.refresh()
        self.placed()
        self.stood()

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        self.placed()

    def turn_to(self, x: int | None = None, y: int | None = None) -> None:
        """Scroll at once: rows that were just put need no layout before."""
        self.scroll_to(x, y, animate=False, force=True, immediate=True)
        # A scrollbar that did not exist yet was not notified.
        self.call_after_refresh(self._place_bar)

    def _place_bar(self) -> None:
        self.vertical_scrollbar.position = self.scroll_offset.y

    def action_line(self, by: int) -> None:
        if self.has_cursor:
            self.go(self.row + by)
        else:
            self.turn_to(y=self.scroll_offset.y + by)

    def action_screenful(self, direction: int) -> None:
        self.action_line(direction * max(self.window - 1, 1))

    def action_end(self, direction: int) -> None:
        self.action_line(direction * len(self._rows))

    def action_pan(self, direction: int) -> None:
        self.turn_to(x=self.scroll_offset.x + direction * _PAN)

    def action_choose(self) -> None:
        if self._rows:
            self.choose(self._rows[self.row])

    def on_click(self, event: events.Click) -> None:
        """Select a row by a second click, or at once where there is no cursor."""
        at = event.y - len(self.top()) + self.scroll_offset.y
        if not 0 <= at < len(self._rows) or event.y < len(self.top()):
            return
        if self.has_cursor:
            self.go(at)
        if event.chain == 2 or not self.has_cursor or self.is_marker(self._rows[at], event.x):
            self.choose(self._rows[at])


def _width(row: TextRow) -> int:
    return sum(cell_len(words) for words, _ in row.pieces) + sum(map(len, row.pictures))


@lru_cache(maxsize=1 << 13)
def _half_block(upper: str, lower: str, behind: Style) -> Segment:
    """A cell of two pixels; one or both may be missing."""
    if not upper:
        return Segment("▄" if lower else " ", behind + Style(color=lower or None))
    return Segment("▀", behind + Style(color=upper, bgcolor=lower or None))


@lru_cache(maxsize=1 << 13)
def _shade(upper: str, lower: str, bright_ink: bool) -> str:
    """The character for two pixels; one or both may be missing."""
    pixels = [pixel for pixel in (upper, lower) if pixel]
    if not pixels:
        return " "
    if _LOST_COLOUR in pixels:
        return _LOST
    light = sum(map(_light, pixels)) / len(pixels)
    ink = light if bright_ink else 1 - light
    return _SHADES[min(int(ink * len(_SHADES)), len(_SHADES) - 1)]


def _light(colour: str) -> float:
    """The brightness of a colour, from 0 to 1."""
    red, green, blue = Color.parse(colour).rgb
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255


_TAB = 4


class TextViewer:
    """A long text of an attribute, wrapped."""

    places = ("panel:text",)
    """The places of the key table whose keys act on it."""

    def __init__(self, attribute: Attribute, words: str) -> None:
        self.attribute = attribute
        self._lines = [harmless(line.expandtabs(_TAB).rstrip()) for line in words.splitlines()]
        self._drawn: tuple[int, list[TextRow]] = (0, [])

    def rows(
        self, width: int, height: int, *, shades: bool = False
    ) -> tuple[Sequence[TextRow], Sequence[TextRow]]:
        """The wrapped lines, and no header."""
        if self._drawn[0] != width:
            self._drawn = width, [row for line in self._lines for row in _broken(line, width)]
        return self._drawn[1], []


def _broken(line: str, width: int) -> list[TextRow]:
    return [text(line)] if cell_len(line) <= width else paragraph(line, width)
