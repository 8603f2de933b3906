"""Finding modules by what is typed, in 200,000 of them between two keystrokes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import chain

from torchglass.records.model import Model, Module, ModuleId


class Finder:
    """Where the modules of a model are looked up."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def prepare(self) -> None:
        """Read all names now, so that the first search is as quick as the next."""
        _ = self._by_names, self._paths

    def find(self, text: str) -> list[ModuleId]:
        """The modules whose name or class holds the text, whatever its case, in the tree's order.

        A text with a dot in it is looked for in whole paths, and has to end in the module's own
        name: "layer1.0" finds that block, not all that is inside it.
        """
        text = text.lower()
        if not text:
            return []
        if "." not in text:
            found = (ids for names, ids in self._by_names.items() if text in names)
            return sorted(chain.from_iterable(found))
        return [
            module.id
            for module, path in zip(self.model.modules, self._paths, strict=True)
            if text in path and _ends_in_name(module, path, text)
        ]

    @cached_property
    def _by_names(self) -> dict[str, list[ModuleId]]:
        # Blocks repeat: a large model has far fewer names and classes than modules.
        found: dict[str, list[ModuleId]] = {}
        for module in self.model.modules:
            found.setdefault(f"{module.name}\n{module.kind}".lower(), []).append(module.id)
        return found

    @cached_property
    def _paths(self) -> list[str]:
        return [module.path.lower() for module in self.model.modules]


def next_match(matches: Sequence[ModuleId], here: ModuleId, direction: int) -> ModuleId | None:
    """The match after a place, or before it with direction -1, around the end; None without any."""
    if not matches:
        return None
    if direction > 0:
        return matches[bisect_right(matches, here) % len(matches)]
    return matches[bisect_left(matches, here) - 1]


def find_match(matches: Sequence[ModuleId], id: ModuleId) -> tuple[int, bool]:
    """How many matches stand before a module, and whether it is one itself."""
    at = bisect_left(matches, id)
    return at, at < len(matches) and matches[at] == id


def _ends_in_name(module: Module, path: str, text: str) -> bool:
    return path.rfind(text) + len(text) > len(path) - len(module.name)
