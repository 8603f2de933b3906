"""Finds the tensors in a value, and says what each of them is."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import types
import weakref
from collections import UserDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchglass.capture.torch_internals import (
    DisableTorchFunction,
    FakeTensor,
    is_traceable_wrapper_subclass,
)
from torchglass.records.model import TensorSpec

PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)
"""The classes of tensors that override nothing."""
_STRIDED = torch.strided
_ELEMENTS_PER_BYTE = {torch.quint4x2: 2, torch.quint2x4: 4}
COMPRESSED_INDICES = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def describe(tensor: torch.Tensor) -> TensorSpec:
    """The description of any tensor; what cannot be read is left out.

    A wrapper subclass has its own shape and the bytes of its inner tensors: a DTensor shows the
    global shape and the bytes on this rank. A nested tensor shows the shape of its packed values,
    which has the right number of elements.
    """
    try:
        if type(tensor) in PLAIN_CLASSES and not tensor.is_nested:
            if tensor.layout is _STRIDED and tensor.is_contiguous():
                return _dense(tensor.shape, tensor.dtype, tensor.device)
            return _spec(tensor, tensor.shape, _bytes(tensor), _layout(tensor))
        return _describe_special(tensor)
    except Exception:  # noqa: BLE001 - a tensor class is foreign code, and one tensor is only one row
        return TensorSpec(shape=None, dtype=_dtype(getattr(tensor, "dtype", "unknown")))


def inner_tensors(tensor: Any) -> list[torch.Tensor]:
    """The inner tensors of a wrapper subclass; empty for other tensors."""
    if not is_traceable_wrapper_subclass(tensor):
        return []
    names, _ = tensor.__tensor_flatten__()
    parts = [getattr(tensor, name) for name in names]
    # A DTensor has its device mesh among them.
    return [part for part in parts if isinstance(part, torch.Tensor)]


@lru_cache(maxsize=1 << 14)
def _dense(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> TensorSpec:
    """One object for all dense tensors of a kind: large models have few kinds."""
    return TensorSpec(
        shape=tuple(shape),
        dtype=_dtype(dtype),
        device=str(device),
        bytes=_dense_bytes(shape.numel(), dtype),
    )


def _spec(tensor: torch.Tensor, shape: torch.Size, size: int, layout: str) -> TensorSpec:
    return TensorSpec(
        shape=_concrete(shape),
        dtype=_dtype(tensor.dtype),
        device=str(tensor.device),
        bytes=size,
        layout=layout,
    )


def _describe_special(tensor: torch.Tensor) -> TensorSpec:
    """A nested tensor, a tensor without a shape yet, or an instance of a subclass."""
    if is_lazy(tensor):
        return TensorSpec(shape=None, dtype=_dtype(tensor.dtype), device=str(tensor.device))
    if tensor.is_nested:
        layout = "jagged" if tensor.layout is torch.jagged else "nested"
        return _spec(tensor, tensor.values().shape, _bytes(tensor), layout)
    return _spec(tensor, tensor.shape, _bytes(tensor), type(tensor).__name__)


def _bytes(tensor: torch.Tensor) -> int:
    if inner := inner_tensors(tensor):
        return sum(map(_bytes, inner))
    if tensor.is_nested:
        return _bytes(tensor.values())
    if tensor.layout is torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    if tensor.layout in COMPRESSED_INDICES:
        parts = [getattr(tensor, name)() for name in ("values", *COMPRESSED_INDICES[tensor.layout])]
        return sum(part.nbytes for part in parts)
    elements = tensor.numel()
    if tensor.layout is torch.strided and elements:
        # Views that repeat elements, such as expanded ones, take no more than what they span.
        ends = zip(_concrete(tensor.shape), _concrete(tensor.stride()), strict=True)
        elements = min(elements, 1 + sum((size - 1) * stride for size, stride in ends))
    return _dense_bytes(int(elements), tensor.dtype)


def _dense_bytes(elements: int, dtype: torch.dtype) -> int:
    if dtype in _ELEMENTS_PER_BYTE:
        return -(-elements // _ELEMENTS_PER_BYTE[dtype])
    return elements * dtype.itemsize


def _concrete(sizes: Iterable[Any]) -> tuple[int, ...]:
    """Sizes as integers; a symbolic size by its example value, without a guard."""
    return tuple(size if type(size) is int else int(size.node.hint) for size in sizes)


def _layout(tensor: torch.Tensor) -> str:
    return str(tensor.layout).removeprefix("torch.").removeprefix("_")


def _dtype(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


_CORNER = 5
_MOST_SAMPLED = 1 << 16


def corner(tensor: torch.Tensor) -> str:
    """The first values of the last two dimensions as torch prints them, "..." if there are more.

    "" for a tensor without such values: sparse, nested, or on the meta device.
    """
    try:
        # Hidden from subclasses and tracing modes.
        with DisableTorchFunction():
            if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
                return ""
            shown = tensor.detach()[(0,) * (tensor.dim() - 2)]
            shown = shown[(slice(_CORNER),) * shown.dim()]
            return f"{shown!s}{'...' if shown.numel() < tensor.numel() else ''}"
    except Exception:  # noqa: BLE001 - a tensor class is foreign code, and this is only its picture
        return ""


def histogram(tensor: torch.Tensor, bins: int = 16) -> tuple[float, ...]:
    """The histogram of the values with bins of equal width; a large tensor is sampled.

    Empty if all values are equal, and for tensors that are not dense.
    """
    try:
        with DisableTorchFunction():
            values = _sample(tensor.detach())
            values = values.abs() if values.is_complex() else values
            values = values.to(torch.float32).flatten()
            values = values[torch.isfinite(values)]
            low, high = (float(end) for end in torch.aminmax(values))
            counts = torch.histc(values, bins, low, high).tolist() if low < high else ()
            return tuple(counts)
    except Exception:  # noqa: BLE001 - a device or tensor class may lack any of these operations
        return ()


def _sample(values: torch.Tensor) -> torch.Tensor:
    """A strided view with a limited number of values."""
    for dim, size in enumerate(values.shape):
        step = min(math.ceil(values.numel() / _MOST_SAMPLED), size)
        if step > 1:
            values = values[(slice(None),) * dim + (slice(None, None, step),)]
    return values


T = TypeVar("T")
Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
"""What a module or an op is called with."""
NamedTensors = Iterator[tuple[str, torch.Tensor]]
Load = Callable[[], torch.Tensor]
"""Loads a tensor that may still be in a file."""
Item = tuple[str, Any]

_MOST_OBJECTS = 2000
"""The most objects that are read for one result."""
_ATOMS = (type(None), bool, int, float, complex, str, bytes, type, torch.Size, torch.dtype)
_CLOSED = (nn.Module, torch.optim.Optimizer, types.ModuleType, type, weakref.ProxyTypes)
"""Objects whose tensors are not part of a result, and proxies of other objects."""


def tensors_of_call(args: Args, kwargs: Kwargs) -> NamedTensors:
    """The tensors among the arguments of a call: "0" is the first one, "mask" a named one."""
    return _tensors([*_numbered(args), *kwargs.items()])


def tensors_by_argument(module: nn.Module, args: Args, kwargs: Kwargs) -> NamedTensors:
    """The tensors that a module is called with, by the argument names of its forward."""
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return named_tensors({**dict(enumerate(args)), **kwargs})
    return named_tensors(dict(bound.arguments))


def named_tensors(nest: Any) -> NamedTensors:
    """The tensors in the output of a call: "" is the output itself, "hidden.0" is inside it.

    Containers are read through their builtin methods, and objects only through their stored
    attributes: no user code runs, and no iterator is consumed.
    """
    if issubclass(type(nest), torch.Tensor):
        return iter((("", nest),))
    return _tensors([("", nest)], _Objects().stored_in)


def _closed(item: Any) -> list[Item]:
    return []


def _tensors(items: list[Item], stored_in: Callable[[Any], list[Item]] = _closed) -> NamedTensors:
    opened: dict[int, Any] = {}
    waiting = items[::-1]
    while waiting:
        place, item = waiting.pop()
        # `__class__` of a dead weak reference raises, `type` does not.
        kind = type(item)
        if issubclass(kind, torch.Tensor):
            yield place, item
        elif kind not in _ATOMS and id(item) not in opened:
            inside = _inside(kind, item) or stored_in(item)
            if inside:
                # Kept alive, so that no other object gets its id.
                opened[id(item)] = item
                waiting.extend((_join(place, name), inner) for name, inner in reversed(inside))


def _inside(kind: type, item: Any) -> list[Item]:
    """The items of a container by name; empty for anything else."""
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
    """Reads instances of other classes, such as distributions and user classes, up to a limit."""

    def __init__(self) -> None:
        self._left = _MOST_OBJECTS

    def stored_in(self, item: Any) -> list[Item]:
        """The attributes of an object, each value once."""
        kind = type(item)
        if issubclass(kind, _CLOSED) or not self._left:
            return []
        self._left -= 1
        stored: dict[int, Item] = {}
        for name, value in stored_attributes(item):
            if type(value) not in _ATOMS:
                stored.setdefault(id(value), (name, value))
        return list(stored.values())


def stored_attributes(item: Any) -> Iterator[Item]:
    """What is in an object's `__dict__` and slots; no property and no `__getattr__` is called."""
    with contextlib.suppress(AttributeError, TypeError):
        yield from dict.items(object.__getattribute__(item, "__dict__"))
    for parent in type(item).__mro__:
        for name, slot in parent.__dict__.items():
            if type(slot) is types.MemberDescriptorType and not name.startswith("__"):
                # Nothing may be in it yet.
                with contextlib.suppress(AttributeError):
                    yield name, slot.__get__(item)


def _numbered(items: Iterable[Any]) -> list[Item]:
    return [(str(index), item) for index, item in enumerate(items)]


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def constant(value: T) -> Callable[[], T]:
    """A `Load` that returns an object that already exists."""
    return lambda: value


def iter_tensors(nest: Any) -> Iterator[torch.Tensor]:
    """The tensors in an op's arguments or output, nested in tuples, lists and dicts only."""
    if isinstance(nest, torch.Tensor):
        yield nest
    elif isinstance(nest, (tuple, list)):
        for item in nest:
            yield from iter_tensors(item)
    elif isinstance(nest, dict):
        for item in nest.values():
            yield from iter_tensors(item)


NO_MEMORY = (RuntimeError, AttributeError, ValueError)
"""What sparse, nested and uninitialized tensors raise."""


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was written into."""
    # Tensors of inference mode do not count writes.
    return -1 if tensor.is_inference() else tensor._version


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether the memory of a tensor still exists.

    FSDP frees the memory of gathered weights before the tensors; reading such
    a tensor crashes the process.
    """
    try:
        return not tensor.numel() or tensor.untyped_storage().nbytes() > 0
    except NO_MEMORY:
        # It is made of inner tensors.
        return True


def has_fakes(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether some of the tensors are already fake."""
    return any(isinstance(tensor, FakeTensor) for tensor in tensors)


def lack_values(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether some of the tensors are fake, or on the meta device."""
    return any(isinstance(tensor, FakeTensor) or tensor.is_meta for tensor in tensors)
