"""The tensors in a nest of containers, each with its place there."""

from __future__ import annotations

import dataclasses
from collections import UserDict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

Item = tuple[str, Any]


def tensors_of_call(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among the arguments of a call: "0" is the first one, "mask" a named one."""
    return _tensors([*_numbered(args), *kwargs.items()])


def tensors_in(nest: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in what a call returned: "" is the nest itself, "hidden.0" is inside of it.

    Only known containers are opened, and through their builtin methods: none of the user's code
    runs, and no iterator is used up.
    """
    return _tensors([("", nest)])


def _tensors(items: list[Item]) -> Iterator[tuple[str, torch.Tensor]]:
    opened: dict[int, Any] = {}
    waiting = items[::-1]
    while waiting:
        place, item = waiting.pop()
        if isinstance(item, torch.Tensor):
            yield place, item
        elif id(item) not in opened:
            inside = _inside(item)
            if inside:
                # Kept, so that no other object gets its id while we are here.
                opened[id(item)] = item
                waiting.extend((_join(place, name), inner) for name, inner in reversed(inside))


def _inside(item: Any) -> list[Item]:
    """What a container holds, by name; nothing for all else."""
    if isinstance(item, UserDict):
        item = item.data
    if isinstance(item, dict):
        return [(str(key), value) for key, value in dict.items(item)]
    if isinstance(item, tuple):
        names = getattr(item, "_fields", None)
        inner = tuple.__iter__(item)
        return list(zip(names, inner, strict=False)) if names else _numbered(inner)
    if isinstance(item, list):
        return _numbered(list.__iter__(item))
    if isinstance(item, deque):
        return _numbered(deque.__iter__(item))
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return [(field.name, getattr(item, field.name, None)) for field in dataclasses.fields(item)]
    return []


def _numbered(items: Iterable[Any]) -> list[Item]:
    return [(str(index), item) for index, item in enumerate(items)]


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
