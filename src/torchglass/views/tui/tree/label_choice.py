"""Which columns the labels show, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.tree.columns import Group, TreeColumn
from torchglass.views.tui.tree.model_columns import (
    BYTES,
    KIND,
    NAME,
    NOTES,
    PARAMETERS,
    SHAPES,
    TYPES,
)
from torchglass.views.tui.tree.run_columns import FLOPS, GRADIENTS, MEMORY, TENSORS, TIME

__all__ = ["BY_ID", "COLUMNS", "NAME", "USUAL", "WHY_EMPTY"]

COLUMNS: tuple[TreeColumn, ...] = (
    *KIND,
    *GRADIENTS,
    *PARAMETERS,
    *BYTES,
    *MEMORY,
    *TYPES,
    *TENSORS,
    *TIME,
    *FLOPS,
    *SHAPES,
    *NOTES,
)
"""All but the name, which always comes first."""

BY_ID = {column.id: column for column in (NAME, *COLUMNS)}
USUAL: tuple[str, ...] = tuple(column.id for column in (NAME, *COLUMNS) if column.usual)
WHY_EMPTY: dict[Group, str] = {
    "flow": "No forward recorded: use tg.explore(model, *inputs) or --input",
    "time": "No times measured: use tg.explore(model, *inputs) or --input",
    "flops": "No FLOPs counted: use tg.explore(model, *inputs) or --input",
    "gradients": "No gradients recorded: train with tg.watch(model)",
}
"""Why the columns of a group stay away, and what to do about it."""


@dataclass(frozen=True, kw_only=True)
class ColumnChoice:
    """The choice of the user."""

    order: tuple[str, ...] = tuple(column.id for column in COLUMNS)
    """All components but the name, which comes first."""
    shown: frozenset[str] = frozenset(USUAL)
    aligned: bool = True
    """Whether each component has a column of its own over the whole tree."""
    hidden_by_key: Mapping[Group, frozenset[str]] = field(default_factory=dict)
    """What the key of a group took away, and brings back."""

    @property
    def all(self) -> list[TreeColumn]:
        """Every component, the name first."""
        return [NAME, *(BY_ID[one] for one in self.order)]

    def columns(self, state: ExplorerState) -> list[TreeColumn]:
        """The components beside the names, without those that would stay empty."""
        shown = (BY_ID[one] for one in self.order if one in self.shown)
        return [column for column in shown if column.applies(state)]

    def toggled(self, id: str) -> ColumnChoice:
        """With one component more or less."""
        return replace(self, shown=self.shown ^ {id})

    def with_group_turned(self, group: Group, state: ExplorerState) -> ColumnChoice:
        """Without the components of a group if any of them can be seen, else with them.

        Of a group that is not usual, all come first where some of it can be seen already.
        """
        members = [column for column in COLUMNS if column.group == group]
        seen = {column.id for column in self.columns(state)}
        here = frozenset(column.id for column in members if column.id in seen)
        asked = {column.id for column in members if column.among and column.applies(state)}
        if here and (asked <= here or any(column.usual for column in members)):
            hidden = self.shown & {column.id for column in members}
            return replace(
                self,
                shown=self.shown - hidden,
                hidden_by_key={**self.hidden_by_key, group: hidden},
            )
        usual = frozenset(column.id for column in members if column.among)
        # What was hidden may be of no use here, as the time of a model that was not run.
        back = self.hidden_by_key.get(group, frozenset())
        useful = any(BY_ID[one].applies(state) for one in back)
        return replace(self, shown=self.shown | (back if useful else usual))

    def moved(self, id: str, place: int) -> ColumnChoice:
        """With one component at another place of the order."""
        rest = [one for one in self.order if one != id]
        if id in self.order:
            rest.insert(min(max(place, 0), len(rest)), id)
        return replace(self, order=tuple(rest))
