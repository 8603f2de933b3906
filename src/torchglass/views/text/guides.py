"""The lines that lead to each row of a tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchglass.analyse.model.summary import Row


def guides(rows: Iterable[Row], arm: str) -> Iterator[str]:
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
