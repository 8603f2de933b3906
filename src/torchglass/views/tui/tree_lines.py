"""Draws the lines of the tree: names, widths, columns and colors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.cache import LRUCache
from textual.strip import Strip

from torchglass.records.model import ModuleId
from torchglass.tables.text import harmless
from torchglass.views.tui.explorer_state import BELOW, ExplorerState
from torchglass.views.tui.styled_text import Piece, fit, fit_pieces
from torchglass.views.tui.tree_columns import (
    NAME,
    ColumnChoice,
    Group,
    RowModules,
    SortOrder,
    TreeColumn,
    name_before,
)
from torchglass.views.tui.tree_rows import TreeRows

_LEAST_NAME = 12
_TWO_TREES = 100
"""From this width on, a comparison shows the trees of both models side by side."""
_NAME_PERCENT = 45
_BETWEEN = 2
"""Cells between two values that are not aligned."""


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """The visible columns with their positions, and the width of the names."""

    columns: tuple[TreeColumn, ...] = ()
    widths: tuple[int, ...] = ()
    gap: int = 1
    """Empty cells before each column."""
    name_width: int = _LEAST_NAME
    aligned: bool = True

    @property
    def starts(self) -> Sequence[int]:
        """Where each column starts, its gap included, and where the last one ends."""
        return [0, *accumulate(self.gap + width for width in self.widths)]

    @property
    def columns_width(self) -> int:
        return self.starts[-1]

    def header(self, marked: str = "", mark: str = "") -> list[Piece]:
        pieces: list[Piece] = []
        for column, width in zip(self.columns, self.widths, strict=True):
            sorted_by = column.id == marked
            title = f"{column.title}{mark}" if sorted_by else column.title
            style = "sorted" if sorted_by else "header"
            if self.aligned:
                cell = fit(title, width, right=column.right)
                pieces.append((" " * self.gap + cell, style))
            else:
                pieces.append((" " * _BETWEEN + title, style))
        return pieces

    def cells(self, state: ExplorerState, row: RowModules) -> list[Piece]:
        pieces: list[Piece] = []
        for column, width in zip(self.columns, self.widths, strict=True):
            drawn = column.draw(state, row)
            if self.aligned:
                pieces.append((" " * self.gap, "plain"))
                pieces += fit_pieces(drawn, width, right=column.right)
            elif any(text.strip() for text, _ in drawn):
                pieces.append((" " * _BETWEEN, "plain"))
                pieces.append((column.prefix, "share"))
                pieces += fit_pieces(drawn, width, fill=False)
        return pieces

    def uncut(self, left: int, room: int) -> int:
        """How many of `room` cells from `left` on can be used without cutting a number."""
        ends = self.starts[1:] if self.aligned else ()
        for column, start, end in zip(self.columns, self.starts, ends, strict=False):
            if left < start < left + room < end and column.number is not None:
                return start - left
        return room

    def column_at(self, x: int) -> TreeColumn | None:
        places = zip(self.columns, self.starts[1:], strict=True)
        return next((column for column, end in places if x < end), None)

    def beside(self, left: int, direction: int) -> int:
        """The start of the next column at the right or left of a position."""
        if direction > 0:
            return min((start for start in self.starts if start > left), default=left)
        return max((start for start in self.starts if start < left), default=left)

    def showing(self, group: Group, left: int, room: int) -> int:
        """The scroll position nearest to `left` at which the columns of a group are visible."""
        for column, start, width in zip(self.columns, self.starts, self.widths, strict=False):
            end = start + self.gap + width
            if column.group == group and not left <= start <= end <= left + room:
                left = min([start, *(place for place in self.starts if place >= end - room)])
        return left


def lay_out(
    columns: Sequence[TreeColumn], widths: Sequence[int], names: int, width: int, *, aligned: bool
) -> ColumnLayout:
    """Divide a width among names, the longest of which has `names` cells, and columns."""
    gap = 2 if names + sum(widths) + 2 * len(columns) <= width else 1
    left_over = width - sum(widths) - gap * len(columns)
    return ColumnLayout(
        columns=tuple(columns),
        widths=tuple(widths),
        gap=gap,
        name_width=min(names, max(left_over, width * _NAME_PERCENT // 100, _LEAST_NAME)),
        aligned=aligned,
    )


def cut_widths(columns: Sequence[TreeColumn], widths: Sequence[int], room: int) -> list[int]:
    """The widths of columns, of which those that may be cut share what is missing."""
    cut = list(widths)
    flexible = [at for at, column in enumerate(columns) if column.least]
    for _ in range(sum(cut) - room):
        widest = max(flexible, key=lambda at: cut[at] - columns[at].least, default=None)
        if widest is None or cut[widest] <= columns[widest].least:
            break
        cut[widest] -= 1
    return cut


BESIDE = 5
"""Cells around a name: the cursor's, and two on each side."""

_COUNT = 4
"""Cells for the number of problems below a module."""

_LINE = "│ "
_OPEN, _CLOSED, _LEAF = "▾ ", "▸ ", "  "
_GUTTERS = {"cursor": "▌", "resting": "▌", "same": "▏"}


@dataclass(frozen=True, slots=True)
class RowState:
    """How a row is shown now."""

    tone: str = "plain"
    is_open: bool = False
    is_match: bool = False


def _label(name: str) -> str:
    return harmless(name) or '""'


_LINES_KEPT = 1_000


class TreeLines:
    """Draws the lines of the tree. Names stay in place, columns scroll sideways."""

    def __init__(self, state: ExplorerState, style: Callable[[str, str], Style]) -> None:
        self.state = state
        self.layout = ColumnLayout()
        # A line has many pieces in few styles, and asking for the theme is slower than drawing one.
        self._style = cache(style)
        self._widest_name = int(self._name_widths[state.model.root.id])
        self._column_widths: dict[str, int] = {}
        self._line_width = 0
        self._is_named = True
        self._lines: LRUCache[tuple[ModuleId, RowState, int], Strip] = LRUCache(_LINES_KEPT)

    @cached_property
    def _name_widths(self) -> npt.NDArray[np.int64]:
        """The width of each module's name, including the lines before it."""
        modules, depths = self.state.model.modules, self.state.outline.depths
        lengths = {name: cell_len(_label(name)) for name in {module.name for module in modules}}
        own = np.fromiter((lengths[module.name] for module in modules), np.int64, len(modules))
        own[0] = cell_len(self._label([self.state.model.root]))
        return own + len(_LINE) * np.array(depths, np.int64)

    def _full_name_width(self, row: RowModules) -> int:
        own = cell_len(self._label(row))
        return own + len(_LINE) * self.state.outline.depths[row[0].id]

    def _name(self, row: RowModules, row_state: RowState) -> list[Piece]:
        """The name of a row, with the lines that show its depth and its marks."""
        width = self._name_width(row)
        module = row[0]
        levels = self._levels(row, width)
        guides = _LINE * levels
        if levels < self.state.outline.depths[module.id]:
            guides = "…" + guides[1:]
        marker = (_OPEN if row_state.is_open else _CLOSED) if module.children else _LEAF
        noted = next((one for one in row if self.state.note(one)), None)
        mark = self.state.note(noted)[:1] if noted is not None else ""
        below = self.state.problems_below(row)
        count = f"{below.problems}" if below and not row_state.is_open else ""
        label = self._label(row) if self._is_named else ""
        if self.state.side_by_side and len(row) == 1:
            label = harmless(name_before(self.state, module))
        style = "match" if row_state.is_match else self.state.change_style(module)
        pieces = [
            (guides + marker, "guide"),
            (label, style),
            (f" {mark}" if mark else "", self.state.note_style(noted) if noted else "mark"),
            (f" {BELOW}{count}" if below else "", below.style if below else "mark"),
        ]
        return [(_GUTTERS.get(row_state.tone, " "), "gutter"), *fit_pieces(pieces, width - 1)]

    def _levels(self, row: RowModules, width: int) -> int:
        """How many levels are drawn: a deep row loses lines before its name is cut."""
        room = width - 1 - len(_LEAF)
        drawn = max(room - cell_len(self._label(row)) - 2, room // 2) // len(_LINE)
        return min(self.state.outline.depths[row[0].id], drawn)

    def _label(self, row: RowModules) -> str:
        first, last = row[0], row[-1]
        if first.parent is None:
            return harmless(self.state.model.name) or "model"
        if first is not last:
            places = f"{_label(first.name)}–{_label(last.name)}"
            return f"{len(row)} × {harmless(first.kind)} ({places})"
        return _label(first.name)

    def learn(self) -> None:
        """Recompute the widths of columns: more is known now."""
        self._column_widths.clear()

    def clear(self) -> None:
        self._lines.clear()
        self._style.cache_clear()

    def take_rows(self, tree_rows: TreeRows) -> None:
        """Measure the names of these rows."""
        shown = tree_rows.rows
        self._widest_name = int(self._name_widths[shown].max())
        if tree_rows.repeats_folded:
            runs = self.state.repeats.keys() & set(shown.tolist())
            rows = (tree_rows.row(self.state.model[run]) for run in runs)
            self._widest_name = max([self._widest_name, *map(self._full_name_width, rows)])

    def fit(self, labels: ColumnChoice, line_width: int) -> None:
        is_wide = self.state.comparison is not None and line_width >= _TWO_TREES
        if self.state.side_by_side != (is_wide and "b" in labels.shown):
            self.state.side_by_side = not self.state.side_by_side
            self._column_widths.clear()
        columns = labels.columns(self.state)
        for column in columns:
            if column.id not in self._column_widths:
                self._column_widths[column.id] = column.width(self.state)
        self._line_width = line_width
        self._is_named = NAME.id in labels.shown
        names = self._widest_name + BESIDE + (_COUNT if self.state.has_problems_below else 0)
        widths = [self._column_widths[column.id] for column in columns]
        if labels.aligned:
            widths = cut_widths(columns, widths, line_width - names - len(columns))
        self.layout = lay_out(columns, widths, names, line_width, aligned=labels.aligned)

    @property
    def width(self) -> int:
        """The width of names and columns together; it may be wider than a line."""
        return self.layout.name_width + self.layout.columns_width

    def showing(self, group: Group, left: int) -> int:
        return self.layout.showing(group, left, self._line_width - self.layout.name_width)

    def column_at(self, x: int, left: int) -> TreeColumn | None:
        beside = x - self.layout.name_width
        return NAME if beside < 0 else self.layout.column_at(beside + left)

    def is_marker(self, row: RowModules, x: int) -> bool:
        """Whether `x` is on the triangle that folds a row."""
        start = 1 + len(_LINE) * self._levels(row, self._name_width(row))
        return start <= x < start + len(_LEAF)

    def header(self, sorting: SortOrder, left: int, most_left: int) -> Strip:
        """The titles, with arrows at the ends where there are more columns."""
        arrow = "▴" if sorting.upwards else "▾"
        by_name = sorting.column == NAME.id
        title_of_names = "name in a" if self.state.side_by_side else "name"
        name = f" {title_of_names}{arrow}" if by_name else f" {title_of_names}"
        width = self.layout.name_width - 1 if self.layout.aligned else len(name)
        title = [
            (fit(name, width), "sorted" if by_name else "header"),
            ("‹" if left else " ", "match"),
        ]
        strip = self._strip(title, self.layout.header(sorting.column, arrow), "header", left)
        if left < most_left:
            more = Segment("›", self._style("header", "match"))
            strip = Strip([*strip.crop(0, self._line_width - 1), more])
        return strip

    def line(self, row: RowModules, row_state: RowState, left: int) -> Strip:
        key = row[0].id, row_state, left
        line = self._lines.get(key)
        if line is None:
            name, cells = self._name(row, row_state), self.layout.cells(self.state, row)
            line = self._lines[key] = self._strip(name, cells, row_state.tone, left)
        return line

    def _name_width(self, row: RowModules) -> int:
        """The width of a name: the same for all, or its own if columns are not aligned."""
        width = self.layout.name_width
        return width if self.layout.aligned else min(self._full_name_width(row) + BESIDE, width)

    def _strip(
        self, name: Sequence[Piece], columns: Sequence[Piece], tone: str, left: int
    ) -> Strip:
        drawn = self._drawn(name, tone)
        room = self.layout.uncut(left, max(self._line_width - drawn.cell_length, 0))
        strip = Strip.join([drawn, self._drawn(columns, tone).crop(left, left + room)])
        return strip.adjust_cell_length(self._line_width, self._style(tone, "plain"))

    def _drawn(self, pieces: Sequence[Piece], tone: str) -> Strip:
        return Strip([Segment(text, self._style(tone, style)) for text, style in pieces if text])
