"""What a thing is in one line, whatever its own repr does."""

from __future__ import annotations

import enum
import types
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from torchglass.capture.attributes.holding import count_items, is_container

_LONGEST = 200
_MOST = 100_000
"""Characters of a text that is read."""
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
    """Whether there may be things in it to be looked at."""
    if is_container(thing):
        return count_items(thing) > 0
    return not isinstance(thing, _CLOSED)


class Words(NamedTuple):
    """Something in a few words, and whether it has more of them."""

    text: str
    is_cut: bool = False


def one_line(thing: Any) -> Words:
    """A thing in a few words; what its own code raises is raised."""
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
    """All that a thing says, as far as someone would read it; what its code raises is raised."""
    text = thing if isinstance(thing, str) else repr(thing)
    more = len(text) - _MOST
    return text if more <= 0 else f"{text[:_MOST]}\n… and {more:,} characters more"


def raised(error: BaseException) -> str:
    """An exception in one line, whatever its own text does."""
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an error whose text raises is still an error with a type
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _says_nothing(thing: object) -> bool:
    return type(thing).__repr__ is object.__repr__


def _container(thing: Any) -> str:
    """The items themselves where they are few and plain, else how many there are."""
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
