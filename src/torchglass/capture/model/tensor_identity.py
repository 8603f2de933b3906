"""Which tensors are the same, whatever their names; packed weights of quantized modules."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from itertools import count
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchglass.capture.tensor.description import inner_tensors
from torchglass.capture.torch_internals import FakeTensor, script_type, storage_address
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
    address: int = storage_address(tensor.untyped_storage())
    return address


PACKED = frozenset(
    ("_packed_params", "_packed_weight", "_packed_weight_ih", "_packed_weight_hh", "param")
)
"""The attributes in which torch's quantized modules keep packed objects."""
_SCRIPTED_HALF = 5
"""What torch.float16 is called in a scripted module."""


def packed_tensors(module: nn.Module) -> Iterator[tuple[str, object, torch.Tensor]]:
    """For each packed weight of a module its name, the object that it is in, and the tensor.

    The objects tell what is in them only by unpacking a copy: let go of each before the next.
    """
    held = object.__getattribute__(module, "__dict__")
    if isinstance(module, torch.jit.ScriptModule):
        held = _scripted(held["_c"])
    half = held.get("dtype") in (torch.float16, _SCRIPTED_HALF)
    for attribute in sorted(PACKED.intersection(held)):
        value = held[attribute]
        if isinstance(value, torch.ScriptObject):
            suffix = attribute[-3:] if attribute.endswith(("_ih", "_hh")) else ""
            for name, tensor in _unpacked(value, half=half):
                yield name + suffix, value, tensor


def _unpacked(value: Any, *, half: bool) -> Iterator[tuple[str, torch.Tensor]]:
    if hasattr(value, "unpack"):
        with warnings.catch_warnings():
            # That quantized tensors are to go from torch is not news of the reader's making.
            warnings.simplefilter("ignore")
            content = value.unpack()
        weight, bias = (content, None) if isinstance(content, torch.Tensor) else content[:2]
        # Half precision is how it is kept, though float32 is how it comes out.
        yield "weight", weight.half() if half else weight
        if bias is not None:
            yield "bias", bias
    elif script_type(value).name() == "CellParamsBase":
        (kind, *_, packed), _ = value.__getstate__()
        for suffix, part in zip(("_ih", "_hh"), packed, strict=False):
            for name, tensor in _unpacked(part, half=kind == "quantized_fp16"):
                yield name + suffix, tensor


def _scripted(module: Any) -> dict[str, Any]:
    return {name: module.getattr(name) for name in (*PACKED, "dtype") if module.hasattr(name)}
