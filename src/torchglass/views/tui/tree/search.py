"""Finding modules by what is typed, in 200,000 of them between two keystrokes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from torchglass.records.model import Model, Module, ModuleId, Slot
from torchglass.views.columns import shape_text

REGEX = "re:"
Matches = npt.NDArray[np.int64]
"""The ids of modules, in the order of the model."""
NONE: Matches = np.empty(0, np.int64)


class Finder:
    """Where the modules of a model are looked up."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def prepare(self) -> None:
        """Read all names now, so that the first search is as quick as the next."""
        _ = self._by_words, self._paths

    def find(self, text: str) -> Matches:
        """The modules with the text in their name, class, settings, or names and shapes of tensors.

        Case is no matter. A text with a dot in it is looked for in whole paths, too, and has to
        end in the module's own name: "layer1.0" finds that block, not all that is inside it.
        "re:" begins a regular expression; `re.error` says what is wrong with it.
        """
        if text.startswith(REGEX):
            return self._matching(text.removeprefix(REGEX))
        text = text.lower().replace("×", "x")
        if not text:
            return NONE
        found = [ids for words, ids in self._by_words.items() if text in words]
        at_paths = self._at_paths(text) if "." in text else []
        return self._together(found, at_paths)

    def _at_paths(self, text: str) -> list[int]:
        return [
            module.id
            for module, path in zip(self.model.modules, self._paths, strict=True)
            if text in path and _ends_in_name(module, path, text)
        ]

    def _matching(self, expression: str) -> Matches:
        if not expression:
            return NONE
        matches = re.compile(expression, re.IGNORECASE | re.MULTILINE).search
        found = [ids for words, ids in self._by_words.items() if matches(words)]
        at_paths = [number for number, path in enumerate(self._paths) if matches(path)]
        return self._together(found, at_paths)

    def _together(self, found: Iterable[Matches], others: list[int]) -> Matches:
        """All of these, each once."""
        chosen = np.zeros(len(self.model.modules), np.bool_)
        for ids in found:
            chosen[ids] = True
        chosen[others] = True
        return np.flatnonzero(chosen)

    @cached_property
    def _by_words(self) -> dict[str, Matches]:
        # Blocks repeat: a large model has far fewer names, classes and shapes than modules.
        slots = _SlotWords()
        found: dict[str, list[ModuleId]] = {}
        for module in self.model.modules:
            words = f"{module.name}\n{module.kind}\n{module.extra}{slots.of(module)}"
            found.setdefault(words, []).append(module.id)
        lower: dict[str, list[ModuleId]] = {}
        for words, ids in found.items():
            lower.setdefault(words.lower(), []).extend(ids)
        return {words: np.array(ids, np.int64) for words, ids in lower.items()}

    @cached_property
    def _paths(self) -> list[str]:
        return [module.path.lower() for module in self.model.modules]


class _SlotWords:
    """Names, shapes and types of tensors as text, made once for the many that are alike."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], str] = {(): ""}

    def of(self, module: Module) -> str:
        """What a module's tensors are."""
        # A spec is a record that the model keeps alive, and mostly shared by all slots of a kind.
        key = tuple([(slot.name, id(slot.spec)) for slot in module.slots])
        words = self._known.get(key)
        if words is None:
            words = self._known[key] = "".join(map(_words, module.slots))
        return words


def _words(slot: Slot) -> str:
    shape = shape_text(slot.spec).replace("×", "x")
    return f"\n{slot.name} {shape} {slot.spec.dtype} {slot.spec.device}"


def next_match(matches: Matches, here: int, direction: int) -> ModuleId | None:
    """The match after a place, or before it with direction -1, around the end; None without any."""
    if not len(matches):
        return None
    if direction > 0:
        after = int(np.searchsorted(matches, here, "right"))
        return ModuleId(int(matches[after % len(matches)]))
    return ModuleId(int(matches[int(np.searchsorted(matches, here)) - 1]))


def find_match(matches: Matches, id: ModuleId) -> tuple[int, bool]:
    """How many matches stand before a module, and whether it is one itself."""
    at = int(np.searchsorted(matches, id))
    return at, at < len(matches) and int(matches[at]) == id


def _ends_in_name(module: Module, path: str, text: str) -> bool:
    return path.rfind(text) + len(text) > len(path) - len(module.name)
