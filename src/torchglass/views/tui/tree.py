"""The tree of modules: a widget that draws rows and handles keys, and its export to files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.style import Style
from textual import events
from textual.app import App
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from torchglass.records.model import Model, Module, ModuleId
from torchglass.records.run import Series
from torchglass.tables.export import HtmlRow, csv_text, html_page, json_text, tree_fragment
from torchglass.tables.text import Column, TextColumn, column_texts, csv_rows, harmless, lined_up
from torchglass.views.tui import tree_rows
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.keys import bindings
from torchglass.views.tui.styled_text import TEXT_STYLES, rich_style
from torchglass.views.tui.tree_columns import (
    NAME,
    ColumnChoice,
    Group,
    RowModules,
    SortOrder,
    TreeColumn,
    report_columns,
)
from torchglass.views.tui.tree_lines import RowState, TreeLines
from torchglass.views.tui.tree_rows import TreeRows, toggle
from torchglass.views.tui.tree_search import NONE, Matches
from torchglass.views.tui.windows import screenshot


class TreeLine(NamedTuple):
    """A row of the tree and its depth."""

    row: RowModules
    depth: int


class TreeTable(NamedTuple):
    """What the tree shows."""

    state: ExplorerState
    columns: Sequence[TreeColumn]
    lines: Sequence[TreeLine]


def to_text(table: TreeTable) -> str:
    """A text table with indented names."""
    names = ["  " * line.depth + _name(table, line.row) for line in table.lines]
    columns = column_texts(_columns(table), table.lines)
    return "\n".join(lined_up([TextColumn(["name", *names], right=False), *columns])) + "\n"


def to_json(table: TreeTable) -> str:
    """The path, class and values of each row; names include the unit."""
    headings, rows = _file_rows(table)
    modules = [dict(zip(headings, row, strict=True)) for row in rows]
    return json_text({"model": table.state.model.name, "modules": modules}) + "\n"


def to_csv(table: TreeTable) -> str:
    """The path, class and values of each row."""
    return csv_text(*_file_rows(table))


def to_html(table: TreeTable) -> str:
    """One page without external resources."""
    rows = [HtmlRow(line, _name(table, line.row), line.depth) for line in table.lines]
    name = table.state.model.name
    return html_page(name, tree_fragment(name, table.state.run.name, (), _columns(table), rows, ()))


FORMATS: Mapping[str, tuple[str, Callable[[TreeTable], str]]] = {
    "text": (".txt", to_text),
    "JSON": (".json", to_json),
    "CSV": (".csv", to_csv),
    "HTML": (".html", to_html),
}


def new_file(folder: Path, name: str, suffix: str) -> Path:
    """A path in a folder that does not exist yet."""
    stem = "".join(char if char.isalnum() or char in "-_." else "_" for char in name) or "model"
    names = (f"{stem}-{number}" if number > 1 else stem for number in count(1))
    return next(path for each in names if not (path := folder / f"{each}{suffix}").exists())


def _columns(table: TreeTable) -> list[Column[TreeLine]]:
    """The columns of the tree as those of any table."""

    def to_read(column: TreeColumn) -> Column[TreeLine]:
        return Column(
            column.id,
            column.title,
            lambda line: column.plain(table.state, line.row).strip(),
            right=column.right,
            csv=column.file_heading,
            value=lambda line: column.value(table.state, line.row),
        )

    return [to_read(column) for column in table.columns]


def _file_rows(table: TreeTable) -> tuple[list[str], list[list[Any]]]:
    first: list[Column[TreeLine]] = [
        Column("path", value=lambda line: line.row[0].path),
        Column("class", value=lambda line: line.row[0].class_name),
    ]
    others = [column for column in _columns(table) if column.key != "class"]
    return csv_rows([*first, *others], table.lines)


def _name(table: TreeTable, row: RowModules) -> str:
    if row[0].parent is None:
        return harmless(table.state.model.name)
    repeats = f"{len(row)} × " if len(row) > 1 else ""
    return repeats + harmless(row[0].name)


_PICTURE = "SVG"


def choices() -> list[tuple[str, str]]:
    """The export formats, and what each contains."""
    tables = [(name, f"{name:5} rows and columns of the tree") for name in FORMATS]
    return [*tables, (_PICTURE, f"{_PICTURE:5} screenshot")]


def save(app: App[Any], table: TreeTable, format: str) -> str:
    """Export the table, or a screenshot; the message for the user."""
    suffix, write = FORMATS.get(format, (f".{_PICTURE.lower()}", None))
    text = write(table) if write else screenshot(app)
    return write_new(table.state.model.name, suffix, text)


def write_new(name: str, suffix: str, text: str) -> str:
    """Write a new file in the current folder; the message for the user."""
    path = new_file(Path.cwd(), name, suffix)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        return f"Cannot write {path}: {error.strerror}"
    return f"Wrote {path.name}"


_BACKGROUNDS = {
    "plain": "background",
    "header": "surface",
    "same": "glass-same",
    "cursor": "glass-cursor",
    "resting": "glass-resting",
}
"""The background of a line, as a variable of the theme."""


class ModuleTree(ScrollView, can_focus=True):
    """The modules of a model as a tree with columns and a cursor."""

    BINDINGS: ClassVar = bindings("tree")

    class Moved(Message):
        """The cursor is on another module, or the rows changed."""

    class Viewed(Message):
        """The user wants to see the selected module in a panel."""

    class Scrolled(Message):
        """Other modules are visible."""

    class Sorted(Message):
        """The rows are in another order."""

    def __init__(self, state: ExplorerState, labels: ColumnChoice | None = None) -> None:
        super().__init__()
        self.state = state
        self.labels = (labels or ColumnChoice()).with_reports(report_columns(state.reports))
        self.cursor = state.model.root.id
        self.tree_rows = TreeRows(state)
        self.sorting = SortOrder()
        self._matches = NONE
        self._is_match = _mask(state.model, NONE)
        self.lines = TreeLines(state, self._style)
        self.row = 0

    @property
    def selected(self) -> Module:
        return self.state.model[self.cursor]

    @property
    def columns(self) -> Sequence[TreeColumn]:
        return self.lines.layout.columns

    @property
    def folds(self) -> tree_rows.Folds:
        return self.tree_rows.folds

    def table(self) -> TreeTable:
        model, depths = self.state.model, self.state.outline.depths
        modules = (model[row] for row in self.tree_rows.rows.tolist())
        lines = [TreeLine(self.tree_rows.row(module), depths[module.id]) for module in modules]
        return TreeTable(self.state, self.columns, lines)

    def on_screen(self) -> Sequence[Module]:
        top = self.scroll_offset.y
        seen = self.tree_rows.rows[top : top + self.window].tolist()
        return [self.state.model[row] for row in seen]

    def wanted(self) -> Iterable[Series]:
        """The series to read to draw what is visible."""
        for series_of in [column.series for column in self.columns if column.series]:
            for module in self.on_screen():
                series = series_of(self.state, module)
                if series is not None:
                    yield series

    @property
    def window(self) -> int:
        return max(self.size.height - 1, 1)

    @property
    def _line_width(self) -> int:
        # The scrollbar takes a cell as soon as the rows do not fit.
        return self.size.width - (len(self.tree_rows) > self.window)

    def on_resize(self) -> None:
        self.fit_columns()

    def take_model(self, before: Model) -> None:
        """Show another model, with the folds of the previous one."""
        open_paths = {before[fold].path for fold in self.folds}
        model = self.state.model
        here = model.find(before[self.cursor].path) or model.root
        self.lines = TreeLines(self.state, self._style)
        self.tree_rows = TreeRows(self.state)
        self.sorting = SortOrder()
        self._matches, self._is_match = NONE, _mask(model, NONE)
        self.cursor = here.id
        self.learn()
        folds = frozenset(one.id for one in model.modules if one.path in open_paths)
        self.set_folds(folds & self.state.outline.foldable)

    def learn(self) -> None:
        """Redraw everything: columns may need more room now."""
        self.lines.learn()
        self.fit_columns()

    def set_folds(self, folds: tree_rows.Folds, cursor: ModuleId | None = None) -> None:
        if folds != self.folds:
            self.tree_rows.fold(folds)
            self._take_rows(cursor)
        else:
            self._stay(cursor)

    def go_to(self, id: ModuleId) -> None:
        self.tree_rows.show(id)
        self._take_rows(id)

    def show_rows(
        self, folds: tree_rows.Folds, cursor: ModuleId, matches: Matches | None = None
    ) -> None:
        """Show these folds, or only some modules and those above them."""
        self.tree_rows.arrange(folds, matches)
        self._take_rows(cursor)

    def fold_repeats(self, folded: bool) -> None:
        self.tree_rows.fold_repeats(folded)
        self._take_rows()

    def sort(self, sorting: SortOrder) -> None:
        self.sorting = sorting
        self.tree_rows.sort(sorting.ranks(self.state, self.labels))
        self._take_rows()
        self.post_message(self.Sorted())

    def _take_rows(self, cursor: ModuleId | None = None) -> None:
        self.lines.take_rows(self.tree_rows)
        self.fit_columns()
        self._stay(cursor)

    def _stay(self, cursor: ModuleId | None = None) -> None:
        self.go_to_row(self.tree_rows.place_of(self.cursor if cursor is None else cursor))

    def set_labels(self, labels: ColumnChoice, group: Group | None = None) -> None:
        """Show other columns, and scroll to those of a group."""
        turned = labels.aligned != self.labels.aligned
        self.labels = labels
        self.fit_columns()
        if turned:
            self.scroll_to(x=0, animate=False)
        elif group is not None and labels.aligned:
            self.scroll_to(x=self.lines.showing(group, self.scroll_offset.x), animate=False)

    def mark(self, matches: Matches) -> None:
        self._matches, self._is_match = matches, _mask(self.state.model, matches)
        self.redraw()

    def redraw(self) -> None:
        self.lines.clear()
        self.refresh()

    def notify_style_update(self) -> None:
        self.lines.clear()
        super().notify_style_update()

    def watch_has_focus(self, focus: bool) -> None:
        super().watch_has_focus(focus)
        self.refresh()

    def fit_columns(self) -> None:
        self.lines.fit(self.labels, self._line_width)
        self.virtual_size = Size(self.lines.width, len(self.tree_rows) + 1)
        self.redraw()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Scrolled())

    def render_line(self, y: int) -> Strip:
        if y == 0:
            left = self.scroll_offset.x
            return self.lines.header(self.sorting, left, self.max_scroll_x)
        place = y - 1 + self.scroll_offset.y
        if place >= len(self.tree_rows):
            return Strip.blank(self._line_width, self.rich_style)
        return self._line(self.tree_rows.module(place))

    def _line(self, module: Module) -> Strip:
        if module.id == self.cursor:
            tone = "cursor" if self.has_focus else "resting"
        else:
            tone = "same" if self._is_like_selected(module) else "plain"
        row_state = RowState(
            tone=tone,
            is_open=self.tree_rows.is_open(module.id),
            is_match=bool(self._is_match[module.id]),
        )
        return self.lines.line(self.tree_rows.row(module), row_state, self.scroll_offset.x)

    def _is_like_selected(self, module: Module) -> bool:
        """Whether a module has the class of the selected one; groups of a checkpoint have no class.

        It is not marked while matches or changes are marked.
        """
        kind = self.selected.class_name
        alike = module.class_name == kind and kind not in self.state.outline.classless
        return alike and not len(self._matches) and self.state.comparison is None

    def _style(self, tone: str, style: str) -> Style:
        return rich_style(self.app.theme_variables, TEXT_STYLES[style], _BACKGROUNDS[tone])

    def go_to_row(self, row: int) -> None:
        before = self.cursor
        self.row = min(max(row, 0), len(self.tree_rows) - 1)
        self.cursor = self.tree_rows.module(self.row).id
        self._refresh_tints(before)
        top = self.scroll_offset.y
        if self.row < top:
            self.scroll_to(y=self.row, animate=False)
        elif self.row >= top + self.window:
            self.scroll_to(y=self.row - self.window + 1, animate=False)
        self.post_message(self.Moved())

    def _refresh_tints(self, before: ModuleId) -> None:
        """Redraw the rows that change when the cursor moves."""
        if self.state.model[before].class_name != self.selected.class_name:
            self.refresh()
            return
        changed = {before, self.cursor}
        for line, module in enumerate(self.on_screen(), start=1):
            if module.id in changed:
                self.refresh(Region(0, line, self._line_width, 1))

    def action_move(self, by: int) -> None:
        self.go_to_row(self.row + by)

    def action_page(self, direction: int) -> None:
        self.go_to_row(self.row + direction * self.window)

    def action_edge(self, direction: int) -> None:
        self.go_to_row(0 if direction < 0 else len(self.tree_rows) - 1)

    def action_pan(self, direction: int) -> None:
        wanted = self.lines.layout.beside(self.scroll_offset.x, direction)
        self.scroll_to(x=wanted, animate=False)

    def action_close(self) -> None:
        """Fold the module, or go to its parent."""
        module = self.selected
        if module.id in self.folds:
            self.action_fold("one")
        elif module.parent is not None:
            self.set_folds(self.folds, module.parent)

    def action_open(self) -> None:
        """Unfold the module. If it is open, go to its first child; if it is a leaf, view it."""
        module = self.selected
        if not module.children:
            self.post_message(self.Viewed())
        elif module.id in self.folds:
            self.action_move(1)
        else:
            self.action_fold("one")

    def action_fold(self, what: str) -> None:
        self.set_folds(toggle(self.state.outline, self.folds, self.cursor, what))

    def action_sort(self, number: int) -> None:
        """Sort by the column of that number; 1 is the name, 0 restores model order."""
        shown = [NAME, *self.columns]
        if 1 <= number <= len(shown):
            self.sort(self.sorting.then(shown[number - 1].id))
        elif number == 0:
            self.sort(SortOrder())

    def on_click(self, event: events.Click) -> None:
        if event.y < 1:
            column = self.lines.column_at(event.x, self.scroll_offset.x)
            if column is not None:
                self.sort(self.sorting.then(column.id))
            return
        place = event.y - 1 + self.scroll_offset.y
        if place >= len(self.tree_rows):
            return
        self.go_to_row(place)
        row = self.tree_rows.row(self.selected)
        if self.lines.is_marker(row, event.x) or event.chain == 2:
            self.action_fold("one")


def _mask(model: Model, matches: Matches) -> tree_rows.Mask:
    is_match = np.zeros(len(model.modules), np.bool_)
    is_match[matches] = True
    return is_match
