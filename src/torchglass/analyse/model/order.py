"""The order in which neighbours stand in a summary."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torchglass.analyse.model.parameters import ModuleCounts
    from torchglass.records.model import Model, ModuleId

Sort = Literal["params", "bytes", "name"]

_DIGITS = re.compile(r"(\d+)")


def sort_key(
    sort: Sort, model: Model, counts: Sequence[ModuleCounts]
) -> Callable[[tuple[ModuleId, ...]], Any]:
    """What runs of neighbours that are built alike are sorted by."""
    if sort == "params":
        return lambda run: -sum(counts[one].total.parameters for one in run)
    if sort == "bytes":
        return lambda run: -sum(counts[one].total.bytes for one in run)
    return lambda run: _natural(model[run[0]].name)


def _natural(name: str) -> list[tuple[int, int | str]]:
    """A key under which "9" comes before "10"."""
    parts = _DIGITS.split(name)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts if part]
