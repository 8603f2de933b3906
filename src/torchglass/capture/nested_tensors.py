"""Finds the tensors in nested containers and objects, each with its position."""

from __future__ import annotations

import contextlib
import dataclasses
import types
import weakref
from collections import UserDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

Item = tuple[str, Any]

_MOST_OBJECTS = 2000
"""So many objects are opened for one result."""
_ATOMS = (type(None), bool, int, float, complex, str, bytes, type, torch.Size, torch.dtype)
_CLOSED = (nn.Module, torch.optim.Optimizer, types.ModuleType, type, weakref.ProxyTypes)
"""What has tensors that are not part of a result, or that would answer for another object."""


def tensors_of_call(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among the arguments of a call: "0" is the first one, "mask" a named one."""
    return _tensors([*_numbered(args), *kwargs.items()])


def named_tensors(nest: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in what a call returned: "" is the nest itself, "hidden.0" is inside of it.

    Containers are opened through their builtin methods, and of objects only what they store is
    read: none of the user's code runs, and no iterator is used up.
    """
    if issubclass(type(nest), torch.Tensor):
        return iter((("", nest),))
    return _tensors([("", nest)], _Objects().stored_in)


def _closed(item: Any) -> list[Item]:
    return []


def _tensors(
    items: list[Item], stored_in: Callable[[Any], list[Item]] = _closed
) -> Iterator[tuple[str, torch.Tensor]]:
    opened: dict[int, Any] = {}
    waiting = items[::-1]
    while waiting:
        place, item = waiting.pop()
        # To ask a dead weak reference for its class raises, to ask for its type does not.
        kind = type(item)
        if issubclass(kind, torch.Tensor):
            yield place, item
        elif kind not in _ATOMS and id(item) not in opened:
            inside = _inside(kind, item) or stored_in(item)
            if inside:
                # Kept, so that no other object gets its id while we are here.
                opened[id(item)] = item
                waiting.extend((_join(place, name), inner) for name, inner in reversed(inside))


def _inside(kind: type, item: Any) -> list[Item]:
    """What a container holds, by name; nothing for all else."""
    if issubclass(kind, UserDict):
        item = item.data
        kind = type(item)
    if issubclass(kind, dict):
        return [(str(key), value) for key, value in dict.items(item)]
    if issubclass(kind, tuple):
        names = getattr(item, "_fields", None)
        inner = tuple.__iter__(item)
        return list(zip(names, inner, strict=False)) if names else _numbered(inner)
    if issubclass(kind, list):
        return _numbered(list.__iter__(item))
    if issubclass(kind, deque):
        return _numbered(deque.__iter__(item))
    if dataclasses.is_dataclass(kind):
        return [(field.name, getattr(item, field.name, None)) for field in dataclasses.fields(kind)]
    return []


class _Objects:
    """Opens objects of other classes, as distributions and a user's own are, up to a limit."""

    def __init__(self) -> None:
        self._left = _MOST_OBJECTS

    def stored_in(self, item: Any) -> list[Item]:
        """What an object stores in its attributes, each thing once."""
        kind = type(item)
        if issubclass(kind, _CLOSED) or not self._left:
            return []
        self._left -= 1
        stored: dict[int, Item] = {}
        for name, value in _attributes(kind, item):
            if type(value) not in _ATOMS:
                stored.setdefault(id(value), (name, value))
        return list(stored.values())


def _attributes(kind: type, item: Any) -> Iterator[Item]:
    """What is in an object's `__dict__` and slots; no property and no `__getattr__` is called."""
    with contextlib.suppress(AttributeError, TypeError):
        yield from dict.items(object.__getattribute__(item, "__dict__"))
    for parent in kind.__mro__:
        for name, slot in parent.__dict__.items():
            if type(slot) is types.MemberDescriptorType and not name.startswith("__"):
                # Nothing may be in it yet.
                with contextlib.suppress(AttributeError):
                    yield name, slot.__get__(item)


def _numbered(items: Iterable[Any]) -> list[Item]:
    return [(str(index), item) for index, item in enumerate(items)]


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
