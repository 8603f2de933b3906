"""Neighbours in a model that are built alike, such as the twelve blocks of a transformer."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from itertools import groupby

from torchglass.records.model import Model, Module, ModuleId

Build = int
"""A number that two modules share when they, and all below them, are built alike."""

_NUMBER = re.compile(r"\d+")


def builds(model: Model) -> list[Build]:
    """How each module is built, in the order of `model.modules`."""
    known: dict[Hashable, Build] = {}
    found: list[Build] = [0] * len(model.modules)
    # Children come after their parents, so backwards they are known before them.
    for module in reversed(model.modules):
        key = _key(model, module, found)
        found[module.id] = known.setdefault(key, len(known))
    return found


def alike(
    model: Model, siblings: Sequence[ModuleId], build: Sequence[Build]
) -> list[tuple[ModuleId, ...]]:
    """Siblings in runs: each run is built alike and named alike but for a number.

    Names without a number stay apart: `query` and `key` may be alike, but mean different things.
    """
    runs: list[tuple[ModuleId, ...]] = []
    for (stem, _), run in groupby(siblings, lambda one: (_stem(model[one]), build[one])):
        members = tuple(run)
        runs.extend([members] if "#" in stem else [(member,) for member in members])
    return runs


def _key(model: Model, module: Module, found: Sequence[Build]) -> Hashable:
    return (
        module.class_name,
        module.extra,
        module.problem,
        module.alias_of,
        tuple((slot.name, slot.role, slot.spec, slot.trainable) for slot in module.slots),
        tuple((model[child].name, found[child]) for child in module.children),
    )


def _stem(module: Module) -> str:
    return _NUMBER.sub("#", module.name)
