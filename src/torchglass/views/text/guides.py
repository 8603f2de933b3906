"""The lines that lead to each row of a tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol


class Placed(Protocol):
    """A row that knows its place in a tree."""

    @property
    def depth(self) -> int:
        """How far it is below the root."""

    @property
    def last(self) -> bool:
        """Whether no sibling follows."""


def guides(rows: Iterable[Placed], arm: str) -> Iterator[str]:
    """For each row what stands before it: with "──" as an arm "├── ", "│   └── ", …"""
    blank = " " * len(arm)
    # What the rows below each open level begin with.
    open_levels = [""]
    for row in rows:
        if row.depth == 0:
            yield ""
            continue
        del open_levels[row.depth :]
        before = open_levels[-1]
        yield f"{before}{'└' if row.last else '├'}{arm} "
        open_levels.append(f"{before}{' ' if row.last else '│'}{blank} ")
