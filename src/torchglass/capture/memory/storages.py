"""The storages that tensors of any kind lie in, and what is known of them while they live."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch.nn.parameter import is_lazy

from torchglass.capture.tensor.describing import inner_tensors

K = TypeVar("K")

_COMPRESSED_BY_ROW = (torch.sparse_csr, torch.sparse_bsr)
_COMPRESSED_BY_COLUMN = (torch.sparse_csc, torch.sparse_bsc)


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with a storage of their own that a tensor is made of; mostly itself.

    A sparse tensor is made of its indices and values, a wrapper of what it wraps. One that keeps
    its numbers where torch cannot see them, as those of oneDNN do, is made of none.
    """
    if is_lazy(tensor):
        return
    if inner := inner_tensors(tensor):
        for part in inner:
            yield from plain_tensors(part)
    elif tensor.layout is torch.strided:
        yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in _COMPRESSED_BY_ROW:
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in _COMPRESSED_BY_COLUMN:
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())


def storage_key(storage: Any) -> int:
    """A number for a storage that no other has while it lives."""
    key: int = storage._cdata
    return key


class _Living(weakref.ref[torch.UntypedStorage], Generic[K]):
    """A storage that is not held, and what is known of it."""

    __slots__ = ("key", "known")
    key: int
    known: K


class Living(Generic[K]):
    """What is known of storages; when one goes, it is told with what was known of it."""

    def __init__(self, gone: Callable[[K], None]) -> None:
        self._told = gone
        self._living: dict[int, _Living[K]] = {}

    def find(self, storage: torch.UntypedStorage) -> K | None:
        """What is known of a storage; None if nothing is."""
        found = self._living.get(storage_key(storage))
        return None if found is None else found.known

    def know(self, storage: torch.UntypedStorage, known: K) -> None:
        """Remember something of a storage, instead of what was known of it before."""
        living: _Living[K] = _Living(storage, self._gone)
        living.key, living.known = storage_key(storage), known
        self._living[living.key] = living

    def forget(self, storage: torch.UntypedStorage) -> K | None:
        """Remember a storage no longer; what was known of it."""
        found = self._living.pop(storage_key(storage), None)
        return None if found is None else found.known

    def pairs(self) -> Iterator[tuple[torch.UntypedStorage, K]]:
        """All storages that live, with what is known of them."""
        for living in list(self._living.values()):
            storage = living()
            if storage is not None:
                yield storage, living.known

    def clear(self) -> None:
        """Remember none any longer, and tell of none."""
        self._living.clear()

    def _gone(self, living: Any) -> None:
        key, known = living.key, living.known
        if self._living.get(key) is living:
            del self._living[key]
            self._told(known)
