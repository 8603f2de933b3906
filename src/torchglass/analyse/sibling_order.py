"""The modules of one parent: the orders to sort them by, and groups of identical ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torchglass.analyse.parameters import ModuleCounts
    from torchglass.records.model import Model, ModuleId

Sort = Literal["params", "bytes", "name"]
"""How a summary sorts the modules of each parent."""
MeasureSort = Literal["total", "self"]
"""How a report sorts what was measured: "total" within each parent, "self" all modules."""

_DIGITS = re.compile(r"(\d+)")


def sort_key(
    sort: Sort, model: Model, counts: Sequence[ModuleCounts]
) -> Callable[[tuple[ModuleId, ...]], Any]:
    """The sort key of groups of identical siblings."""
    if sort == "params":
        return lambda run: -sum(counts[one].total.parameters for one in run)
    if sort == "bytes":
        return lambda run: -sum(counts[one].total.bytes for one in run)
    return lambda run: _natural(model[run[0]].name)


def _natural(name: str) -> list[tuple[int, int | str]]:
    """A sort key that puts "9" before "10"."""
    parts = _DIGITS.split(name)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts if part]


Build = int
"""Two modules have the same number when they and all modules below them are identical."""


def builds(model: Model) -> list[Build]:
    """The structure number of each module, in the order of `model.modules`."""
    known: dict[Hashable, Build] = {}
    found: list[Build] = [0] * len(model.modules)
    # Children come after their parents, so in reverse order they are known first.
    for module in reversed(model.modules):
        key = (
            *(module.class_name, module.extra, module.problem, module.alias_of),
            tuple((slot.name, slot.role, slot.spec, slot.trainable) for slot in module.slots),
            tuple((model[child].name, found[child]) for child in module.children),
        )
        found[module.id] = known.setdefault(key, len(known))
    return found


def alike(
    model: Model, siblings: Sequence[ModuleId], build: Sequence[Build]
) -> list[tuple[ModuleId, ...]]:
    """Siblings in groups of the same structure, whose names differ only by a number.

    Names without a number stay apart: `query` and `key` may be identical, but mean different
    things.
    """

    def kind(one: ModuleId) -> tuple[str, Build]:
        return _DIGITS.sub("#", model[one].name), build[one]

    runs: list[tuple[ModuleId, ...]] = []
    for (stem, _), run in groupby(siblings, kind):
        members = tuple(run)
        runs.extend([members] if "#" in stem else [(member,) for member in members])
    return runs
