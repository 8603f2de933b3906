"""The tree: one line per module, drawn only where it can be seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.cache import LRUCache
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from torchglass.records.model import Module, ModuleId
from torchglass.views.tui import rows
from torchglass.views.tui.cells import Piece, fit
from torchglass.views.tui.columns import SHOWN_AT_FIRST, Column, Group
from torchglass.views.tui.keys import bindings
from torchglass.views.tui.layout import Layout, lay_out
from torchglass.views.tui.names import BESIDE, Names
from torchglass.views.tui.search import find_match
from torchglass.views.tui.subject import Subject

FOLDING: dict[str, Callable[[rows.Outline, rows.Folds, ModuleId], rows.Folds]] = {
    "one": rows.toggle,
    "branch": rows.toggle_branch,
    "all": rows.toggle_all,
    "siblings": rows.toggle_siblings,
    "sibling branches": rows.toggle_sibling_branches,
    "class": rows.toggle_class,
    "class branches": rows.toggle_class_branches,
}

_LINES_KEPT = 1_000


class ModuleTree(ScrollView, can_focus=True):
    """The modules of a model, with columns that are aligned over the whole tree."""

    BINDINGS: ClassVar = bindings("tree")
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"tree--{style}"
        for style in (
            *("header", "guide", "name", "match", "mark", "class", "count", "bar", "share"),
            *("bytes", "spark", "value", "device", "dtype", "slot", "shape", "note", "problem"),
            *("shared", "plain", "same", "cursor", "gutter"),
        )
    }

    class Moved(Message):
        """The cursor stands on another module."""

        def __init__(self, id: ModuleId) -> None:
            super().__init__()
            self.id = id

    class Scrolled(Message):
        """Other modules are on the screen."""

    class Viewed(Message):
        """The user wants to see the module under the cursor."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject
        self.cursor = subject.model.root.id
        self.folds: rows.Folds = frozenset()
        self.groups: frozenset[Group] = SHOWN_AT_FIRST
        self._matches: Sequence[ModuleId] = ()
        self._names = Names(subject)
        self._layout_now = Layout()
        self._rows: list[ModuleId] = [self.cursor]
        self._row = 0
        self._widest_name = self._names.widths[self.cursor]
        self._lines: LRUCache[tuple[ModuleId, str, int], Strip] = LRUCache(_LINES_KEPT)
        self._styles_of: dict[tuple[str, str], Style] = {}
        self._fresh = True

    @property
    def selected(self) -> Module:
        """The module under the cursor."""
        return self.subject.model[self.cursor]

    @property
    def columns(self) -> Sequence[Column]:
        """The columns that are shown."""
        return self._layout_now.columns

    @property
    def row(self) -> int:
        """The number of the cursor's row."""
        return self._row

    @property
    def row_count(self) -> int:
        """How many modules have a row."""
        return len(self._rows)

    def on_screen(self) -> Iterable[Module]:
        """The modules whose rows can be seen now."""
        top = self.scroll_offset.y
        return [self.subject.model[row] for row in self._rows[top : top + self._window]]

    @property
    def _window(self) -> int:
        return max(self.size.height - 1, 1)

    @property
    def _line_width(self) -> int:
        # The bar for scrolling takes a cell as soon as the rows do not fit.
        return self.size.width - (len(self._rows) > self._window)

    def on_resize(self) -> None:
        """Share the new width out among the columns; the first time, open what fits."""
        self.fit_columns()
        if self._fresh:
            self._fresh = False
            self.set_folds(self.subject.outline.first_folds(self._window))

    def set_folds(self, folds: rows.Folds, cursor: ModuleId | None = None) -> None:
        """Show these folds, with the cursor where it was or on `cursor`."""
        if folds != self.folds:
            self.folds = folds
            self._rows = rows.visible(self.subject.model, folds)
            self._widest_name = max(map(self._names.widths.__getitem__, self._rows))
            self.fit_columns()
        wanted = self.cursor if cursor is None else cursor
        shown = rows.nearest_shown(self.subject.outline, folds, wanted)
        self._go(self._rows.index(shown))

    def go_to(self, id: ModuleId) -> None:
        """Put the cursor on a module, opening what is above it."""
        self.set_folds(rows.reveal(self.subject.outline, self.folds, [id]), id)

    def toggle_group(self, group: Group) -> bool:
        """Show or hide the columns of a group; whether they are shown now."""
        self.groups ^= {group}
        self.fit_columns()
        room = self._line_width - self._layout_now.name_width
        left = self._layout_now.showing(group, self.scroll_offset.x, room)
        self.scroll_to(x=left, animate=False)
        return group in self.groups

    def mark(self, matches: Sequence[ModuleId]) -> None:
        """Mark the modules that a search found, in the tree's order."""
        self._matches = matches
        self.redraw()

    def redraw(self) -> None:
        """Draw everything anew, after something in the rows changed."""
        self._lines.clear()
        self.refresh()

    def notify_style_update(self) -> None:
        """Draw everything anew in other colours."""
        self._lines.clear()
        self._styles_of.clear()
        super().notify_style_update()

    def fit_columns(self) -> None:
        """Share the width out anew, after rows or columns came or went."""
        names = self._widest_name + BESIDE
        self._layout_now = lay_out(self.subject, self.groups, names, self._line_width)
        width = self._layout_now.name_width + self._layout_now.columns_width
        self.virtual_size = Size(width, len(self._rows) + 1)
        self.redraw()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Tell what is on the screen now."""
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Scrolled())

    def render_line(self, y: int) -> Strip:
        """One line of the screen: the header, then a module each."""
        if y == 0:
            return self._header()
        row = y - 1 + self.scroll_offset.y
        if row >= len(self._rows):
            return Strip.blank(self._line_width, self.rich_style)
        return self._line(self.subject.model[self._rows[row]])

    def _header(self) -> Strip:
        title = [
            (fit(" name", self._layout_now.name_width - 1), "header"),
            ("‹" if self.scroll_offset.x else " ", "match"),
        ]
        strip = self._strip(title, self._layout_now.header(), "header")
        if self.scroll_offset.x < self.max_scroll_x:
            more = Segment("›", self._style("header", "match"))
            strip = Strip([*strip.crop(0, self._line_width - 1), more])
        return strip

    def _line(self, module: Module) -> Strip:
        if module.id == self.cursor:
            tone = "cursor"
        else:
            tone = "same" if module.class_name == self.selected.class_name else "plain"
        key = module.id, tone, self.scroll_offset.x
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = self._draw_line(module, tone)
        return line

    def _draw_line(self, module: Module, tone: str) -> Strip:
        name = self._names.draw(
            module,
            self._layout_now.name_width,
            tone,
            is_open=module.id in self.folds,
            is_match=find_match(self._matches, module.id)[1],
        )
        return self._strip(name, self._layout_now.cells(self.subject, module), tone)

    def _strip(self, name: Sequence[Piece], columns: Sequence[Piece], tone: str) -> Strip:
        """A line whose columns move sideways beside the name, which stays."""
        width = self._line_width
        room = max(width - self._layout_now.name_width, 0)
        left = self.scroll_offset.x
        strip = Strip.join(
            [
                self._drawn(name, tone),
                self._drawn(columns, tone).crop(left, left + room),
            ]
        )
        return strip.adjust_cell_length(width, self._style(tone, tone))

    def _drawn(self, pieces: Sequence[Piece], tone: str) -> Strip:
        return Strip([Segment(text, self._style(tone, style)) for text, style in pieces if text])

    def _style(self, tone: str, style: str) -> Style:
        key = tone, style
        if key not in self._styles_of:
            visual = self.get_visual_style(f"tree--{tone}", f"tree--{style}")
            self._styles_of[key] = visual.rich_style
        return self._styles_of[key]

    def _go(self, row: int) -> None:
        """Put the cursor on a row and bring it into view."""
        before = self.cursor
        self._row = min(max(row, 0), len(self._rows) - 1)
        self.cursor = self._rows[self._row]
        self._refresh_tints(before)
        top = self.scroll_offset.y
        if self._row < top:
            self.scroll_to(y=self._row, animate=False)
        elif self._row >= top + self._window:
            self.scroll_to(y=self._row - self._window + 1, animate=False)
        self.post_message(self.Moved(self.cursor))

    def _refresh_tints(self, before: ModuleId) -> None:
        """Draw again what the cursor changed by leaving a row."""
        if self.subject.model[before].class_name != self.selected.class_name:
            self.refresh()
            return
        changed = {before, self.cursor}
        for line, module in enumerate(self.on_screen(), start=1):
            if module.id in changed:
                self.refresh(Region(0, line, self._line_width, 1))

    def action_move(self, by: int) -> None:
        """Go some rows down."""
        self._go(self._row + by)

    def action_page(self, direction: int) -> None:
        """Go one screen down or up."""
        self._go(self._row + direction * self._window)

    def action_edge(self, direction: int) -> None:
        """Go to the first or the last row."""
        self._go(0 if direction < 0 else len(self._rows) - 1)

    def action_pan(self, direction: int) -> None:
        """Move the columns sideways by one."""
        wanted = self._layout_now.beside(self.scroll_offset.x, direction)
        self.scroll_to(x=wanted, animate=False)

    def action_close(self) -> None:
        """Fold the module, or go to its parent if there is nothing to fold."""
        module = self.selected
        if module.id in self.folds:
            self.action_fold("one")
        elif module.parent is not None:
            self.set_folds(self.folds, module.parent)

    def action_open(self) -> None:
        """Unfold the module; go in if it is open, view it if it has nothing below it."""
        module = self.selected
        if not module.children:
            self.post_message(self.Viewed())
        elif module.id in self.folds:
            self.action_move(1)
        else:
            self.action_fold("one")

    def action_fold(self, what: str) -> None:
        """Fold or unfold what one of the keys stands for."""
        self.set_folds(FOLDING[what](self.subject.outline, self.folds, self.cursor))

    def on_click(self, event: events.Click) -> None:
        """Go to a row; fold it by its marker or by a second click."""
        row = event.y - 1 + self.scroll_offset.y
        if event.y < 1 or row >= len(self._rows):
            return
        self._go(row)
        width = self._layout_now.name_width
        if self._names.is_marker(self.selected, width, event.x) or event.chain == 2:
            self.action_fold("one")
