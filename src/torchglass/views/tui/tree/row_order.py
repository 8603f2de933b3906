"""Folds, filter, sort order and grouped repeats of the tree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchglass.records.model import Module, ModuleId
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.tree import rows
from torchglass.views.tui.tree.column_values import RowModules
from torchglass.views.tui.tree.columns import BY_ID, NAME, TreeColumn
from torchglass.views.tui.tree.rows import Folds, Ids, Mask, ModuleOrder


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The column by which siblings are ordered."""

    column: str = ""
    """"" for the order of the model."""
    upwards: bool = False
    """Whether the smallest value, or the last text of the alphabet, comes first."""

    def then(self, column: str) -> SortOrder:
        """The order after a column was chosen again: largest first, smallest first, model order."""
        if column != self.column:
            return SortOrder(column)
        return SortOrder() if self.upwards else SortOrder(column, upwards=True)

    @property
    def words(self) -> str:
        column = BY_ID.get(self.column)
        if column is None:
            return "Model order"
        ways = ("largest first", "smallest first") if column.number else ("A to Z", "Z to A")
        return f"Sorted by {column.name.lower()}, {ways[self.upwards]}"


class TreeRows:
    """The rows of the tree: folds, filter, order and grouped repeats."""

    def __init__(self, state: ExplorerState) -> None:
        self.state = state
        self._folds: Folds = frozenset()
        self.sorting = SortOrder()
        self.repeats_folded = False
        self.order: ModuleOrder = state.outline.order
        self._filter: Mask | None = None
        self._opened: Mask | None = None
        """What a filter opened in addition to the folds."""
        self.rows: Ids = state.outline.order.ids[:1]

    @property
    def folds(self) -> Folds:
        # Not earlier: building a set of a large model's ids takes longer than the rest of a search.
        if self._opened is not None:
            self._folds |= frozenset(np.flatnonzero(self._opened).tolist())
            self._opened = None
        return self._folds

    def is_open(self, id: ModuleId) -> bool:
        return id in self._folds or (self._opened is not None and bool(self._opened[id]))

    @property
    def filtered(self) -> bool:
        return self._filter is not None

    def __len__(self) -> int:
        return len(self.rows)

    def module(self, place: int) -> Module:
        return self.state.model[ModuleId(int(self.rows[place]))]

    def row(self, module: Module) -> RowModules:
        """The modules of a row."""
        if not self.repeats_folded:
            return (module,)
        members = self.state.repeats.get(module.id, (module.id,))
        return [self.state.model[member] for member in members]

    def place_of(self, id: ModuleId) -> int:
        """The row of a module, or of the nearest module above it that has one."""
        for candidate in (id, *self.state.outline.ancestors(id)):
            found = np.flatnonzero(self.rows == candidate)
            if len(found):
                return int(found[0])
        return 0

    def fold(self, folds: Folds) -> None:
        self._folds, self._opened = folds, None
        self._lay_out()

    def show(self, id: ModuleId) -> None:
        """Unfold everything above a module, and drop what else hides it."""
        outline = self.state.outline
        if self.repeats_folded and self._repeated()[id]:
            self.repeats_folded = False
        if self._filter is not None and not self._filter[id]:
            self._filter = None
        self.fold(rows.reveal(outline, self.folds, [id]))

    def arrange(self, folds: Folds, matches: Ids | None = None) -> None:
        """Open these folds; with matches, show only them and the modules above them."""
        outline = self.state.outline
        self._folds, self._filter, self._opened = folds, None, None
        if matches is not None:
            self._opened = outline.above(matches)
            self._filter = self._opened.copy()
            self._filter[matches] = True
        self._lay_out()

    def fold_repeats(self, folded: bool) -> None:
        self.repeats_folded = folded
        self._lay_out()

    def sort(self, sorting: SortOrder) -> None:
        self.sorting = sorting
        column = BY_ID.get(sorting.column)
        outline = self.state.outline
        self.order = (
            outline.order
            if column is None
            else outline.ordered(_ranks(self.state, column, sorting.upwards))
        )
        self._lay_out()

    def _lay_out(self) -> None:
        keep = self._filter
        if self.repeats_folded:
            alone = ~self._repeated()
            keep = alone if keep is None else keep & alone
        self.rows = rows.visible(self.order, self._folds, keep, self._opened)

    def _repeated(self) -> Mask:
        """The modules that are grouped with another one, and all below them."""
        runs = self.state.repeats.values()
        return self.state.outline.branches(one for run in runs for one in run[1:])


def _ranks(state: ExplorerState, column: TreeColumn, upwards: bool) -> list[float]:
    """For each module a sort key; modules without a value come last."""
    modules = state.model.modules
    if column.number is not None:
        sign = 1.0 if upwards else -1.0
        numbers = (column.number(state, module) for module in modules)
        return [np.inf if number is None else sign * number for number in numbers]
    texts = [_natural(column, state, module) for module in modules]
    _, ranks = np.unique(np.array(texts), return_inverse=True)
    return list(-ranks if upwards else ranks)


def _natural(column: TreeColumn, state: ExplorerState, module: Module) -> str:
    """A text that sorts "9" before "10"."""
    text = module.name if column is NAME else column.text(state, [module])
    return text.zfill(12) if text.isdecimal() else text or "\U0010ffff"
