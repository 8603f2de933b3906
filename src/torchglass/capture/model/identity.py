"""Which tensors are one and the same, however many names and Python objects they have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from itertools import count
from typing import cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from torchglass.capture.tensor.describing import inner_tensors
from torchglass.records.model import TensorId

_NextId = Callable[[], TensorId]
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Identities:
    """Hands out one number per tensor; good for as long as the tensors live."""

    def __init__(self) -> None:
        self._ids: dict[Hashable, TensorId] = defaultdict(cast("_NextId", count().__next__))
        self._owners: list[object] = []

    def of(self, tensor: torch.Tensor) -> TensorId:
        """The number of a tensor: the same for two that are the same memory."""
        return self._ids[_memory(tensor)]

    def of_key(self, key: Hashable) -> TensorId:
        """The number of something that stands for a tensor."""
        return self._ids[key]

    def of_part(self, owner: object, name: str) -> TensorId:
        """The number of a tensor packed in an object, which is kept alive to stay itself."""
        self._owners.append(owner)
        return self.of_key((id(owner), name))


def _memory(tensor: torch.Tensor) -> Hashable:
    """A key that two tensors share when they begin at the same place and are of the same size."""
    try:
        if type(tensor) in _PLAIN:
            if address := tensor.data_ptr():
                # One number of two, because a large model has many and numbers need no collecting.
                return tensor.nbytes << 64 | address
            if tensor.is_meta:
                return _storage(tensor), int(tensor.storage_offset()), tensor.nbytes
            # An empty tensor has no address, nor has one whose storage was given back.
            return id(tensor)
        return _special_memory(tensor)
    except Exception:  # noqa: BLE001 - a tensor that has no storage to ask for is at least itself
        return id(tensor)


def _special_memory(tensor: torch.Tensor) -> Hashable:
    if is_lazy(tensor) or tensor.numel() == 0:
        return id(tensor)
    if inner := inner_tensors(tensor):
        return tuple(map(_memory, inner))
    if tensor.is_meta or isinstance(tensor, FakeTensor):
        return _storage(tensor), tensor.storage_offset(), tensor.nbytes
    return tensor.data_ptr(), tensor.nbytes


def _storage(tensor: torch.Tensor) -> int:
    """The address of what manages the memory, which is there even when the memory is not."""
    address: int = tensor.untyped_storage()._cdata
    return address
