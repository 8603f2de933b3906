"""The texts by which modules are found, read batch by batch so that no key waits for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from torchglass.records.model import Model, Module, Slot
from torchglass.views.columns import shape_text
from torchglass.views.tui.tree.rows import Ids, Mask

_BATCH = 5_000
"""Modules whose texts are read in some milliseconds."""


class Index:
    """What is typed is looked for in here. Modules that are alike share their words."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.words: list[str] = []
        """In lower case and a line each: a name, a class, settings, and each of the tensors."""
        self.names: list[str] = []
        """By number of the words: the name that they begin with."""
        self._numbers: dict[tuple[object, ...], int] = {}
        self._number_of: list[int] = []
        """By module: the number of its words."""
        self._parent_of: list[int] = []
        self._holders: list[int] = []
        """The modules that hold others; after the root's path there is no dot."""
        self._paths: list[str] = []
        """Those of the holders, in lower case."""

    def reading(self) -> Iterator[None]:
        """Read what was not read yet; after each step there is time for something else."""
        modules = self.model.modules
        while len(self._number_of) < len(modules):
            start = len(self._number_of)
            self._read(modules[start : start + _BATCH])
            yield

    def _read(self, modules: Sequence[Module]) -> None:
        self._number_of += map(self._number, modules)
        self._parent_of += [module.parent or 0 for module in modules]
        holders = [one for one in modules if one.children and one.parent is not None]
        self._holders += [holder.id for holder in holders]
        self._paths += [holder.path.lower() for holder in holders]

    def chosen(self, words: Sequence[bool] | Mask) -> Mask:
        """For each module whether its words are among these."""
        mask: Mask = np.asarray(words, np.bool_)[self._words_of]
        return mask

    def at_end_of_path(self, text: str) -> Mask:
        """The modules whose path has the text in it with its last dot before their own name."""
        above, _, own = text.rpartition(".")
        named = self.chosen([name.startswith(own) for name in self.names])
        holds = np.zeros(len(named), np.bool_)
        holds[self._holders] = [path.endswith(above) for path in self._paths]
        return named & holds[self._parents]

    def _number(self, module: Module) -> int:
        # A spec is a record that the model keeps alive, and mostly shared by all slots of a kind.
        slots = tuple([(slot.name, id(slot.spec)) for slot in module.slots])
        key = (module.name, module.class_name, module.extra, slots)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            lines = [module.name, module.kind, module.extra, *map(_line, module.slots)]
            self.words.append("\n".join(lines).lower())
            self.names.append(module.name.lower())
        return number

    @cached_property
    def _words_of(self) -> Ids:
        return np.array(self._number_of, np.int64)

    @cached_property
    def _parents(self) -> Ids:
        return np.array(self._parent_of, np.int64)


def _line(slot: Slot) -> str:
    shape = shape_text(slot.spec).replace("×", "x")
    return f"{slot.name} {shape} {slot.spec.dtype} {slot.spec.device}"
