"""Any model read into records, without running it and without touching it.

    >>> model = read_model(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))
    >>> [(module.path, module.kind) for module in model.modules]
    [('', 'Sequential'), ('0', 'Linear'), ('1', 'ReLU')]

Modules are foreign code: they may override `__getattr__`, `__len__` or `__eq__`, and any of it may
raise. So nothing is asked of a module but what torch itself stored in it, and its `extra_repr`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.export import ExportedProgram

from torchglass.capture.checkpoint.exported import read_exported
from torchglass.capture.model.classes import class_name, class_source
from torchglass.capture.model.containers import module_parts
from torchglass.capture.model.identity import Identities
from torchglass.capture.model.quantized import packed_tensors
from torchglass.capture.tensor.describing import describe
from torchglass.errors import TargetError
from torchglass.records.model import ClassSource, Model, Module, ModuleId, Role, Slot

_ROLES: tuple[tuple[Role, str], ...] = (("parameter", "_parameters"), ("buffer", "_buffers"))
_HOOKS = {
    "_forward_pre_hooks": "forward_pre",
    "_forward_hooks": "forward",
    "_backward_pre_hooks": "backward_pre",
    "_backward_hooks": "backward",
    "_state_dict_pre_hooks": "state_dict_pre",
    "_state_dict_hooks": "state_dict",
    "_load_state_dict_pre_hooks": "load_state_dict_pre",
    "_load_state_dict_post_hooks": "load_state_dict_post",
}


def read_model(target: object) -> Model:
    """The structure of a module, of an exported program, or of an object that holds modules.

    Of an object that is no module the root stands for the object itself; dicts and lists in it are
    nodes of their own, so that a pipeline has paths such as `unet`, `components.vae`, `stages.0`.
    """
    if isinstance(target, ExportedProgram):
        return read_exported(target)
    if not isinstance(target, nn.Module):
        _check_holds_modules(target)
    reading = _Reading()
    modules = reading.modules(_unshelled(target))
    return Model(name=modules[0].kind, modules=modules, classes=reading.classes())


def _check_holds_modules(target: object) -> None:
    if isinstance(target, type):
        raise TargetError(f"{target.__qualname__} is a class, not a model; pass an instance of it")
    if not module_parts(target):
        raise TargetError(
            f"there is no nn.Module in this {type(target).__qualname__}; pass a module, or an"
            " object that holds some in its attributes, dicts or lists"
        )


class _Place(NamedTuple):
    """Where a thing stands in the tree, before it is read."""

    thing: Any
    name: str
    path: str
    parent: ModuleId | None


class _Reading:
    """The reading of one model, whose modules share what they have in common."""

    def __init__(self) -> None:
        self._modules: list[Module] = []
        self._children: dict[ModuleId, list[ModuleId]] = {}
        self._first: dict[int, ModuleId] = {}
        self._identities = Identities()
        self._classes: dict[str, type] = {}
        self._class_names: dict[type, str] = {}
        self._texts: dict[str, str] = {}

    def modules(self, target: object) -> tuple[Module, ...]:
        """The records in the order of the tree; a thing met again is an alias and not entered."""
        waiting = [_Place(target, "", "", None)]
        while waiting:
            place = waiting.pop()
            number = ModuleId(len(self._modules))
            if place.parent is not None:
                self._children[place.parent].append(number)
            known = self._first.setdefault(id(place.thing), number)
            if known != number:
                self._modules.append(_alias(number, place, self._modules[known]))
                continue
            below = self._enter(number, place)
            if below:
                self._children[number] = []
                start = place.path and place.path + "."
                waiting += [_Place(part, name, start + name, number) for name, part in below[::-1]]
        for number, children in self._children.items():
            self._modules[number] = replace(self._modules[number], children=tuple(children))
        return tuple(self._modules)

    def classes(self) -> Mapping[str, ClassSource]:
        """Where the classes that were met are written."""
        sources = ((name, class_source(cls)) for name, cls in self._classes.items())
        return {name: source for name, source in sources if source is not None}

    def _enter(self, number: ModuleId, place: _Place) -> Sequence[tuple[str, Any]]:
        """Read what stands at a place, and say what is below it."""
        thing = place.thing
        below: Sequence[tuple[str, Any]] = ()
        slots: list[Slot] = []
        hooks: tuple[str, ...] = ()
        training, extra, problem, doing = True, "", "", "children"
        try:
            below = _children(thing)
            if isinstance(thing, nn.Module):
                doing = "tensors"
                self._add_slots(thing, slots)
                doing = "hooks"
                hooks = _hooks(thing)
                doing = "training"
                training = _training(thing)
                doing = "extra_repr"
                extra = self._extra(thing)
        except Exception as error:  # noqa: BLE001 - one module that cannot be read is one row
            problem = f"{doing}: {_one_line(error)}"
        module = Module(
            id=number,
            path=place.path,
            name=place.name,
            class_name=self._class_name(thing),
            parent=place.parent,
            slots=tuple(slots),
            extra=extra,
            training=training,
            hooks=hooks,
            problem=problem,
        )
        self._modules.append(module)
        return below

    def _class_name(self, thing: object) -> str:
        cls = type(thing)
        name = self._class_names.get(cls)
        if name is None:
            name = class_name(thing)
            if isinstance(thing, torch.jit.ScriptModule):
                # One Python class stands for all scripted ones.
                return name
            self._class_names[cls] = name
            self._classes.setdefault(name, cls)
        return name

    def _extra(self, module: nn.Module) -> str:
        if type(module).extra_repr is nn.Module.extra_repr:
            return ""
        text = module.extra_repr()
        if not isinstance(text, str):
            raise TypeError(f"it returned {type(text).__qualname__}, not str")
        return self._texts.setdefault(text, text)

    def _add_slots(self, module: nn.Module, slots: list[Slot]) -> None:
        """Put what a module holds into a list, which keeps what was read if something raises."""
        held, identity = _held(module), self._identities.of
        fleeting = held["_non_persistent_buffers_set"]
        for role, attribute in _ROLES:
            for name, tensor in held[attribute].items():
                if tensor is not None:
                    slots.append(
                        Slot(
                            name=str(name),
                            role=role,
                            spec=describe(tensor),
                            tensor=identity(tensor),
                            trainable=role == "parameter" and tensor.requires_grad,
                            persistent=name not in fleeting,
                        )
                    )
        for name, owner, tensor in packed_tensors(module):
            part = self._identities.of_part(owner, name)
            slots.append(Slot(name=name, role="packed", spec=describe(tensor), tensor=part))


def _one_line(error: Exception) -> str:
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an error whose text raises is still an error with a type
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _alias(number: ModuleId, place: _Place, first: Module) -> Module:
    """Another place of a module, which shows what it is but holds nothing of its own."""
    return Module(
        id=number,
        path=place.path,
        name=place.name,
        class_name=first.class_name,
        parent=place.parent,
        extra=first.extra,
        training=first.training,
        alias_of=first.id,
    )


def _children(thing: object) -> Sequence[tuple[str, Any]]:
    if not isinstance(thing, nn.Module):
        return module_parts(thing)
    children = _held(thing)["_modules"]
    if not children:
        return ()
    return [(str(name), _unshelled(child)) for name, child in children.items() if child is not None]


def _unshelled(thing: object) -> object:
    """A traced module is a shell that forwards everything to the scripted one that it holds."""
    if isinstance(thing, torch.jit.ScriptModule):
        return _held(thing).get("_actual_script_module", thing)
    return thing


def _held(module: object) -> dict[str, Any]:
    attributes: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return attributes


def _training(module: nn.Module) -> bool:
    if isinstance(module, torch.jit.ScriptModule):
        # It keeps the flag on the other side of the language border.
        return bool(module.training)
    return bool(_held(module).get("training", True))


def _hooks(module: nn.Module) -> tuple[str, ...]:
    held = _held(module)
    return tuple(
        [
            f"{_HOOKS[attribute]}: {_function_name(hook)}"
            for attribute in filter(held.get, _HOOKS)
            for hook in held[attribute].values()
        ]
    )


def _function_name(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__
