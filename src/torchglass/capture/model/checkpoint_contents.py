"""The contents of a checkpoint: which part is the model, and its dotted names as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.capture.model.live_modules import module_parts
from torchglass.capture.tensor.description import describe
from torchglass.errors import TargetError
from torchglass.records.model import FilePart, Module, ModuleId, Slot, SlotRole, TensorId, join_path
from torchglass.records.tensors import TensorSpec

_MOST = 500_000
"""How much to look at: a small file can name its parts more often than anyone can wait for."""

Named = tuple[str, torch.Tensor, bool]
"""Name, tensor, and whether it is not part of the model: the state of an optimizer."""


class Divided(NamedTuple):
    """What a file holds: the tensors by their names in the tree, and what is beside the model."""

    tensors: list[Named]
    beside: list[FilePart]


def divided(content: Any) -> Divided:
    """The tensors of the one model in a file by the names that the model has for them.

    What is kept beside the model has the name of its key before it. Where there are several models,
    as in a GAN, or with averaged weights, all have.
    """
    others: list[tuple[str, Any]] = []
    while isinstance(content, Mapping) and not is_state_dict(content):
        chosen = _only_model(content)
        if chosen is None:
            break
        others += [(str(key), part) for key, part in content.items() if key != chosen]
        content = content[chosen]
    tensors = list(_tensors(content))
    top = {name.partition(".")[0] for name, _, _ in tensors}
    beside = []
    for key, part in others:
        name = f"{key} (file)" if key in top else key
        held = [(join_path(name, inner), tensor, True) for inner, tensor, _ in _tensors(part, "")]
        tensors += held
        beside.append(_described(key, part, name if held else ""))
    if isinstance(content, Mapping):
        beside += [
            _described(str(key), part)
            for key, part in content.items()
            if next(_tensors(part), None) is None
        ]
    return Divided(tensors, beside)


def is_state_dict(part: Any) -> bool:
    """Whether something is the tensors of a model by name, told by what is in it."""
    if not isinstance(part, Mapping) or _is_optimizer(part):
        return False
    tensors = [value for value in part.values() if isinstance(value, torch.Tensor)]
    is_named = all(isinstance(key, str) for key in part)
    weights = any(one.dim() and (one.is_floating_point() or one.is_complex()) for one in tensors)
    return is_named and weights and 2 * len(tensors) > len(part)


def _only_model(content: Mapping[Any, Any]) -> Any:
    """The key of the only model in a dict, or of the only dict with tensors."""
    models = [key for key, part in content.items() if is_state_dict(part)]
    if not models:
        holders = [key for key, part in content.items() if next(_tensors(part), None) is not None]
        models = [key for key in holders if isinstance(content[key], Mapping)]
        if len(holders) != 1:
            return None
    return models[0] if len(models) == 1 else None


def _is_optimizer(part: Any) -> bool:
    return isinstance(part, Mapping) and {"state", "param_groups"} <= part.keys()


def beside_modules(content: Any) -> tuple[FilePart, ...]:
    """What a dict of whole modules holds beside them."""
    if not isinstance(content, Mapping):
        return ()
    parts = ((str(key), part) for key, part in content.items() if not _has_modules(part))
    return tuple(_described(key, part) for key, part in parts)


def _has_modules(part: Any) -> bool:
    return isinstance(part, nn.Module) or bool(module_parts(part))


def _described(key: str, part: Any, path: str = "") -> FilePart:
    tensors = list(_tensors(part))
    if not tensors:
        kind = "optimizer without state" if _is_optimizer(part) else _plain_text(part)
        return FilePart(name=key, text=kind)
    return FilePart(
        name=key,
        text=_optimizer_text(part),
        path=path,
        tensors=len(tensors),
        bytes=sum(describe(tensor).bytes for _, tensor, _ in tensors),
    )


def _optimizer_text(part: Any) -> str:
    """The optimizer that a state is probably of, by the names in it."""
    several = part if isinstance(part, (list, tuple)) else [part]
    found = [one for one in several if _is_optimizer(one)]
    if not found:
        return ""
    states = [state for one in found for state in one["state"].values()]
    names = {str(name) for state in states if isinstance(state, Mapping) for name in state}
    known = (kind for needed, kind in _OPTIMIZERS if needed <= names)
    return f"state of {next(known, 'an optimizer')}"


_OPTIMIZERS: tuple[tuple[set[str], str], ...] = (
    ({"exp_avg", "exp_avg_sq"}, "Adam or AdamW"),
    ({"exp_avg", "exp_inf"}, "Adamax"),
    ({"momentum_buffer"}, "SGD with momentum"),
    ({"square_avg"}, "RMSprop"),
    ({"exp_avg"}, "Lion"),
    ({"sum"}, "Adagrad"),
)
_LONGEST = 60


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _plain_text(part: Any) -> str:
    """A value, or the number of items of a container."""
    if isinstance(part, Mapping) and part:
        inner = ", ".join(f"{key}={_plain_text(value)}" for key, value in islice(part.items(), 8))
        return _short(inner)
    if isinstance(part, (Mapping, list, tuple)):
        return f"{len(part):,} item{'s' * (len(part) != 1)}" if part else "empty"
    try:
        return _short(" ".join(repr(part).split()))
    except Exception:  # noqa: BLE001 - a repr is foreign code
        return type(part).__qualname__


def _tensors(content: Any, alone: str = "tensor") -> Iterator[Named]:
    """All tensors in nested containers; `alone` names one that is not in a container."""
    waiting = [("", content, False)]
    for _ in range(_MOST):
        if not waiting:
            return
        name, part, state = waiting.pop()
        if isinstance(part, torch.Tensor):
            yield name or alone, part, state
            continue
        state = state or _is_optimizer(part)
        waiting += [(join_path(name, key), inner, state) for key, inner in reversed(_below(part))]
    raise TargetError(f"it has more than {_MOST:,} containers and tensors, or contains itself")


def _below(part: Any) -> list[tuple[str, Any]]:
    """The named parts that are tensors or containers."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(part, Mapping):
        items = part.items()
    elif isinstance(part, (list, tuple)):
        items = enumerate(part)
    return [
        (str(name), inner)
        for name, inner in items
        if isinstance(inner, (torch.Tensor, Mapping, list, tuple))
    ]


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
    role: SlotRole = "buffer" if buffer else "parameter"
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
        """The group at a dotted path below this one, created if missing."""
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
