"""The tree: one line per module, drawn only where it can be seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.cache import LRUCache
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from torchglass.records.model import Model, Module, ModuleId
from torchglass.records.series import Series
from torchglass.views.tui.cells import Piece, fit
from torchglass.views.tui.keys import bindings
from torchglass.views.tui.subject import Subject
from torchglass.views.tui.tree import rows
from torchglass.views.tui.tree.arrangement import Arrangement, Sorting
from torchglass.views.tui.tree.columns import Column, Group, Row
from torchglass.views.tui.tree.components import NAME
from torchglass.views.tui.tree.inks import TONES, written
from torchglass.views.tui.tree.labels import Labels
from torchglass.views.tui.tree.layout import Layout, lay_out
from torchglass.views.tui.tree.names import BESIDE, Names, Standing
from torchglass.views.tui.tree.search import NONE, Matches, find_match

_LINES_KEPT = 1_000


class ModuleTree(ScrollView, can_focus=True):
    """The modules of a model, with columns that are aligned over the whole tree."""

    BINDINGS: ClassVar = bindings("tree")

    class Moved(Message):
        """The cursor stands on another module, or other rows are there."""

    class Scrolled(Message):
        """Other modules are on the screen."""

    class Viewed(Message):
        """The user wants to see the module under the cursor."""

    class Sorted(Message):
        """The user asked for another order."""

    def __init__(self, subject: Subject, labels: Labels | None = None) -> None:
        super().__init__()
        self.subject = subject
        self.labels = labels or Labels()
        self.cursor = subject.model.root.id
        self.arrangement = Arrangement(subject)
        self._matches = NONE
        self._names = Names(subject)
        self._layout_now = Layout()
        self._row = 0
        self._widest_name = int(self._names.widths[self.cursor])
        self._column_widths: dict[str, int] = {}
        self._lines: LRUCache[tuple[ModuleId, str, int], Strip] = LRUCache(_LINES_KEPT)

    @property
    def selected(self) -> Module:
        """The module under the cursor."""
        return self.subject.model[self.cursor]

    @property
    def columns(self) -> Sequence[Column]:
        """The columns that are shown."""
        return self._layout_now.columns

    @property
    def folds(self) -> rows.Folds:
        """The modules that are open."""
        return self.arrangement.folds

    @property
    def row(self) -> int:
        """The number of the cursor's row."""
        return self._row

    @property
    def row_count(self) -> int:
        """How many modules have a row."""
        return len(self.arrangement)

    def on_screen(self) -> Sequence[Module]:
        """The modules whose rows can be seen now."""
        top = self.scroll_offset.y
        seen = self.arrangement.rows[top : top + self.window].tolist()
        return [self.subject.model[row] for row in seen]

    def wanted(self) -> Iterable[Series]:
        """What has to be read of a run to draw what can be seen."""
        for column in self.columns:
            for module in self.on_screen():
                series = column.series(self.subject, module)
                if series is not None:
                    yield series

    @property
    def window(self) -> int:
        """How many rows can be seen at once."""
        return max(self.size.height - 1, 1)

    @property
    def _line_width(self) -> int:
        # The bar for scrolling takes a cell as soon as the rows do not fit.
        return self.size.width - (len(self.arrangement) > self.window)

    def on_resize(self) -> None:
        """Share the new width out among the columns."""
        self.fit_columns()

    def take_model(self, before: Model) -> None:
        """Show the model that the subject has now, with the folds of the one before."""
        open_paths = {before[fold].path for fold in self.folds}
        model = self.subject.model
        here = model.find(before[self.cursor].path) or model.root
        self._names = Names(self.subject)
        self.arrangement = Arrangement(self.subject)
        self._matches = NONE
        self.cursor = here.id
        self.learn()
        folds = frozenset(one.id for one in model.modules if one.path in open_paths)
        self.set_folds(folds & self.subject.outline.foldable)

    def learn(self) -> None:
        """Draw everything anew with what is known now, which may need more room than before."""
        self._column_widths.clear()
        self.fit_columns()

    def set_folds(self, folds: rows.Folds, cursor: ModuleId | None = None) -> None:
        """Show these folds, with the cursor where it was or on `cursor`."""
        if folds != self.folds:
            self.arrangement.fold(folds)
            self._take_rows()
        self._go(self.arrangement.place_of(self.cursor if cursor is None else cursor))

    def go_to(self, id: ModuleId) -> None:
        """Put the cursor on a module, opening what is above it."""
        self.arrangement.show(id)
        self._take_rows()
        self._go(self.arrangement.place_of(id))

    def show_rows(
        self, folds: rows.Folds, cursor: ModuleId, matches: Matches | None = None
    ) -> None:
        """Show these folds, or some modules and what is above them alone."""
        self.arrangement.arrange(folds, matches)
        self._take_rows()
        self._go(self.arrangement.place_of(cursor))

    def fold_repeats(self, folded: bool) -> None:
        """Let neighbours that are built alike share a row, or not."""
        self.arrangement.fold_repeats(folded)
        self._rearranged()

    def sort(self, sorting: Sorting) -> None:
        """Order siblings by a column."""
        self.arrangement.sort(sorting)
        self._rearranged()

    def _rearranged(self) -> None:
        self._take_rows()
        self._go(self.arrangement.place_of(self.cursor))

    def _take_rows(self) -> None:
        """Take in that there are other rows."""
        shown = self.arrangement.rows
        self._widest_name = int(self._names.widths[shown].max())
        if self.arrangement.repeats_folded:
            runs = self.subject.repeats.keys() & set(shown.tolist())
            widths = (
                self._names.width(self.arrangement.row(self.subject.model[run])) for run in runs
            )
            self._widest_name = max([self._widest_name, *widths])
        self.fit_columns()

    def set_labels(self, labels: Labels, group: Group | None = None) -> None:
        """Show other components, and bring those of a group into view."""
        turned = labels.aligned != self.labels.aligned
        self.labels = labels
        self.fit_columns()
        if turned:
            self.scroll_to(x=0, animate=False)
        elif group is not None and labels.aligned:
            room = self._line_width - self._layout_now.name_width
            left = self._layout_now.showing(group, self.scroll_offset.x, room)
            self.scroll_to(x=left, animate=False)

    def mark(self, matches: Matches) -> None:
        """Mark the modules that a search found, in the order of the model."""
        self._matches = matches
        self.redraw()

    def redraw(self) -> None:
        """Draw everything anew, after something in the rows changed."""
        self._lines.clear()
        self.refresh()

    def notify_style_update(self) -> None:
        """Draw everything anew in other colours."""
        self._lines.clear()
        super().notify_style_update()

    def watch_has_focus(self, focus: bool) -> None:
        """Show by the cursor whether keys go here."""
        super().watch_has_focus(focus)
        self.refresh()

    def fit_columns(self) -> None:
        """Share the width out anew, after rows or columns came or went."""
        columns = self.labels.columns(self.subject)
        self._layout_now = lay_out(
            columns,
            [self._column_width(column) for column in columns],
            self._widest_name + BESIDE,
            self._line_width,
            aligned=self.labels.aligned,
        )
        width = self._layout_now.name_width + self._layout_now.columns_width
        self.virtual_size = Size(width, len(self.arrangement) + 1)
        self.redraw()

    def _column_width(self, column: Column) -> int:
        if column.id not in self._column_widths:
            self._column_widths[column.id] = column.width(self.subject)
        return self._column_widths[column.id]

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Tell what is on the screen now."""
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Scrolled())

    def render_line(self, y: int) -> Strip:
        """One line of the screen: the header, then a module each."""
        if y == 0:
            return self._header()
        place = y - 1 + self.scroll_offset.y
        if place >= len(self.arrangement):
            return Strip.blank(self._line_width, self.rich_style)
        return self._line(self.arrangement.module(place))

    def _header(self) -> Strip:
        sorting = self.arrangement.sorting
        arrow = "▴" if sorting.upwards else "▾"
        name = f" name{arrow}" if sorting.column == NAME.id else " name"
        width = self._layout_now.name_width - 1 if self.labels.aligned else len(name)
        title = [
            (fit(name, width), "sorted" if sorting.column == NAME.id else "header"),
            ("‹" if self.scroll_offset.x else " ", "match"),
        ]
        strip = self._strip(title, self._layout_now.header(sorting.column, arrow), "header")
        if self.scroll_offset.x < self.max_scroll_x:
            more = Segment("›", self._style("header", "match"))
            strip = Strip([*strip.crop(0, self._line_width - 1), more])
        return strip

    def _line(self, module: Module) -> Strip:
        if module.id == self.cursor:
            tone = "cursor" if self.has_focus else "resting"
        else:
            tone = "same" if module.class_name == self.selected.class_name else "plain"
        key = module.id, tone, self.scroll_offset.x
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = self._draw_line(module, tone)
        return line

    def _draw_line(self, module: Module, tone: str) -> Strip:
        row = self.arrangement.row(module)
        standing = Standing(
            tone=tone,
            is_open=module.id in self.folds,
            is_match=find_match(self._matches, module.id)[1],
            is_named=NAME.id in self.labels.shown,
        )
        name = self._names.draw(row, self._name_width(row), standing)
        return self._strip(name, self._layout_now.cells(self.subject, row), tone)

    def _name_width(self, row: Row) -> int:
        """The cells of a name: as many as all have, or where nothing is aligned its own."""
        width = self._layout_now.name_width
        return width if self.labels.aligned else min(self._names.width(row) + BESIDE, width)

    def _strip(self, name: Sequence[Piece], columns: Sequence[Piece], tone: str) -> Strip:
        """A line whose columns move sideways beside the name, which stays."""
        width = self._line_width
        drawn = self._drawn(name, tone)
        room = max(width - drawn.cell_length, 0)
        left = self.scroll_offset.x
        strip = Strip.join([drawn, self._drawn(columns, tone).crop(left, left + room)])
        return strip.adjust_cell_length(width, self._style(tone, "plain"))

    def _drawn(self, pieces: Sequence[Piece], tone: str) -> Strip:
        return Strip([Segment(text, self._style(tone, style)) for text, style in pieces if text])

    def _style(self, tone: str, ink: str) -> Style:
        return written(self.app.theme_variables, ink, TONES[tone])

    def _go(self, row: int) -> None:
        """Put the cursor on a row and bring it into view."""
        before = self.cursor
        self._row = min(max(row, 0), len(self.arrangement) - 1)
        self.cursor = self.arrangement.module(self._row).id
        self._refresh_tints(before)
        top = self.scroll_offset.y
        if self._row < top:
            self.scroll_to(y=self._row, animate=False)
        elif self._row >= top + self.window:
            self.scroll_to(y=self._row - self.window + 1, animate=False)
        self.post_message(self.Moved())

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
        self._go(self._row + direction * self.window)

    def action_edge(self, direction: int) -> None:
        """Go to the first or the last row."""
        self._go(0 if direction < 0 else len(self.arrangement) - 1)

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
        self.set_folds(rows.FOLDING[what](self.subject.outline, self.folds, self.cursor))

    def action_sort(self, number: int) -> None:
        """Order siblings by the column of that number, the name being the first."""
        shown = [NAME, *self.columns]
        if 1 <= number <= len(shown):
            self.sort(self.arrangement.sorting.then(shown[number - 1].id))
        elif number == 0:
            self.sort(Sorting())
        self.post_message(self.Sorted())

    def on_click(self, event: events.Click) -> None:
        """Go to a row and fold it by its marker or by a second click; sort by a title."""
        if event.y < 1:
            self._click_header(event.x)
            return
        place = event.y - 1 + self.scroll_offset.y
        if place >= len(self.arrangement):
            return
        self._go(place)
        row = self.arrangement.row(self.selected)
        if self._names.is_marker(row, self._name_width(row), event.x) or event.chain == 2:
            self.action_fold("one")

    def _click_header(self, x: int) -> None:
        beside = x - self._layout_now.name_width
        column = NAME if beside < 0 else self._layout_now.column_at(beside + self.scroll_offset.x)
        if column is not None:
            self.sort(self.arrangement.sorting.then(column.id))
            self.post_message(self.Sorted())
