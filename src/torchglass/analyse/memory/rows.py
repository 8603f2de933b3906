"""The modules of a step's memory as lines: a tree, or one list."""

from __future__ import annotations

from torchglass.analyse.memory.report import Held, MemoryReport, ModuleMemory
from torchglass.analyse.rows import Row, Sort, check_order, ranked, tree
from torchglass.records.model import Model

_NOTHING = Held()


def rows(
    report: MemoryReport, model: Model, *, depth: int | None = None, sort: Sort | None = None
) -> list[Row[ModuleMemory]]:
    """A line for each module: as a tree, or with `sort="self"` in one list.

    There the one that holds most of the peak itself comes first; with `sort="total"` the one of the
    siblings that holds most with all below it.
    """
    check_order(sort, depth)
    every = (*report.modules.values(), report.unattributed)
    if sort == "self":
        shown = [one for one in every if one.own != _NOTHING]
        return ranked(shown, model, lambda one: one.own.peak_bytes, depth)
    shown = [one for one in every if one.path is not None or one.own != _NOTHING]
    return tree(shown, model, _total if sort == "total" else None, depth)


def _total(module: ModuleMemory) -> int:
    return module.total.peak_bytes
