"""What a table column is, and which columns a table shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from torchglass.analyse.module_rows import Sort
from torchglass.errors import ViewError

R = TypeVar("R")
W = TypeVar("W")


@dataclass(frozen=True)
class Column(Generic[R, W]):
    """A heading, and what stands below it for a row of a whole."""

    title: str
    text: Callable[[R, W], str]
    right: bool = True
    """Whether it ends at the right, as numbers do."""
    spare: int = 0
    """Columns of the highest number are left out first where there is no room; those of 0 stay."""


@dataclass(frozen=True)
class TableOptions:
    """How a table of modules is to look."""

    sort: Sort | None = None
    """With "total" the largest of siblings comes first, with "self" the largest of all."""
    depth: int | None = None
    """How far below the model rows are shown."""
    columns: Iterable[str] | None = None
    room: int | None = None
    """The terminal cells that it is to fit into."""


def find_columns(names: Iterable[str], columns: Mapping[str, Column[R, W]]) -> list[Column[R, W]]:
    """The columns of these names."""
    found = []
    for name in names:
        if name not in columns:
            raise ViewError(f"there is no column {name!r}; there are {', '.join(columns)}")
        found.append(columns[name])
    return found
