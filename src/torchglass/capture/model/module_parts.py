"""The parts of a model that torch does not list: modules in other objects, and packed weights.

Such an object is a pipeline, a list of stages, or a function. A packed weight is that of a
quantized module.
"""

from __future__ import annotations

import dis
import functools
import warnings
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from torchglass.capture.tensor.description import (
    NamedTensors,
    stored_attributes,
)
from torchglass.capture.torch_internals import script_type


def module_parts(thing: object) -> list[tuple[str, Any]]:
    """The named parts of an object that are modules, or dicts and lists that lead to some.

    For a function, these are the objects that its code names. Only stored attributes are read: no
    property and no iterator of the object runs.
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
    # The names in a code object include attributes; only its instructions distinguish them.
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


PACKED = frozenset(
    ("_packed_params", "_packed_weight", "_packed_weight_ih", "_packed_weight_hh", "param")
)
"""The attributes in which torch's quantized modules keep packed objects."""
_SCRIPTED_HALF = 5
"""The number of torch.float16 in a scripted module."""


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
