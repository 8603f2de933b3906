"""Reads the structure of any model without running or changing it.

    >>> model = read_model(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))
    >>> [(module.path, module.kind) for module in model.modules]
    [('', 'Sequential'), ('0', 'Linear'), ('1', 'ReLU')]

Modules are foreign code: they may override `__getattr__`, `__len__` or `__eq__`, and any of it may
raise. So nothing is asked of a module but what torch itself stored in it, and its `extra_repr`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, make_dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, ParamSpec, TypeVar

from torch import nn
from torch.export import ExportedProgram
from torch.jit import ScriptModule

from torchglass.blocks import collector_paused
from torchglass.capture.model.checkpoint_contents import read_exported
from torchglass.capture.model.live_modules import (
    PACKED,
    Identities,
    class_name,
    class_source,
    module_parts,
    packed_tensors,
)
from torchglass.capture.tensor.description import describe
from torchglass.capture.torch_internals import HOOK_TABLES
from torchglass.errors import TargetError, error_line
from torchglass.records.model import ClassSource, Model, Module, ModuleId, Slot

P = ParamSpec("P")
Record = TypeVar("Record")


def quickly(record: Callable[P, Record]) -> Callable[P, Record]:
    """What makes the same records as a frozen dataclass with slots, in a fraction of the time.

    A frozen class calls a function to set each of its fields. Here a record begins as an object of
    a class that has the same slots and is not frozen, and changes its class once it is filled.
    """

    def freeze(self: Any) -> None:
        self.__class__ = record

    same_fields = [
        (one.name, one.type, field(default=one.default, default_factory=one.default_factory))
        for one in fields(record)  # type: ignore[arg-type]
    ]
    return make_dataclass(
        getattr(record, "__name__", ""),
        same_fields,
        namespace={"__post_init__": freeze},
        slots=True,
        kw_only=True,
    )


_hook_tables = itemgetter(*HOOK_TABLES)
_held = object.__getattribute__
"""Reads an attribute without the class's own `__getattribute__`."""
_module, _slot = quickly(Module), quickly(Slot)


@collector_paused()
def read_model(target: object) -> Model:
    """The structure of a module, of an exported program, or of an object that holds modules.

    Of an object that is no module the root stands for the object itself; dicts and lists in it are
    nodes of their own, so that a pipeline has paths such as `unet`, `components.vae`, `stages.0`.
    """
    if isinstance(target, ExportedProgram):
        return read_exported(target)
    if not isinstance(target, nn.Module):
        _check_holds_modules(target)
    reading = _StructureReader()
    modules = reading.modules(_unshelled(target))
    return Model(name=modules[0].kind, modules=modules, classes=reading.classes())


def _check_holds_modules(target: object) -> None:
    if isinstance(target, type):
        raise TargetError(f"{target.__qualname__} is a class, not a model; pass an instance of it")
    if not module_parts(target):
        raise TargetError(
            f"{_named(target)}, not a model; pass an nn.Module, or an object with modules in its"
            " attributes, dicts or lists"
        )


def _named(target: object) -> str:
    """Names something that is not a model: "3 is an int"."""
    kind = type(target).__qualname__
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    plain = isinstance(target, (int, float, str, bytes, bool, type(None)))
    return f"{shorten(repr(target))} is {article} {kind}" if plain else f"this is {article} {kind}"


def shorten(text: str) -> str:
    """A text of no more than a line."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_LONGEST = 40
_Place = tuple[Any, str, str, ModuleId | None]
"""An object still to be read, its name, its path, and its parent."""


class _Kind(NamedTuple):
    """What all objects of one Python class have in common."""

    class_name: str
    """"" for scripted modules, whose Python class stands for every one that was compiled."""
    is_module: bool
    is_scripted: bool
    has_extra: bool


class _StructureReader:
    """Reads one model; equal parts of its modules are shared."""

    def __init__(self) -> None:
        self._modules: list[Module] = []
        self._identities = Identities()
        self._kinds: dict[type, _Kind] = {}
        self._classes: dict[str, type] = {}
        self._texts: dict[str, str] = {}

    def modules(self, target: object) -> tuple[Module, ...]:
        """The records in tree order; what is met again is an alias and is not entered."""
        modules = self._modules
        first: dict[int, ModuleId] = {}
        children: dict[ModuleId, list[ModuleId]] = {}
        waiting: list[_Place] = [(target, "", "", None)]
        while waiting:
            place = waiting.pop()
            thing, _, path, parent = place
            number = ModuleId(len(modules))
            if parent is not None:
                children[parent].append(number)
            known = first.setdefault(id(thing), number)
            if known != number:
                modules.append(_alias(number, place, modules[known]))
            elif below := self._enter(number, place):
                children[number] = []
                start = path and path + "."
                waiting += [(part, name, start + name, number) for name, part in below[::-1]]
        for number, below_it in children.items():
            modules[number] = replace(modules[number], children=tuple(below_it))
        return tuple(modules)

    def classes(self) -> Mapping[str, ClassSource]:
        sources = ((name, class_source(cls)) for name, cls in self._classes.items())
        return {name: source for name, source in sources if source is not None}

    def _enter(self, number: ModuleId, place: _Place) -> Sequence[tuple[str, Any]]:
        """Read what is at a place; returns what is below it."""
        thing, name, path, parent = place
        kind = self._kinds.get(type(thing)) or self._kind(thing)
        below: Sequence[tuple[str, Any]] = ()
        slots: list[Slot] = []
        hooks: tuple[str, ...] = ()
        training, extra, problem, doing = True, "", "", "children"
        try:
            if kind.is_module:
                held = _held(thing, "__dict__")
                if children := held["_modules"]:
                    below = _parts(children)
                doing = "tensors"
                self._add_slots(held, slots)
                if kind.is_scripted or not held.keys().isdisjoint(PACKED):
                    self._add_packed(thing, slots)
                doing = "hooks"
                if _is_hooked(held):
                    hooks = _hooks(held)
                doing = "training"
                # A scripted module keeps the flag in C++.
                training = bool(thing.training if kind.is_scripted else held.get("training", True))
                if kind.has_extra:
                    doing = "extra_repr"
                    extra = self._extra(thing)
            else:
                below = module_parts(thing)
        except Exception as error:  # noqa: BLE001 - one module that cannot be read is one row
            problem = f"{doing}: {error_line(error)}"
        module = _module(
            id=number,
            path=path,
            name=name,
            class_name=kind.class_name or class_name(thing),
            parent=parent,
            slots=tuple(slots),
            extra=extra,
            training=training,
            hooks=hooks,
            problem=problem,
        )
        self._modules.append(module)
        return below

    def _kind(self, thing: object) -> _Kind:
        cls = type(thing)
        is_scripted = isinstance(thing, ScriptModule)
        name = "" if is_scripted else class_name(thing)
        extra_repr = getattr(cls, "extra_repr", nn.Module.extra_repr)
        kind = self._kinds[cls] = _Kind(
            class_name=name,
            is_module=isinstance(thing, nn.Module),
            is_scripted=is_scripted,
            has_extra=extra_repr is not nn.Module.extra_repr,
        )
        if name:
            self._classes.setdefault(name, cls)
        return kind

    def _extra(self, module: nn.Module) -> str:
        text = module.extra_repr()
        if not isinstance(text, str):
            raise TypeError(f"it returned {type(text).__qualname__}, not str")
        return self._texts.setdefault(text, text)

    def _add_slots(self, held: Mapping[str, Any], slots: list[Slot]) -> None:
        """Append the slots of a module to a list, which keeps those read before an exception."""
        identity = self._identities.of
        for name, tensor in held["_parameters"].items():
            if tensor is not None:
                slots.append(
                    _slot(
                        name=str(name),
                        role="parameter",
                        spec=describe(tensor),
                        tensor=identity(tensor),
                        trainable=tensor.requires_grad,
                    )
                )
        for name, tensor in held["_buffers"].items():
            if tensor is not None:
                slots.append(
                    _slot(
                        name=str(name),
                        role="buffer",
                        spec=describe(tensor),
                        tensor=identity(tensor),
                        persistent=name not in held["_non_persistent_buffers_set"],
                    )
                )

    def _add_packed(self, module: nn.Module, slots: list[Slot]) -> None:
        for name, owner, tensor in packed_tensors(module):
            part = self._identities.of_part(owner, name)
            slots.append(_slot(name=name, role="packed", spec=describe(tensor), tensor=part))


def _alias(number: ModuleId, place: _Place, first: Module) -> Module:
    """Another place of a module; it has no slots and children of its own."""
    _, name, path, parent = place
    return _module(
        id=number,
        path=path,
        name=name,
        class_name=first.class_name,
        parent=parent,
        extra=first.extra,
        training=first.training,
        alias_of=first.id,
    )


def _parts(children: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    # Checked here, too: calling the function for each of many modules costs more.
    return [
        (str(name), _unshelled(child) if isinstance(child, ScriptModule) else child)
        for name, child in children.items()
        if child is not None
    ]


def _unshelled(thing: object) -> object:
    """The scripted module inside a traced one, which forwards everything to it."""
    if isinstance(thing, ScriptModule):
        return _held(thing, "__dict__").get("_actual_script_module", thing)
    return thing


def _is_hooked(held: Mapping[str, Any]) -> bool:
    try:
        return any(_hook_tables(held))
    except KeyError:
        return any(map(held.get, HOOK_TABLES))


def _hooks(held: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"{HOOK_TABLES[attribute]}: {_function_name(hook)}"
        for attribute in filter(held.get, HOOK_TABLES)
        for hook in held[attribute].values()
    )


def _function_name(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__
