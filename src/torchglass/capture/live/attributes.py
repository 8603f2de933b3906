"""The attributes of an object by name, found and described without running its code."""

from __future__ import annotations

import enum
import types
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from torchglass.records.attributes import AttributeRole
from torchglass.records.calls import ForwardStats

_TABLES: Mapping[str, AttributeRole] = {
    "_parameters": "parameter",
    "_buffers": "buffer",
    "_modules": "module",
}
_METHODS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    classmethod,
    staticmethod,
)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


class Held(NamedTuple):
    """An attribute: its name, its role and its value."""

    name: str
    role: AttributeRole
    value: Any
    """For a property, the descriptor in the class, which is not called."""


def is_container(thing: object) -> bool:
    """Whether an object is a builtin container."""
    return isinstance(thing, _CONTAINERS)


def count_items(container: Any) -> int:
    """The number of items of a container, without calling methods of its class."""
    count: int = _kind(container).__len__(container)
    return count


def holdings(thing: Any, start: int, most: int, *, everything: bool) -> tuple[list[Held], int]:
    """A page of an object's attributes or items, and their total number."""
    if is_container(thing):
        return list(_items(thing, start, start + most)), count_items(thing)
    held = _attributes(thing, everything=everything)
    return held[start : start + most], len(held)


def _items(container: Any, start: int, end: int) -> Iterator[Held]:
    kind = _kind(container)
    if kind is dict:
        for key, value in islice(dict.items(container), start, end):
            yield Held(f"[{_key_text(key)}]", "item", value)
        return
    if kind in (list, tuple):
        items = kind.__getitem__(container, slice(start, end))
    else:
        items = islice(kind.__iter__(container), start, end)
    for place, value in enumerate(items, start):
        yield Held(f"[{place}]", "item", value)


def _kind(container: object) -> Any:
    """The builtin class of a container: the methods of subclasses are foreign code."""
    return next(kind for kind in _CONTAINERS if isinstance(container, kind))


def _key_text(key: object) -> str:
    try:
        return repr(key)
    except Exception as error:  # noqa: BLE001 - a key whose text raises is still a key
        return f"{type(key).__qualname__} whose repr raised {type(error).__name__}"


def _attributes(thing: Any, *, everything: bool) -> list[Held]:
    """The attributes of an object: tensors and modules, the others, those of its class."""
    found: dict[str, Held] = {}
    if isinstance(thing, ForwardStats):
        # The statistics of a call have these names, and no `__dict__`.
        found = {name: Held(name, "attribute", value) for name, value in thing.items()}
    stored: dict[str, Any] = {}
    with suppress(AttributeError):
        stored = object.__getattribute__(thing, "__dict__")
    if isinstance(thing, nn.Module):
        for table, role in _TABLES.items():
            for name, value in stored.get(table, {}).items():
                found.setdefault(str(name), Held(str(name), role, value))
    for name, value in list(stored.items()):
        if everything or not str(name).startswith("_"):
            found.setdefault(str(name), Held(str(name), "attribute", value))
    for held in _of_classes(thing, everything=everything):
        found.setdefault(held.name, held)
    return list(found.values())


def _of_classes(thing: Any, *, everything: bool) -> Iterator[Held]:
    """The attributes of an object's classes, nearest first."""
    for cls in type(thing).__mro__:
        # Skip what every module has.
        if cls is object or (cls in nn.Module.__mro__ and not everything):
            continue
        for name, member in list(vars(cls).items()):
            if name.startswith("__") or (name.startswith("_") and not everything):
                continue
            with suppress(AttributeError):
                held = _member(thing, name, member)
                if everything or held.role != "method":
                    yield held


def _member(thing: Any, name: str, member: Any) -> Held:
    if isinstance(member, types.MemberDescriptorType):
        return Held(name, "attribute", member.__get__(thing))
    if isinstance(member, _METHODS):
        return Held(name, "method", member)
    if hasattr(type(member), "__get__"):
        return Held(name, "property", member)
    return Held(name, "attribute", member)


_LONGEST = 200
_MOST = 100_000
"""The longest text that is shown, in characters."""
_NUMBERS = (int, float, complex, bool, type(None))
_CLOSED = (
    *_NUMBERS,
    str,
    bytes,
    enum.Enum,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_FEW = 8


def opens(thing: object) -> bool:
    """Whether an object can be opened."""
    if is_container(thing):
        return count_items(thing) > 0
    return not isinstance(thing, _CLOSED)


class Words(NamedTuple):
    """A short text, and whether it was cut."""

    text: str
    is_cut: bool = False


def one_line(thing: Any) -> Words:
    """A short text for an object; exceptions of its own code pass through."""
    if isinstance(thing, (str, bytes)):
        more = f"… {len(thing):,} in all" if len(thing) > _LONGEST else ""
        several = isinstance(thing, str) and "\n" in thing
        return Words(repr(thing[:_LONGEST]) + more, bool(more) or several)
    if is_container(thing):
        return Words(_container(thing))
    if isinstance(thing, (type, types.FunctionType)):
        return Words(f"{thing.__module__}.{thing.__qualname__}")
    if isinstance(thing, (nn.Module, torch.Tensor, np.ndarray)) or _says_nothing(thing):
        return Words("")
    return _cut(repr(thing))


def whole_text(thing: Any) -> str:
    """The repr of an object, cut at a readable length; its exceptions pass through."""
    text = thing if isinstance(thing, str) else repr(thing)
    more = len(text) - _MOST
    return text if more <= 0 else f"{text[:_MOST]}\n… and {more:,} characters more"


def _says_nothing(thing: object) -> bool:
    return type(thing).__repr__ is object.__repr__


def _container(thing: Any) -> str:
    """The items of a short list of numbers, otherwise the number of items."""
    count = count_items(thing)
    plain = isinstance(thing, (list, tuple)) and 0 < count <= _FEW
    if plain and all(isinstance(item, _NUMBERS) for item in islice(thing, _FEW)):
        inner = ", ".join(map(repr, thing))
        return f"[{inner}]" if isinstance(thing, list) else f"({inner})"
    return "empty" if count == 0 else "1 item" if count == 1 else f"{count:,} items"


def _cut(text: str) -> Words:
    first, *rest = text.split("\n", 1)
    if rest or len(first) > _LONGEST:
        return Words(f"{first[:_LONGEST]}…", True)
    return Words(first)
