"""Which memory a tensor spans."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

_MOST_COMPARED = 1 << 22
"""Above so many elements, two interleaved tensors are taken to meet."""


class Extent(NamedTuple):
    """The elements of a storage that a tensor is made of."""

    storage: int
    first: int
    """Its first byte."""
    last: int
    """Its last byte."""
    item: int
    """The bytes of an element."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def meets(self, other: Extent) -> bool:
        """Whether both have an element in common."""
        apart = self.last < other.first or other.last < self.first
        if self.storage != other.storage or apart:
            return False
        if self._is_dense or other._is_dense or self.item != other.item:
            return True
        first, last = min(self.first, other.first), max(self.last, other.last)
        count = (last + 1 - first) // self.item
        if count > _MOST_COMPARED:
            return True
        return bool((self._mask(first, count) & other._mask(first, count)).any())

    @property
    def _is_dense(self) -> bool:
        return math.prod(self.shape) * self.item == self.last + 1 - self.first

    def _mask(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """Of `count` elements from a byte on, which are ours."""
        mask = np.zeros(count, dtype=np.bool_)
        ours = mask[(self.first - first) // self.item :]
        np.lib.stride_tricks.as_strided(ours, self.shape, self.strides)[...] = True
        return mask


def extent_of(tensor: torch.Tensor) -> Extent | None:
    """The memory of a tensor; None for an empty one, or one without a storage of its own."""
    try:
        if tensor.numel() == 0:
            return None
        storage = tensor.untyped_storage()._cdata
        first = int(tensor.storage_offset())
        shape, strides = tuple(tensor.shape), tensor.stride()
        item = tensor.element_size()
        last = first + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    except (RuntimeError, NotImplementedError, AttributeError, ValueError):
        return None
    return Extent(storage, first * item, (last + 1) * item - 1, item, shape, strides)
