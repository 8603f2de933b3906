"""The modules of a step's memory as lines: a tree, or one list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from torchglass.analyse.memory.report import Held, MemoryReport, ModuleMemory
from torchglass.records.model import Model

Sort = Literal["total", "self"]

UNATTRIBUTED = "unattributed"

_NOTHING = Held()


class Row(NamedTuple):
    """One line of a table: a module, or what no module made, with its place in the tree."""

    memory: ModuleMemory
    name: str
    depth: int
    last: bool
    """Whether no sibling follows."""


def rows(
    report: MemoryReport, model: Model, *, depth: int | None = None, sort: Sort | None = None
) -> list[Row]:
    """A line for each module: as a tree, or with `sort="self"` in one list.

    There the one that holds most of the peak itself comes first; with `sort="total"` the one of the
    siblings that holds most with all below it.
    """
    if sort == "self":
        every = (*report.modules.values(), report.unattributed)
        shown = [one for one in every if one.own != _NOTHING and _is_within(one, depth)]
        shown.sort(key=lambda one: -one.own.peak_bytes)
        return [Row(one, name_of(one, model), 0, True) for one in shown]
    return list(_tree(report, model, depth, most_first=sort == "total"))


def name_of(memory: ModuleMemory, model: Model) -> str:
    """The path of a module; the class of the model for the model itself."""
    return UNATTRIBUTED if memory.path is None else memory.path or model.name


def _is_within(memory: ModuleMemory, depth: int | None) -> bool:
    level = memory.path.count(".") + 1 if memory.path else 0
    return depth is None or level <= depth


def _tree(
    report: MemoryReport, model: Model, depth: int | None, *, most_first: bool
) -> Iterator[Row]:
    below: dict[str, list[ModuleMemory]] = {}
    for path, memory in report.modules.items():
        if path:
            below.setdefault(path.rpartition(".")[0], []).append(memory)
    if report.unattributed.own != _NOTHING:
        below.setdefault("", []).append(report.unattributed)
    waiting = [Row(report.root, model.name, 0, True)]
    while waiting:
        row = waiting.pop()
        yield row
        if row.memory.path is None or (depth is not None and row.depth >= depth):
            continue
        children = below.get(row.memory.path, [])
        if most_first:
            children = sorted(children, key=lambda memory: -memory.total.peak_bytes)
        last = len(children) - 1
        waiting += reversed(
            [
                Row(child, _short_name(child), row.depth + 1, place == last)
                for place, child in enumerate(children)
            ]
        )


def _short_name(memory: ModuleMemory) -> str:
    return UNATTRIBUTED if memory.path is None else memory.path.rpartition(".")[2]
