"""The tree with its keys and its mouse: moving, folding, sorting."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.message import Message

from torchglass.views.tui.keys import bindings
from torchglass.views.tui.tree.arrangement import Sorting
from torchglass.views.tui.tree.components import NAME
from torchglass.views.tui.tree.rows import FOLDING
from torchglass.views.tui.tree.view import TreeView


class ModuleTree(TreeView):
    """The modules of a model, with columns that are aligned over the whole tree."""

    BINDINGS: ClassVar = bindings("tree")

    class Viewed(Message):
        """The user wants to see the module under the cursor."""

    def action_move(self, by: int) -> None:
        """Go some rows down."""
        self.go_to_row(self.row + by)

    def action_page(self, direction: int) -> None:
        """Go one screen down or up."""
        self.go_to_row(self.row + direction * self.window)

    def action_edge(self, direction: int) -> None:
        """Go to the first or the last row."""
        self.go_to_row(0 if direction < 0 else len(self.arrangement) - 1)

    def action_pan(self, direction: int) -> None:
        """Move the columns sideways by one."""
        wanted = self.sheet.layout.beside(self.scroll_offset.x, direction)
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

    def action_sort(self, number: int) -> None:
        """Order siblings by the column of that number, the name being the first."""
        shown = [NAME, *self.columns]
        if 1 <= number <= len(shown):
            self.sort(self.arrangement.sorting.then(shown[number - 1].id))
        elif number == 0:
            self.sort(Sorting())

    def on_click(self, event: events.Click) -> None:
        """Go to a row and fold it by its marker or by a second click; sort by a title."""
        if event.y < 1:
            self._click_header(event.x)
            return
        place = event.y - 1 + self.scroll_offset.y
        if place >= len(self.arrangement):
            return
        self.go_to_row(place)
        row = self.arrangement.row(self.selected)
        if self.sheet.is_marker(row, event.x) or event.chain == 2:
            self.action_fold("one")

    def _click_header(self, x: int) -> None:
        column = self.sheet.column_at(x, self.scroll_offset.x)
        if column is not None:
            self.sort(self.arrangement.sorting.then(column.id))
