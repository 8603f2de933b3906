"""The lines of a table of what modules compute, in the order of the tree or by size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Literal, NamedTuple

from torchglass.analyse.flops.adding import ModuleFlops
from torchglass.analyse.flops.report import FlopReport

Sort = Literal["total", "self"]

UNATTRIBUTED = "unattributed"


class Row(NamedTuple):
    """One line of a table: a module, or what is in none, with its place in the tree."""

    flops: ModuleFlops
    name: str
    depth: int
    last: bool
    """Whether no sibling follows."""


def rows(found: FlopReport, *, depth: int | None = None, sort: Sort | None = None) -> list[Row]:
    """A line for each module: as a tree, or with `sort="self"` in one list, the largest first.

    With `sort="total"` the largest of the siblings comes first.
    """
    if sort == "self":
        every = [*found.rows.values(), found.unattributed]
        every = [one for one in every if depth is None or _level(one) <= depth]
        every.sort(key=lambda one: -one.self_flops)
        return [
            Row(one, _full_name(one, found.model.name), 0, True) for one in every if one.self_flops
        ]
    return list(_tree(found, depth, largest_first=sort == "total"))


def _tree(found: FlopReport, depth: int | None, *, largest_first: bool) -> Iterator[Row]:
    below: dict[str, list[ModuleFlops]] = defaultdict(list)
    known = [module.path for module in found.model.modules if module.alias_of is None]
    for path in dict.fromkeys([*known, *found.rows]):
        if path:
            flops = found.rows.get(path, ModuleFlops(path=path))
            below[path.rpartition(".")[0]].append(flops)
    if found.unattributed.total_flops or found.unattributed.uncounted_calls:
        below[""].append(found.unattributed)
    waiting = [Row(found.root, found.model.name, 0, True)]
    while waiting:
        row = waiting.pop()
        yield row
        if row.flops.path is None or (depth is not None and row.depth >= depth):
            continue
        children = below[row.flops.path]
        if largest_first:
            children = sorted(children, key=lambda flops: -flops.total_flops)
        waiting += reversed(
            [Row(flops, _name(flops), row.depth + 1, flops is children[-1]) for flops in children]
        )


def _level(flops: ModuleFlops) -> int:
    return flops.path.count(".") + 1 if flops.path else 0


def _full_name(flops: ModuleFlops, model: str) -> str:
    return UNATTRIBUTED if flops.path is None else flops.path or model


def _name(flops: ModuleFlops) -> str:
    return UNATTRIBUTED if flops.path is None else flops.path.rpartition(".")[2]
