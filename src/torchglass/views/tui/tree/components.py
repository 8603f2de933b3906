"""Every component that the labels of the tree can have, in the order they have at first."""

from __future__ import annotations

from torchglass.views.tui.tree.columns import Column, Group
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

__all__ = ["BY_ID", "COLUMNS", "EMPTY", "NAME", "USUAL"]

COLUMNS: tuple[Column, ...] = (
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
EMPTY: dict[Group, str] = {
    "flow": "No forward recorded: use tg.explore(model, *inputs) or --input",
    "time": "No times measured: use tg.explore(model, *inputs) or --input",
    "flops": "No FLOPs counted: use tg.explore(model, *inputs) or --input",
    "gradients": "No gradients recorded: train with tg.watch(model)",
}
"""Why the columns of a group stay away, and what to do about it."""
