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
    "flow": "no forward was recorded: tg.explore(model, *inputs) or --input records one",
    "time": "no time was taken: tg.explore(model, *inputs) or --input takes it",
    "flops": "no FLOPs were counted: tg.explore(model, *inputs) or --input counts them",
    "gradients": "no gradients were recorded: tg.watch(model) records a training",
}
"""Why the columns of a group stay away, and what to do about it."""
