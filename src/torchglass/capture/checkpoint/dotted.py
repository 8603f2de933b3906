"""Tensors with dotted names, as state dicts and checkpoints have them, made into a tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torchglass.records.model import Module, ModuleId, Role, Slot, TensorId, join_path
from torchglass.records.tensors import TensorSpec

GROUP = "group"
"""The class of a node of which only the name is known."""

CHECKPOINT = "checkpoint"
"""The class of the root of a model that was read from a file of tensors."""

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_WHOLE_NUMBERS = ("int", "uint", "bool")
_DEEPEST = 500
"""Dots after that many stay part of the last name: no model is so deep, but a file may say so."""


def stored_slot(
    name: str, spec: TensorSpec, tensor: TensorId, *, trainable: bool = True, state: bool = False
) -> tuple[str, Slot]:
    """The place of a stored tensor and the slot it has there, by its full name.

    A file does not tell parameters from buffers; whole numbers, the statistics that norms keep,
    and what is known to be `state` are taken for buffers.
    """
    path, _, last = name.rpartition(".")
    buffer = state or last in _STATISTICS or spec.dtype.startswith(_WHOLE_NUMBERS)
    role: Role = "buffer" if buffer else "parameter"
    return path, Slot(
        name=last, role=role, spec=spec, tensor=tensor, trainable=trainable and not buffer
    )


@dataclass(slots=True)
class _Group:
    path: str
    name: str
    parent: _Group | None
    slots: list[Slot] = field(default_factory=list)
    groups: dict[str, _Group] = field(default_factory=dict)
    id: ModuleId = field(init=False)

    def at(self, path: str) -> _Group:
        """The group at a dotted path below this one, made where it is missing."""
        group = self
        for name in path.split(".", _DEEPEST) if path else ():
            if name not in group.groups:
                group.groups[name] = _Group(join_path(group.path, name), name, group)
            group = group.groups[name]
        return group


def tree(
    slots: Iterable[tuple[str, Slot]], *, root: str, classes: Mapping[str, str] | None = None
) -> tuple[Module, ...]:
    """The modules that hold slots at dotted paths, in the order in which these come.

    `classes` are the class names by path where they are known, and `root` is that of the root;
    the class of any other node is "group", since a name does not tell what it is the name of.
    """
    known = {"": root, **(classes or {})}
    top = _Group("", "", None)
    for path in known:
        top.at(path)
    for path, slot in slots:
        top.at(path).slots.append(slot)
    return tuple(
        Module(
            id=group.id,
            path=group.path,
            name=group.name,
            class_name=known.get(group.path, GROUP),
            parent=None if group.parent is None else group.parent.id,
            children=tuple(child.id for child in group.groups.values()),
            slots=tuple(group.slots),
        )
        for group in _numbered(top)
    )


def _numbered(top: _Group) -> list[_Group]:
    groups: list[_Group] = []
    waiting = [top]
    while waiting:
        group = waiting.pop()
        group.id = ModuleId(len(groups))
        groups.append(group)
        waiting += reversed(group.groups.values())
    return groups
