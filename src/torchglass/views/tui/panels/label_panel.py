"""The panel that chooses the columns of the tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rich.cells import cell_len
from rich.style import Style
from textual.message import Message

from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.keys import KEYS, bindings
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.text_rows import TextRow, fit
from torchglass.views.tui.tree.columns import NAME, ColumnChoice, Group, TreeColumn
from torchglass.views.tui.tree.lines import TEXT_STYLES, rich_style
from torchglass.views.tui.tree.tree import ModuleTree

_NAMES = 20
_KEYS: dict[Group, str] = {
    key.action[len("column('") : -len("')")]: key.keys[0]  # type: ignore[misc]
    for key in KEYS
    if key.action.startswith("column(")
}


class LabelPanel(Panel):
    """All columns in their order; visible ones are ticked."""

    key: ClassVar[str] = "L"
    title: ClassVar[str] = "Labels"
    has_cursor = True
    BINDINGS: ClassVar = bindings("labels")

    class Changed(Message):
        """The user chose other columns."""

    def __init__(self, state: ExplorerState, tree: ModuleTree) -> None:
        super().__init__(state)
        self._tree = tree

    @property
    def labels(self) -> ColumnChoice:
        return self._tree.labels

    def follow(self, moved: bool) -> None:
        self.put(
            [self._row(column) for column in self.labels.all],
            [TextRow(list(self._preview())), TextRow([])],
        )

    def _style(self, tone: str, style: str) -> Style:
        """The colours of the tree come before those of a panel."""
        if style not in TEXT_STYLES:
            return super()._style(tone, style)
        focused = "glass-cursor" if self.has_focus else "glass-resting"
        ground = "panel" if self.has_focus else "surface"
        return rich_style(self.app.theme_variables, style, focused if tone == "cursor" else ground)

    def _row(self, column: TreeColumn) -> TextRow:
        ticked = column.id in self.labels.shown
        useful = column.applies(self.state)
        key = _KEYS.get(column.group, "")
        return TextRow(
            [
                ("● " if ticked else "○ ", "mark" if ticked else "faint"),
                (fit(column.name, _NAMES), "plain" if useful else "faint"),
                (f"{key:2}", "key"),
                *(self._value(column) if useful else [("not recorded", "faint")]),
            ]
        )

    def _value(self, column: TreeColumn) -> list[tuple[str, str]]:
        if column is NAME and self.module.parent is None:
            return [(self.state.model.name, "name")]
        return list(column.draw(self.state, [self.module]))

    def _preview(self) -> Iterator[tuple[str, str]]:
        """The row of the selected module, as the tree shows it."""
        room = self.room
        columns = [column for column in self.labels.all if column.id in self.labels.shown]
        for column in columns:
            pieces = self._value(column)
            for text, style in pieces:
                if room > 0:
                    yield fit(text, min(cell_len(text), room)), style
                    room -= cell_len(text)
            if pieces:
                yield "  ", "plain"
                room -= 2

    def action_move(self, by: int) -> None:
        self.go(self.row + by)

    def choose(self, row: TextRow) -> None:
        self._change(self.labels.toggled(self.labels.all[self.row].id))

    def action_shift(self, by: int) -> None:
        """Move the column up or down; the name stays first."""
        column = self.labels.all[self.row]
        if column is NAME:
            return
        place = self.labels.order.index(column.id) + by
        self._change(self.labels.moved(column.id, place))
        self.go(self.labels.order.index(column.id) + 1)

    def _change(self, labels: ColumnChoice) -> None:
        self._tree.set_labels(labels)
        self.follow(False)
        self.post_message(self.Changed())
