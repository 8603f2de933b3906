"""Calls of torch's functions as JSON: by name, with arguments that need no code to be read.

>>> sheet = Sheet()
>>> sheet.write((torch.ones(2), 1e-5, None))
{'is': 'tuple', 'of': [{'is': 'tensor', 'number': 0}, 1e-05, None]}
>>> sheet.tensors
[tensor([1., 1.])]
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import get_overridable_functions, resolve_name

from torchglass.errors import CaptureError

_NAMED = {
    torch.dtype: "dtype",
    torch.layout: "layout",
    torch.memory_format: "memory_format",
}


class NotWrittenError(CaptureError):
    """The call cannot be written down: says what of it."""


class Sheet:
    """Takes down arguments, and apart from them the tensors among them."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}

    def write(self, value: Any) -> Any:
        """A value as JSON; lists stay lists, and all that JSON does not know says what it is."""
        if isinstance(value, torch.Tensor):
            return {"is": "tensor", "number": self._number(value)}
        if isinstance(value, dict):
            return {"is": "dict", "of": [[self.write(k), self.write(v)] for k, v in value.items()]}
        if isinstance(value, list):
            return [self.write(item) for item in value]
        if isinstance(value, tuple):
            return {"is": "tuple", "of": [self.write(item) for item in value]}
        return _write_plain(value)

    def _number(self, tensor: torch.Tensor) -> int:
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self._numbers[id(tensor)]


def read(written: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The value that `Sheet.write` took down."""
    if isinstance(written, list):
        return [read(item, tensors) for item in written]
    if not isinstance(written, Mapping):
        return written
    what = written["is"]
    if what == "tensor":
        return tensors[written["number"]]
    if what == "tuple":
        return tuple(read(item, tensors) for item in written["of"])
    if what == "dict":
        return {read(k, tensors): read(v, tensors) for k, v in written["of"]}
    return _READERS[what](written)


def function_name(function: Any) -> str:
    """The name under which `function_of` finds a function again."""
    if isinstance(function, torch._ops.OpOverload):
        return f"torch.ops.{function}"
    name: str = resolve_name(function) or ""
    if name not in _functions():
        told = getattr(function, "__name__", repr(function))
        raise NotWrittenError(f"{told} is not among the functions of torch that have a name")
    return name


def function_of(name: str) -> Callable[..., Any]:
    """The function of torch's that has a name; no other code can be reached by it."""
    if name in _functions():
        return _functions()[name]
    parts = name.split(".")
    if parts[:2] == ["torch", "ops"] and len(parts) == 5 and all(map(str.isidentifier, parts)):
        overload: Any = None
        with contextlib.suppress(AttributeError):
            overload = functools.reduce(getattr, parts[2:], torch.ops)
        if isinstance(overload, torch._ops.OpOverload):
            return overload
        raise NotWrittenError(f"torch has no op {name} here: import what registers it first")
    raise NotWrittenError(f"torch has no function {name!r} here")


@functools.cache
def _functions() -> dict[str, Callable[..., Any]]:
    every = (function for group in get_overridable_functions().values() for function in group)
    return {name: function for function in every if (name := resolve_name(function))}


def _write_plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"is": "float", "text": str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, complex):
        return {"is": "complex", "text": str(value)}
    if isinstance(value, slice):
        return {
            "is": "slice",
            "of": [_write_plain(x) for x in (value.start, value.stop, value.step)],
        }
    if value is Ellipsis:
        return {"is": "ellipsis"}
    if isinstance(value, torch.device):
        return {"is": "device", "text": str(value)}
    for kind, name in _NAMED.items():
        if isinstance(value, kind):
            return {"is": name, "text": str(value).removeprefix("torch.")}
    raise NotWrittenError(f"an argument is a {type(value).__name__}, which cannot be written down")


def _read_constant(kind: type) -> Callable[[Any], Any]:
    def read_one(written: Any) -> Any:
        constant = getattr(torch, written["text"], None)
        if not isinstance(constant, kind):
            raise NotWrittenError(f"torch has no {kind.__name__} {written['text']!r}")
        return constant

    return read_one


_READERS: dict[str, Callable[[Any], Any]] = {
    "float": lambda written: float(written["text"]),
    "complex": lambda written: complex(written["text"]),
    "slice": lambda written: slice(*written["of"]),
    "ellipsis": lambda written: ...,
    "device": lambda written: torch.device(written["text"]),
    **{name: _read_constant(kind) for kind, name in _NAMED.items()},
}
