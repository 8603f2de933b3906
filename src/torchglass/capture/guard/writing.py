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

from torchglass.errors import CaptureError, UnsafeFileError

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
        if not _computes(function):
            raise NotWrittenError(f"{function} is not an op of torch that only computes")
        return f"torch.ops.{function}"
    name: str = resolve_name(function) or ""
    if name not in _functions():
        told = getattr(function, "__name__", repr(function))
        raise NotWrittenError(f"{told} is not among the functions of torch that have a name")
    return name


def function_of(name: str) -> Callable[..., Any]:
    """The function of torch's that has a name, if it computes with tensors and does nothing else.

    No other code can be reached by a name: neither files nor settings can be changed.
    """
    if name in _functions():
        return _functions()[name]
    parts = name.split(".")
    if parts[:2] == ["torch", "ops"] and len(parts) == 5 and all(map(str.isidentifier, parts)):
        if parts[2] not in _LIBRARIES:
            raise UnsafeFileError(f"{name} is not an op of torch's own, so it is not run")
        overload: Any = None
        with contextlib.suppress(AttributeError, RuntimeError):
            overload = functools.reduce(getattr, parts[2:], torch.ops)
        if isinstance(overload, torch._ops.OpOverload):
            if _computes(overload):
                return overload
            raise UnsafeFileError(f"{name} does more than compute with tensors, so it is not run")
        raise NotWrittenError(f"torch has no op {name} here: import what registers it first")
    if name in _named_functions():
        raise UnsafeFileError(f"{name} does more than compute with tensors, so it is not run")
    raise NotWrittenError(f"torch has no function {name!r} here")


_LIBRARIES = ("aten", "prims")
_TOUCHES_MORE = frozenset({"from_file", "share_memory_", "record_stream", "_print"})
"""Kernels that read or write files, shared memory or streams."""
_OPERATORS = frozenset(
    f"__{prefix}{name}__"
    for prefix in ("", "r", "i")
    for name in (
        *("add", "and", "div", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow"),
        *("rshift", "sub", "truediv", "xor", "abs", "neg", "pos", "invert", "getitem", "setitem"),
        *("eq", "ne", "lt", "le", "gt", "ge"),
    )
)
_IN_PYTHON = frozenset(
    {
        *("half", "bfloat16", "float", "double", "cfloat", "cdouble", "bool", "byte", "char"),
        *("short", "int", "long", "cpu", "lu", "lobpcg", "spmm", "pca_lowrank", "svd_lowrank"),
    }
)
"""Conversions and compositions that no kernel is named after."""
_PLACES = ("torch", "torch.Tensor", "torch.functional", "torch.nn.functional", "torch._C._nn")
_GROUPS = ("linalg", "fft", "special", "sparse", "nested")


@functools.cache
def _functions() -> dict[str, Callable[..., Any]]:
    """The functions that only compute, by name."""
    return {name: function for name, function in _named_functions().items() if _only_computes(name)}


@functools.cache
def _named_functions() -> dict[str, Callable[..., Any]]:
    every = (function for group in get_overridable_functions().values() for function in group)
    return {name: function for function in every if (name := resolve_name(function))}


def _only_computes(name: str) -> bool:
    """Whether a function of a name is a kernel of torch's, or made of such in Python."""
    place, _, last = name.rpartition(".")
    if last in _TOUCHES_MORE:
        return False
    if place == "torch.nn.functional" or (place == "torch.Tensor" and last in _OPERATORS):
        return True
    group = place.rpartition(".")[2]
    if place not in _PLACES and group not in _GROUPS:
        return False
    if last in _IN_PYTHON:
        return True
    packets = (getattr(torch.ops.aten, known, None) for known in (last, f"{group}_{last}"))
    return any(
        _computes(getattr(packet, overload))
        for packet in packets
        if isinstance(packet, torch._ops.OpOverloadPacket)
        for overload in packet.overloads()  # type: ignore[no-untyped-call]
    )


def _computes(op: torch._ops.OpOverload[..., Any]) -> bool:
    """Whether an op is a kernel that gives tensors, or writes into those it is given."""
    schema = op._schema
    library, _, name = schema.name.partition("::")
    if library not in _LIBRARIES or name in _TOUCHES_MORE:
        return False
    # What only scripts can call, such as `aten::save`, is in no dispatcher.
    if not torch._C._dispatch_has_kernel(f"{schema.name}.{schema.overload_name}".rstrip(".")):
        return False
    gives = any("Tensor" in str(given.type) for given in schema.returns)
    return gives or schema.is_mutable


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
