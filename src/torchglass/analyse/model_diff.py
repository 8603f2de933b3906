"""The differences between two models, module by module.

Modules are matched by their paths, tensors by their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from torchglass.records.model import Model, Module, ModuleId, TensorId, join_path
from torchglass.records.tensors import TensorSpec

Verdict = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChange:
    """A tensor of a module that differs between the models."""

    name: str
    before: TensorSpec | None = None
    """None if only the new model has it."""
    after: TensorSpec | None = None
    """None if only the old model has it."""
    distance: float | None = None
    """The distance of the values relative to the old ones; None if shapes differ, or if it was
    not computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleChange:
    """The change of a module."""

    path: str
    verdict: Verdict
    class_before: str = ""
    """The old class, if it changed."""
    extra_before: str | None = None
    """The old `extra_repr`, if it changed."""
    slots: tuple[SlotChange, ...] = ()

    @property
    def distance(self) -> float | None:
        """The largest distance of its tensors."""
        return max((one.distance for one in self.slots if one.distance is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Both models in one tree, and their differences."""

    model: Model
    """The modules of the new model, and at their paths those that only the old one has."""
    changes: Mapping[str, ModuleChange] = field(default_factory=dict)
    """By path, without unchanged modules."""

    @cached_property
    def below(self) -> Mapping[str, int]:
        """The number of changed modules below each module, if any."""
        counts: dict[ModuleId, int] = {}
        for module in reversed(self.model.modules):
            inside = counts.get(module.id, 0) + (module.path in self.changes)
            if module.parent is not None and inside:
                counts[module.parent] = counts.get(module.parent, 0) + inside
        return {self.model[top].path: count for top, count in counts.items()}


def compare(
    before: Model, after: Model, distances: Mapping[str, float] | None = None
) -> Comparison:
    """The differences between two models.

    `distances` are the relative distances between tensors, by dotted name: the norm of
    the difference divided by that of the old tensor. Without it, values are not compared.
    """
    pairs = {module.path: (before.find(module.path), module) for module in after.modules}
    removed = [module for module in before.modules if module.path not in pairs]
    changes = {
        path: change
        for path, (old, new) in (*pairs.items(), *((one.path, (one, None)) for one in removed))
        if (change := _change(path, old, new, distances or {}))
    }
    return Comparison(model=_joined(before, after), changes=changes)


def _change(
    path: str, before: Module | None, after: Module | None, distances: Mapping[str, float]
) -> ModuleChange | None:
    slots = tuple(_slot_changes(path, before, after, distances))
    if before is None or after is None:
        verdict: Verdict = "added" if before is None else "removed"
        return ModuleChange(path=path, verdict=verdict, slots=slots)
    change = ModuleChange(
        path=path,
        verdict="changed",
        class_before=before.class_name if before.class_name != after.class_name else "",
        extra_before=before.extra if before.extra != after.extra else None,
        slots=slots,
    )
    same = not (change.class_before or change.slots) and change.extra_before is None
    return None if same else change


def _slot_changes(
    path: str, before: Module | None, after: Module | None, distances: Mapping[str, float]
) -> Iterator[SlotChange]:
    old = {slot.name: slot.spec for slot in before.slots} if before else {}
    new = {slot.name: slot.spec for slot in after.slots} if after else {}
    for name in dict.fromkeys([*new, *old]):
        one, other = old.get(name), new.get(name)
        distance = distances.get(join_path(path, name)) if one and other else None
        if _kind(one) != _kind(other) or distance:
            yield SlotChange(name=name, before=one, after=other, distance=distance or None)


def _kind(spec: TensorSpec | None) -> object:
    """What must be equal in both models: not the device."""
    return None if spec is None else (spec.shape, spec.dtype, spec.layout)


def _joined(before: Model, after: Model) -> Model:
    """The new model; modules that only the old one has come after the children of their parent."""
    joined: list[Module] = []
    ids: dict[str, ModuleId] = {}
    waiting: list[tuple[Module, ModuleId | None, bool]] = [(after.root, None, True)]
    while waiting:
        module, parent, is_new = waiting.pop()
        own = ids[module.path] = ModuleId(len(joined))
        joined.append(replace(module, id=own, parent=parent, children=()))
        waiting += reversed(
            [(child, own, new) for child, new in _below(module, is_new, before, after)]
        )
    return replace(after, modules=tuple(_linked(joined, before, after, ids)))


def _below(
    module: Module, is_new: bool, before: Model, after: Model
) -> Iterator[tuple[Module, bool]]:
    if not is_new:
        yield from ((child, False) for child in before.children(module))
        return
    yield from ((child, True) for child in after.children(module))
    old = before.find(module.path)
    for child in before.children(old) if old else ():
        if after.find(child.path) is None:
            yield child, False


def _linked(
    joined: Sequence[Module], before: Model, after: Model, ids: Mapping[str, ModuleId]
) -> Iterator[Module]:
    """The modules with the ids of the merged tree for their children and aliases."""
    children: dict[ModuleId, list[ModuleId]] = {}
    for module in joined:
        if module.parent is not None:
            children.setdefault(module.parent, []).append(module.id)
    shift = 1 + max((slot.tensor for each in after.modules for slot in each.slots), default=-1)
    for module in joined:
        is_new = after.find(module.path) is not None
        home = after if is_new else before
        alias = None if module.alias_of is None else ids.get(home[module.alias_of].path)
        # Tensor ids of the old model must not clash with those of the new one.
        shifted = (replace(slot, tensor=TensorId(slot.tensor + shift)) for slot in module.slots)
        slots = module.slots if is_new else tuple(shifted)
        below = tuple(children.get(module.id, ()))
        yield replace(module, children=below, alias_of=alias, slots=slots)
