"""Reads the structure of any model without running or changing it: modules, classes, tensors.

    >>> model = read_model(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))
    >>> [(module.path, module.kind) for module in model.modules]
    [('', 'Sequential'), ('0', 'Linear'), ('1', 'ReLU')]

Modules are foreign code: they may override `__getattr__`, `__len__` or `__eq__`, and each of these
may raise. So only what torch itself stores in a module is read, and its `extra_repr`.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from operator import itemgetter
from types import CodeType, FunctionType
from typing import Any, NamedTuple, cast

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.jit import ScriptModule
from torch.nn.parameter import is_lazy

from torchglass.capture.model.module_parts import PACKED, module_parts, packed_tensors
from torchglass.capture.tensor.description import PLAIN_CLASSES, describe, inner_tensors
from torchglass.capture.torch_internals import HOOK_TABLES, FakeTensor, script_type, storage_address
from torchglass.errors import TargetError, collector_paused, error_line, quickly
from torchglass.records.model import (
    Ancestor,
    ClassSource,
    Model,
    Module,
    ModuleId,
    Slot,
    TensorId,
)

LocatedModule = tuple[str, nn.Module]
"""A module, after its path in the model."""


def modules_in(target: Any) -> list[LocatedModule]:
    """The modules of a model, or of an object that holds some, each under its first path."""
    found: dict[int, tuple[str, Any]] = {}
    waiting: list[tuple[str, Any]] = [("", target)]
    while waiting:
        path, thing = located = waiting.pop()
        if id(thing) not in found:
            found[id(thing)] = located
            parts = _children(thing)
            if parts:
                start = f"{path}." if path else ""
                waiting += [(start + name if name else path, part) for name, part in parts[::-1]]
    return [located for located in found.values() if isinstance(located[1], nn.Module)]


def tensors_of(modules: Sequence[LocatedModule]) -> list[torch.Tensor]:
    """The parameters and buffers that modules hold."""
    tables = (table for _, module in modules for table in (module._parameters, module._buffers))
    return [tensor for table in tables for tensor in table.values() if tensor is not None]


def parameters_of(modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    """The parameters that modules hold and that have a shape, shared ones once."""
    own = (parameter for module in modules for parameter in module._parameters.values())
    return list({id(one): one for one in own if one is not None and not is_lazy(one)}.values())


def _children(thing: Any) -> list[tuple[str, Any]]:
    if isinstance(thing, nn.Module):
        # A module whose `__init__` was never called has no table of modules.
        children = getattr(thing, "_modules", None)
        if not children:
            return []
        return [(name, child) for name, child in children.items() if child is not None]
    return module_parts(thing)


_hook_tables = itemgetter(*HOOK_TABLES)
_held = object.__getattribute__
"""Reads an attribute without the class's own `__getattribute__`."""
_module, _slot = quickly(Module), quickly(Slot)


@collector_paused()
def read_model(target: object) -> Model:
    """The structure of a module, of an exported program, or of an object that holds modules.

    If the object is not a module, the root is the object itself, and its dicts and lists are nodes,
    so a pipeline has paths such as `unet`, `components.vae`, `stages.0`.
    """
    if isinstance(target, ExportedProgram):
        from torchglass.capture.model.checkpoint_contents import read_exported

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
    """A text of at most one line."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_LONGEST = 40
_Place = tuple[Any, str, str, ModuleId | None]
"""An object still to be read, its name, its path, and its parent."""


class _Kind(NamedTuple):
    """What all objects of one Python class have in common."""

    class_name: str
    """"" for scripted modules, which all have the same Python class."""
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
        """The records in tree order; a module that appears again is an alias and is not entered."""
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
        # Nobody has seen these records yet. Copies with children would take a tenth of the time.
        for number, below_it in children.items():
            object.__setattr__(modules[number], "children", tuple(below_it))
        return tuple(modules)

    def classes(self) -> Mapping[str, ClassSource]:
        sources = ((name, class_source(cls)) for name, cls in self._classes.items())
        return {name: source for name, source in sources if source is not None}

    def _enter(self, number: ModuleId, place: _Place) -> Sequence[tuple[str, Any]]:
        """Read the module at a path; returns what is below it."""
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
    """Another path of a module; it has no slots or children."""
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
    # Checked here as well: calling the function for each of many modules costs more.
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


_MANGLED = re.compile(r"___torch_mangle_\d+\.")


def class_name(thing: object) -> str:
    """The qualified name of an object's class; for a scripted module, of its original class."""
    if isinstance(thing, torch.jit.ScriptModule) and "_c" in vars(thing):
        compiled: str = script_type(thing).qualified_name()
        return _MANGLED.sub("", compiled).removeprefix("__torch__.")
    cls = type(thing)
    if isinstance(thing, fx.GraphModule):
        # Each one has its own class, created inside a function and renamed after the traced class.
        return f"{fx.GraphModule.__module__}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"


def class_source(cls: type) -> ClassSource | None:
    """Where the code of a class is; None if there is no file."""
    forward = _code(_defined(cls, "forward"))
    file = _class_file(cls)
    forward_file = "" if forward is None else forward.co_filename
    if not file and not forward_file:
        return None
    return ClassSource(
        file=file or forward_file,
        forward_line=None if forward is None else forward.co_firstlineno,
        forward_file="" if forward_file == file else forward_file,
        ancestors=tuple(
            Ancestor(class_name=f"{base.__module__}.{base.__qualname__}", file=_class_file(base))
            for base in cls.__mro__[1:]
            if base is not object
        ),
    )


def _class_file(cls: type) -> str:
    """The file of a class, by its methods or by its Python module."""
    for value in vars(cls).values():
        code = _code(value)
        # Generated methods have no file, and patched-in functions have another one.
        if code and value.__module__ == cls.__module__ and code.co_filename != "<string>":
            return code.co_filename
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or ""


def _defined(cls: type, name: str) -> object:
    """The entry of a class or its nearest base under a name, without descriptors."""
    for base in cls.__mro__:
        if base is nn.Module:
            break
        if name in vars(base):
            return vars(base)[name]
    return None


def _code(value: object) -> CodeType | None:
    """The code of a function below its decorators."""
    seen: set[int] = set()
    while isinstance(value, FunctionType) and id(value) not in seen:
        seen.add(id(value))
        if "__wrapped__" not in vars(value):
            return value.__code__
        value = vars(value)["__wrapped__"]
    return None


_NextId = Callable[[], TensorId]


class Identities:
    """Gives each tensor a number, valid while the tensors exist."""

    def __init__(self) -> None:
        self._ids: dict[Hashable, TensorId] = defaultdict(cast("_NextId", count().__next__))
        self._owners: list[object] = []

    def of(self, tensor: torch.Tensor) -> TensorId:
        """The number of a tensor: equal for two tensors in the same memory."""
        return self._ids[_memory(tensor)]

    def of_key(self, key: Hashable) -> TensorId:
        return self._ids[key]

    def of_part(self, owner: object, name: str) -> TensorId:
        """The number of a tensor packed in an object, which is kept alive for its id."""
        self._owners.append(owner)
        return self.of_key((id(owner), name))


def _memory(tensor: torch.Tensor) -> Hashable:
    """A key that tensors share when they have the same address and size."""
    try:
        if type(tensor) in PLAIN_CLASSES:
            if address := tensor.data_ptr():
                # One integer: a large model has many, and the garbage collector skips integers.
                return tensor.nbytes << 64 | address
            if tensor.is_meta:
                return _storage(tensor), int(tensor.storage_offset()), tensor.nbytes
            # An empty tensor has no address, nor has one whose storage was freed.
            return id(tensor)
        return _special_memory(tensor)
    except Exception:  # noqa: BLE001 - a tensor that has no storage to ask for is at least itself
        return id(tensor)


def _special_memory(tensor: torch.Tensor) -> Hashable:
    if is_lazy(tensor) or tensor.numel() == 0:
        return id(tensor)
    if inner := inner_tensors(tensor):
        return tuple(map(_memory, inner))
    if tensor.is_meta or isinstance(tensor, FakeTensor):
        return _storage(tensor), tensor.storage_offset(), tensor.nbytes
    return tensor.data_ptr(), tensor.nbytes


def _storage(tensor: torch.Tensor) -> int:
    """The address of the storage object, which exists even without memory."""
    address: int = storage_address(tensor.untyped_storage())
    return address
