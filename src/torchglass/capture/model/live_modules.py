"""The modules of any object, their classes and code, and which of their tensors are the same.

Such an object is a pipeline, a list of stages, or a function.
"""

from __future__ import annotations

import dis
import functools
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

import torch
from torch import fx, nn
from torch.nn.parameter import is_lazy

from torchglass.capture.tensor.description import (
    PLAIN_CLASSES,
    NamedTensors,
    inner_tensors,
    stored_attributes,
)
from torchglass.capture.torch_internals import FakeTensor, script_type, storage_address
from torchglass.records.model import Ancestor, ClassSource, TensorId, join_path

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
                waiting += [(join_path(path, name), part) for name, part in reversed(parts)]
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
        # One whose `__init__` was never called has no table of modules.
        children = getattr(thing, "_modules", None)
        if not children:
            return []
        return [(name, child) for name, child in children.items() if child is not None]
    return module_parts(thing)


def module_parts(thing: object) -> list[tuple[str, Any]]:
    """The named parts of an object that are modules, or dicts and lists that lead to some.

    Those of a function are what its code names. Only what is stored is looked at: no property, no
    iteration of the object's own is run.
    """
    return [(name, part) for name, part in _parts(thing) if _leads_to_module(part)]


def _parts(thing: object) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, (dict, list, tuple)):
        return _items(thing)
    if isinstance(thing, FunctionType):
        return _used_by(thing)
    if isinstance(thing, MethodType):
        return _parts_of_method(thing)
    if isinstance(thing, functools.partial):
        return _parts_of_partial(thing)
    return stored_attributes(thing)


def _leads_to_module(thing: object) -> bool:
    seen, waiting = set(), [thing]
    while waiting:
        part = waiting.pop()
        if isinstance(part, nn.Module):
            return True
        if isinstance(part, (dict, list, tuple)) and id(part) not in seen:
            seen.add(id(part))
            waiting += [inner for _, inner in _items(part)]
    return False


def _items(group: Any) -> Iterator[tuple[str, Any]]:
    items = dict.items(group) if isinstance(group, dict) else enumerate(group)
    return ((str(name), part) for name, part in items)


def _parts_of_method(method: MethodType) -> Iterator[tuple[str, Any]]:
    holder = method.__self__
    if isinstance(holder, nn.Module):
        yield "__self__", holder
    else:
        yield from _parts(holder)
    yield from _parts(method.__func__)


def _parts_of_partial(partial: functools.partial[Any]) -> Iterator[tuple[str, Any]]:
    function: Any = partial.func
    if isinstance(function, (FunctionType, MethodType, functools.partial)):
        yield from _parts(function)
    else:
        yield "func", function
    yield "args", partial.args
    yield "keywords", partial.keywords


def _used_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function, and the functions it calls by name, refer to; each name once."""
    names, seen, waiting = set(), set(), [function]
    while waiting:
        user = waiting.pop()
        seen.add(user)
        for name, part in (*_globals_of(user), *_closure_of(user), *vars(user).items()):
            if isinstance(part, FunctionType):
                waiting += [part] * (part not in seen)
            elif name not in names:
                names.add(name)
                yield name, part


def _globals_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals that a function uses; functions only if they are in the same file."""
    world = function.__globals__
    for name in dict.fromkeys(_globals_named(function.__code__)):
        part = world.get(name)
        if not isinstance(part, FunctionType) or part.__globals__ is world:
            yield name, part


def _globals_named(code: CodeType) -> Iterator[str]:
    # The names in a code object are those of attributes, too; only its steps tell them apart.
    steps = dis.get_instructions(code)
    yield from (step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_named(constant)


def _closure_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        # A variable that is not set yet has a cell without contents.
        with suppress(ValueError):
            yield name, cell.cell_contents


_MANGLED = re.compile(r"___torch_mangle_\d+\.")


def class_name(thing: object) -> str:
    """The qualified name of an object's class, a scripted module's being that of its origin."""
    if isinstance(thing, torch.jit.ScriptModule) and "_c" in vars(thing):
        compiled: str = script_type(thing).qualified_name()
        return _MANGLED.sub("", compiled).removeprefix("__torch__.")
    cls = type(thing)
    if isinstance(thing, fx.GraphModule):
        # Each one has a class of its own, made inside a function and renamed after what was traced.
        return f"{fx.GraphModule.__module__}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"


def class_source(cls: type) -> ClassSource | None:
    """Where the code of a class is; None where no file says."""
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
        # Generated methods name no file, and functions put in from elsewhere another one.
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


PACKED = frozenset(
    ("_packed_params", "_packed_weight", "_packed_weight_ih", "_packed_weight_hh", "param")
)
"""The attributes in which torch's quantized modules keep packed objects."""
_SCRIPTED_HALF = 5
"""What torch.float16 is called in a scripted module."""


def packed_tensors(module: nn.Module) -> Iterator[tuple[str, object, torch.Tensor]]:
    """For each packed weight of a module its name, the object that it is in, and the tensor.

    Reading an object unpacks a copy of it: release each one before the next.
    """
    held = object.__getattribute__(module, "__dict__")
    if isinstance(module, torch.jit.ScriptModule):
        held = _scripted(held["_c"])
    half = held.get("dtype") in (torch.float16, _SCRIPTED_HALF)
    for attribute in sorted(PACKED.intersection(held)):
        value = held[attribute]
        if isinstance(value, torch.ScriptObject):
            suffix = attribute[-3:] if attribute.endswith(("_ih", "_hh")) else ""
            for name, tensor in _unpacked(value, half=half):
                yield name + suffix, value, tensor


def _unpacked(value: Any, *, half: bool) -> NamedTensors:
    if hasattr(value, "unpack"):
        with warnings.catch_warnings():
            # The deprecation of quantized tensors is not the user's concern here.
            warnings.simplefilter("ignore")
            content = value.unpack()
        weight, bias = (content, None) if isinstance(content, torch.Tensor) else content[:2]
        # It is stored in half precision, and unpacked as float32.
        yield "weight", weight.half() if half else weight
        if bias is not None:
            yield "bias", bias
    elif script_type(value).name() == "CellParamsBase":
        (kind, *_, packed), _ = value.__getstate__()
        for suffix, part in zip(("_ih", "_hh"), packed, strict=False):
            for name, tensor in _unpacked(part, half=kind == "quantized_fp16"):
                yield name + suffix, tensor


def _scripted(module: Any) -> dict[str, Any]:
    return {name: module.getattr(name) for name in (*PACKED, "dtype") if module.hasattr(name)}
