"""The lines of a table of what modules compute, in the order of the tree or by size."""

from __future__ import annotations

from torchglass.analyse.flops.adding import ModuleFlops
from torchglass.analyse.flops.report import FlopReport
from torchglass.analyse.rows import Row, Sort, check_order, paths_of, ranked, tree


def rows(
    found: FlopReport, *, depth: int | None = None, sort: Sort | None = None
) -> list[Row[ModuleFlops]]:
    """A line for each module: as a tree, or with `sort="self"` in one list, the largest first.

    With `sort="total"` the largest of the siblings comes first.
    """
    check_order(sort, depth)
    rest = found.unattributed
    if sort == "self":
        every = [one for one in (*found.rows.values(), rest) if one.self_flops]
        return ranked(every, found.model, lambda one: one.self_flops, depth)
    every = [
        found.rows.get(path, ModuleFlops(path=path)) for path in paths_of(found.model, found.rows)
    ]
    if rest.total_flops or rest.uncounted_calls:
        every.append(rest)
    return tree(every, found.model, _total if sort == "total" else None, depth)


def _total(module: ModuleFlops) -> int:
    return module.total_flops
