"""The lines of the tree: the widths of names and columns, and every line as it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.segment import Segment
from rich.style import Style
from textual.cache import LRUCache
from textual.strip import Strip

from torchglass.records.model import ModuleId
from torchglass.views.tui.cells import Piece, fit
from torchglass.views.tui.subject import Subject
from torchglass.views.tui.tree.arrangement import Arrangement, Sorting
from torchglass.views.tui.tree.columns import Column, Group, Row
from torchglass.views.tui.tree.components import NAME
from torchglass.views.tui.tree.labels import Labels
from torchglass.views.tui.tree.layout import Layout, lay_out
from torchglass.views.tui.tree.names import BESIDE, Names, Standing

_LINES_KEPT = 1_000


class Sheet:
    """What the tree is drawn on. The names stay where they are, the columns move sideways."""

    def __init__(self, subject: Subject, style: Callable[[str, str], Style]) -> None:
        self.subject = subject
        self.layout = Layout()
        self._style = style
        self._names = Names(subject)
        self._widest_name = int(self._names.widths[subject.model.root.id])
        self._column_widths: dict[str, int] = {}
        self._line_width = 0
        self._is_named = True
        self._lines: LRUCache[tuple[ModuleId, Standing, int], Strip] = LRUCache(_LINES_KEPT)

    def learn(self) -> None:
        """Forget how wide the columns are, because more is known now."""
        self._column_widths.clear()

    def draw_anew(self) -> None:
        """Forget what was drawn."""
        self._lines.clear()

    def take_rows(self, arrangement: Arrangement) -> None:
        """See how much room the names of these rows need."""
        shown = arrangement.rows
        self._widest_name = int(self._names.widths[shown].max())
        if arrangement.repeats_folded:
            runs = self.subject.repeats.keys() & set(shown.tolist())
            rows = (arrangement.row(self.subject.model[run]) for run in runs)
            self._widest_name = max([self._widest_name, *map(self._names.width, rows)])

    def fit(self, labels: Labels, line_width: int) -> None:
        """Share the width of a line out among the names and the columns of some labels."""
        columns = labels.columns(self.subject)
        self._line_width = line_width
        self._is_named = NAME.id in labels.shown
        self.layout = lay_out(
            columns,
            [self._column_width(column) for column in columns],
            self._widest_name + BESIDE,
            line_width,
            aligned=labels.aligned,
        )

    def _column_width(self, column: Column) -> int:
        if column.id not in self._column_widths:
            self._column_widths[column.id] = column.width(self.subject)
        return self._column_widths[column.id]

    @property
    def width(self) -> int:
        """What names and columns take together, which may be more than a line has."""
        return self.layout.name_width + self.layout.columns_width

    def showing(self, group: Group, left: int) -> int:
        """How far the columns have to move from `left` for those of a group to be seen."""
        return self.layout.showing(group, left, self._line_width - self.layout.name_width)

    def column_at(self, x: int, left: int) -> Column | None:
        """The column at a place of a line, which may be that of the names."""
        beside = x - self.layout.name_width
        return NAME if beside < 0 else self.layout.column_at(beside + left)

    def is_marker(self, row: Row, x: int) -> bool:
        """Whether a place in the line is where the fold is opened and closed."""
        return self._names.is_marker(row, self._name_width(row), x)

    def header(self, sorting: Sorting, left: int, most_left: int) -> Strip:
        """The titles, with arrows at the ends where there are more columns."""
        arrow = "▴" if sorting.upwards else "▾"
        by_name = sorting.column == NAME.id
        name = f" name{arrow}" if by_name else " name"
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

    def line(self, row: Row, standing: Standing, left: int) -> Strip:
        """A row as it stands in the tree now."""
        key = row[0].id, standing, left
        line = self._lines.get(key)
        if line is None:
            name = self._names.draw(row, self._name_width(row), standing, named=self._is_named)
            cells = self.layout.cells(self.subject, row)
            line = self._lines[key] = self._strip(name, cells, standing.tone, left)
        return line

    def _name_width(self, row: Row) -> int:
        """The cells of a name: as many as all have, or where nothing is aligned its own."""
        width = self.layout.name_width
        return width if self.layout.aligned else min(self._names.width(row) + BESIDE, width)

    def _strip(
        self, name: Sequence[Piece], columns: Sequence[Piece], tone: str, left: int
    ) -> Strip:
        drawn = self._drawn(name, tone)
        room = self.layout.uncut(left, max(self._line_width - drawn.cell_length, 0))
        strip = Strip.join([drawn, self._drawn(columns, tone).crop(left, left + room)])
        return strip.adjust_cell_length(self._line_width, self._style(tone, "plain"))

    def _drawn(self, pieces: Sequence[Piece], tone: str) -> Strip:
        return Strip([Segment(text, self._style(tone, style)) for text, style in pieces if text])
