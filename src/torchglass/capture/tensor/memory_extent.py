"""The memory a tensor spans, and which tensors share memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from torchglass.capture.tensor.description import NO_MEMORY, PLAIN_CLASSES
from torchglass.capture.torch_internals import storage_address

_MOST_COMPARED = 1 << 22
"""Above this many elements, two interleaved tensors are assumed to overlap."""
_weak = weakref.ref


View = tuple[Any, ...]
"""The memory of a tensor; the first item is a weak reference to its storage."""


class Extent(NamedTuple):
    """The bytes of a storage that a tensor covers: a run of bytes, repeated once per period.

    A column of a matrix is a run of one element whose period is a row; a whole matrix is one run.
    """

    storage: int
    first: int
    """Its first byte."""
    last: int
    """Its last byte."""
    run: int
    period: int
    """From one run to the next; 0 if there is only one."""
    solid: bool
    """Whether all bytes of the runs belong to the tensor; with three nested strides, some do
    not."""
    item: int
    """The bytes of an element."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def meets(self, other: Extent) -> bool:
        apart = self.last < other.first or other.last < self.first
        if self.storage != other.storage or apart:
            return False
        if self.period and other.period and self.period != other.period:
            return self._shares_an_element(other)
        period = self.period or other.period
        if period:
            ahead = (other.first - self.first) % period
            if self.run <= ahead <= period - other.run:
                return False
        return (self.solid and other.solid) or self._shares_an_element(other)

    def covers(self, other: Extent) -> bool:
        """Whether the other one is known to be inside."""
        if self == other:
            return True
        around = self.first <= other.first and other.last <= self.last
        return self.solid and not self.period and self.storage == other.storage and around

    def _shares_an_element(self, other: Extent) -> bool:
        if self.item != other.item:
            return True
        first, last = min(self.first, other.first), max(self.last, other.last)
        count = (last + 1 - first) // self.item
        if count > _MOST_COMPARED:
            return True
        return bool((self._mask(first, count) & other._mask(first, count)).any())

    def _mask(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """Which of `count` elements, from a byte on, belong to this extent."""
        mask = np.zeros(count, dtype=np.bool_)
        ours = mask[(self.first - first) // self.item :]
        np.lib.stride_tricks.as_strided(ours, self.shape, self.strides)[...] = True
        return mask


def extent_of(tensor: torch.Tensor) -> Extent | None:
    """The memory of a tensor; None for one that is empty or has no storage."""
    storage = storage_of(tensor)
    try:
        if storage is None:
            return None
        offset, shape = int(tensor.storage_offset()), tuple(tensor.shape)
        return _extent(storage, tensor.element_size(), offset, shape, tensor.stride())
    except NO_MEMORY:
        return None


def extent_of_view(view: View) -> Extent | None:
    """The memory that a tensor covered; None if it had none, or if it was freed."""
    storage = view[0]()
    if storage is None or 0 in view[2]:
        return None
    _, offset, shape, strides, dtype = view
    return _extent(storage_address(storage), dtype.itemsize, int(offset), tuple(shape), strides)


def _extent(
    storage: int, item: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Extent:
    first = offset * item
    dims = [(size, step * item) for size, step in zip(shape, strides, strict=True) if size > 1]
    last = first + sum((size - 1) * step for size, step in dims) + item - 1
    return Extent(storage, first, last, *_runs(dims, item), item, shape, strides)


def storage_of(tensor: torch.Tensor) -> int | None:
    """A number that no other storage has while this one exists; None as in `extent_of`."""
    try:
        return storage_address(tensor.untyped_storage()) if tensor.numel() else None
    except NO_MEMORY:
        return None


def view_of(tensor: torch.Tensor) -> View:
    """Which elements of which memory a tensor covers: equal for two tensors only if both are.

    It keeps neither the tensor nor its memory alive. A weak reference to the tensor would also
    distinguish tensors, but torch refuses to swap a tensor that has one.
    """
    try:
        storage = _weak(tensor.untyped_storage())
        return storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
    except NO_MEMORY:
        return _no_storage, object()


def _no_storage() -> None:
    return None


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that takes no more memory than the tensor does: `x.expand(10**10)` takes one element.

    It has the strides of the tensor where elements repeat.
    """
    memory = repeated_memory(tensor)
    if memory is None:
        return tensor.detach().clone()
    return memory.clone().as_strided(tensor.shape, tensor.stride(), 0)


def repeated_memory(tensor: torch.Tensor) -> torch.Tensor | None:
    """The memory of a tensor that has some elements more than once."""
    if not _is_plain(tensor) or tensor.is_meta:
        return None
    span = 1 + sum(
        (size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    if not 0 < span < tensor.numel():
        return None
    return tensor.detach().as_strided((span,), (1,), tensor.storage_offset())


def each_element_once(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without the repeats of expanded dimensions."""
    if not _is_plain(tensor):
        return tensor
    steps = tensor.stride()
    if 0 not in steps:
        return tensor
    shape = [
        min(size, 1) if step == 0 else size for size, step in zip(tensor.shape, steps, strict=True)
    ]
    return tensor.detach().as_strided(shape, steps, tensor.storage_offset())


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in PLAIN_CLASSES and tensor.layout is torch.strided and not tensor.is_nested


def _runs(dims: Iterable[tuple[int, int]], item: int) -> tuple[int, int, bool]:
    """The run and the period of a tensor's dimensions, and whether its runs are solid."""
    run, period, count, solid = item, 0, 1, True
    for size, step in sorted(dims, key=lambda dim: dim[1]):
        if not period and step <= run:
            run += (size - 1) * step
        elif not period:
            period, count = step, size
        elif step == period * count:
            count *= size
        else:
            run, solid = (count - 1) * period + run, False
            period, count = (step, size) if step > run else (0, 1)
            run += 0 if period else (size - 1) * step
    return run, period, solid


Thing = TypeVar("Thing")


class ByMemory(Generic[Thing]):
    """Things by the memory that they span in one storage.

    Lookups do not visit everything: things whose runs have the same period and about the same
    length are in cells of twice that length, by their start within the period.
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], dict[int, list[tuple[Extent, Thing]]]] = {}

    def add(self, extent: Extent, thing: Thing) -> None:
        length = extent.run.bit_length()
        start = extent.first % extent.period if extent.period else extent.first
        cells = self._cells.setdefault((extent.period, length), {})
        cells.setdefault(start >> length, []).append((extent, thing))

    def meeting(self, extent: Extent) -> list[Thing]:
        """The things that share an element with an extent, in any order."""
        return [
            thing
            for kind, cells in self._cells.items()
            for cell in _near(extent, *kind, cells)
            for there, thing in cells[cell]
            if extent.meets(there)
        ]

    def take(self, extent: Extent, chosen: Callable[[Extent], bool]) -> list[Thing]:
        """Remove and return the things near an extent whose own extent is chosen."""
        taken: list[Thing] = []
        for kind, cells in self._cells.items():
            for cell in _near(extent, *kind, cells):
                left = []
                for entry in cells.pop(cell):
                    if chosen(entry[0]):
                        taken.append(entry[1])
                    else:
                        left.append(entry)
                if left:
                    cells[cell] = left
        return taken


def _near(extent: Extent, period: int, length: int, cells: Mapping[int, object]) -> list[int]:
    """The cells that may contain things of a period and a length that an extent meets."""
    if period and (extent.run >= period or extent.period not in (0, period)):
        return list(cells)
    if period:
        start = extent.first % period
        # A run may extend beyond the end of a period, into the next one.
        spans = [(start + turn, start + turn + extent.run - 1) for turn in (-period, 0, period)]
    else:
        spans = [(extent.first, extent.last)]
    near: set[int] = set()
    for low, high in spans:
        numbers = range((low >> length) - 1, (high >> length) + 1)
        if len(numbers) > len(cells):
            return list(cells)
        near.update(number for number in numbers if number in cells)
    return list(near)
