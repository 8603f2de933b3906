"""The attributes of an object, found and described without running its code, and their values.

Values of tensors are slices, pictures and statistics, as the explorer shows them.
"""

from __future__ import annotations

import enum
import types
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d
from torch.nn.parameter import is_lazy

from torchglass.analyse.histograms import joined
from torchglass.analyse.nonfinite_cause import not_finite_words
from torchglass.capture.guard.tensor_health import Health, look_again
from torchglass.capture.tensor.description import describe
from torchglass.capture.tensor.moments import measure
from torchglass.capture.torch_internals import DisableTorchFunction
from torchglass.errors import error_line
from torchglass.records.calls import ForwardStats
from torchglass.records.findings import Evidence, EvidenceRole, Finding
from torchglass.records.model import (
    AttributeRole,
    Index,
    LinearHistogram,
    Progress,
    Stats,
    TensorFacts,
    join_path,
)

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
        more = f"… {len(thing):,} in total" if len(thing) > _LONGEST else ""
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
    return text if more <= 0 else f"{text[:_MOST]}\n… and {more:,} more characters"


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


_SLAB = 1 << 22
"""Elements that are measured between two checks for cancellation."""
_FINER = 4
"""How many values are read per pixel, in each direction."""
_TO_NUMPY = {torch.float64, torch.float32, torch.complex64, torch.complex128, torch.bool}


def tensor_facts(tensor: torch.Tensor) -> TensorFacts:
    """The memory layout of any tensor."""
    spec = describe(tensor)
    unreadable = _unreadable(tensor)
    try:
        storage = tensor.untyped_storage().nbytes()
        stride, offset = tuple(tensor.stride()), int(tensor.storage_offset())
        contiguous = tensor.is_contiguous()
    except Exception:  # noqa: BLE001 - many tensors have neither strides nor a storage
        stride, offset, storage, contiguous = None, 0, 0, True
    return TensorFacts(
        spec=spec,
        stride=stride,
        offset=offset,
        storage_bytes=storage,
        contiguous=contiguous,
        requires_grad=tensor.requires_grad,
        grad_fn="" if tensor.grad_fn is None else tensor.grad_fn.name(),
        has_grad=tensor.is_leaf and tensor.grad is not None,
        unreadable=unreadable,
    )


def cut(tensor: torch.Tensor, index: Index, rows: range, columns: range) -> npt.NDArray[Any]:
    """Rows and columns of a slice, copied: the user's memory is not pinned by numpy."""
    with DisableTorchFunction():
        plane = _plane(tensor, index)[rows.start : rows.stop, columns.start : columns.stop]
        numbers: npt.NDArray[Any] = _for_numpy(plane).cpu().clone().numpy()
        return numbers


def image(tensor: torch.Tensor, index: Index, height: int, width: int) -> npt.NDArray[np.float32]:
    """A slice scaled to at most this many pixels; complex values by their magnitudes."""
    with DisableTorchFunction():
        plane = _plane(tensor, index)
        steps = [
            max(size // (_FINER * room), 1)
            for size, room in zip(plane.shape, (height, width), strict=True)
        ]
        pixels = _for_numpy(plane[:: steps[0], :: steps[1]]).cpu()
        pixels = (pixels.abs() if pixels.is_complex() else pixels).to(torch.float32)
        room = min(height, pixels.shape[0]), min(width, pixels.shape[1])
        fitted: npt.NDArray[np.float32] = adaptive_avg_pool2d(pixels[None], room)[0].numpy()
        return fitted


def part_of(tensor: torch.Tensor, index: Index) -> torch.Tensor:
    """A view of a part of a tensor; without an index, the tensor itself."""
    if not index:
        return tensor
    with DisableTorchFunction():
        return tensor.detach()[tuple(map(_slice, index))]


def measure_all(tensor: torch.Tensor, progress: Progress) -> Stats | None:
    """The statistics of all values, in parts; None if there are no values, or if stopped."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return measure(tensor)
    parts: list[Stats] = []
    done = 0
    for slab in _slabs(tensor.detach()):
        if not progress(done / max(tensor.numel(), 1)):
            return None
        part = measure(slab)
        parts += [part] if part else []
        done += slab.numel()
    return joined(parts) if parts else None


def spread(
    tensor: torch.Tensor, stats: Stats, bins: int, progress: Progress
) -> LinearHistogram | None:
    """The histogram of the finite values, with bins of equal width."""
    finite = stats.count - stats.nan - stats.inf
    if not stats.min < stats.max:
        return LinearHistogram(low=stats.min, high=stats.max, counts=(finite,)) if finite else None
    counts = np.zeros(bins)
    done = 0
    with DisableTorchFunction():
        for slab in _slabs(tensor.detach()):
            if not progress(done / tensor.numel()):
                return None
            numbers = _for_numpy(slab.reshape(-1))
            numbers = numbers.abs() if numbers.is_complex() else numbers
            # On the host: some devices have no float64, or count in any order.
            values = numbers.cpu().double().numpy()
            values = values[np.isfinite(values)]
            counts += np.histogram(values, bins, (stats.min, stats.max))[0]
            done += slab.numel()
    return LinearHistogram(low=stats.min, high=stats.max, counts=tuple(map(int, counts.tolist())))


def not_finite(path: str, name: str, role: EvidenceRole, tensor: torch.Tensor) -> Finding | None:
    """The finding that a parameter or buffer has NaN or Inf; None if it is healthy.

    An intended Inf is healthy: −Inf in a mask, Inf in a buffer that stores a limit.
    """
    if look_again(tensor) < Health.INF:
        return None
    stats = measure_all(tensor, lambda share: True)
    is_limit = role == "buffer" and not name.startswith("running_")
    if stats is None or (not stats.nan and (is_limit or _is_mask(tensor, stats))):
        return None
    full_name = join_path(path, name)
    kind = "nan" if stats.nan else "inf"
    return Finding(
        severity="error",
        kind=kind,
        message=not_finite_words(stats, f"of `{full_name}`"),
        path=path,
        facts={"nan": stats.nan, "inf": stats.inf, "count": stats.count},
        tensors=(
            Evidence(name=name, role=role, spec=describe(tensor), stats=stats, holder=full_name),
        ),
    )


def _is_mask(tensor: torch.Tensor, stats: Stats) -> bool:
    """Whether its values are −Inf and at most one other value."""
    alike = stats.inf == stats.count or stats.min == stats.max
    return alike and not tensor.is_complex() and not bool(torch.isposinf(tensor.detach()).any())


def _unreadable(tensor: torch.Tensor) -> str:
    """Why the values of a tensor cannot be shown; "" if they can."""
    try:
        with DisableTorchFunction():
            if is_lazy(tensor):
                return "not initialized: its module never ran"
            if tensor.is_meta:
                return "the tensor is on the meta device"
            if tensor.numel() == 0:
                return "the tensor is empty"
            if tensor.is_nested or tensor.layout is not torch.strided:
                return "the tensor is sparse or nested"
            if not tensor.untyped_storage().nbytes():
                return "its memory was freed"
            _for_numpy(tensor.detach()[(0,) * tensor.dim()]).cpu()
            return ""
    except Exception as error:  # noqa: BLE001 - a tensor class is foreign code
        return error_line(error)


def _plane(tensor: torch.Tensor, index: Index) -> torch.Tensor:
    """A slice as a matrix; a vector is one row."""
    plane = part_of(tensor.detach(), index)
    return plane.reshape((1,) * (2 - plane.dim()) + tuple(plane.shape))


def _slice(part: int | range | None) -> int | slice:
    if isinstance(part, range):
        return slice(part.start, part.stop, part.step)
    return slice(None) if part is None else part


def _for_numpy(numbers: torch.Tensor) -> torch.Tensor:
    """The same values in a dtype that numpy has."""
    if numbers.is_quantized:
        return numbers.dequantize()
    if numbers.dtype in _TO_NUMPY or not (numbers.is_floating_point() or numbers.is_complex()):
        return numbers
    return numbers.to(torch.complex64 if numbers.is_complex() else torch.float32)


def _slabs(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Views of parts that together are the tensor, none of them large."""
    if tensor.numel() <= _SLAB:
        yield tensor
        return
    rows = max(_SLAB // tensor[0].numel(), 1)
    for part in torch.split(tensor, rows):
        yield from _slabs(part[0]) if part.numel() > _SLAB else (part,)
