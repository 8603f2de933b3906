"""Objects that are no modules but hold some: a pipeline, a dict of networks, a list of stages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from torch import nn


def module_parts(thing: object) -> list[tuple[str, Any]]:
    """The named parts of an object that are modules, or dicts and lists that lead to some.

    Only what is stored is looked at: no property, no iteration of the object's own is run.
    """
    parts = _items(thing) if isinstance(thing, (dict, list, tuple)) else _attributes(thing)
    return [(name, part) for name, part in parts if _leads_to_module(part)]


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


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    with suppress(AttributeError):
        yield from object.__getattribute__(thing, "__dict__").items()
    for cls in type(thing).__mro__:
        for name, member in vars(cls).items():
            # Slots are the descriptors that Python makes; anyone else's could run code.
            if type(member).__name__ == "member_descriptor" and name != "__dict__":
                with suppress(AttributeError):
                    yield name, member.__get__(thing)
