"""Reads tensors as they pass by, without keeping them alive."""

from __future__ import annotations

import math
from collections import deque
from functools import lru_cache
from typing import Any

import torch

from torchglass.capture.observe.tensor_batch import LARGEST_BYTES, PENDING, Batch, Pending, can_wait
from torchglass.capture.tensor.description import describe, measure
from torchglass.capture.tensor.memory_extent import identity_of
from torchglass.records.calls import CallTensor, Level
from torchglass.records.tensors import Stats, TensorSpec

_SAMPLE = 4096
"""How many numbers of a tensor the level "cheap" looks at."""
_MOST_KINDS = 1 << 12
_STRIDED = torch.strided
_Tensor = torch.Tensor

_Kind = tuple[torch.Size, torch.dtype, bool | torch.device, bool, bool]
"""What there is to say of a dense tensor besides its numbers; True for the CPU."""


class Reading:
    """What a tensor was at one time."""

    __slots__ = ("copy", "has_grad", "requires_grad", "spec", "stats")

    def __init__(self, spec: TensorSpec, requires_grad: bool, has_grad: bool) -> None:
        self.spec = spec
        self.requires_grad = requires_grad
        self.has_grad = has_grad
        self.stats: Stats | Pending | None = None
        self.copy: torch.Tensor | None = None

    @property
    def ready_stats(self) -> Stats | None:
        """Its statistics, where they are there by now."""
        return None if self.stats is PENDING else self.stats

    def record(self, place: str) -> CallTensor:
        """The same as plain data."""
        return CallTensor(
            place=place,
            spec=self.spec,
            stats=self.ready_stats,
            requires_grad=self.requires_grad,
            has_grad=self.has_grad,
        )


_Known = tuple[tuple[Any, ...], int, Reading]
"""What tells a tensor from others, how often it had been written to, which one of inference mode
does not tell, and what was found."""


class Reader:
    """Reads tensors at one level; a tensor that is met again unchanged has the same reading."""

    def __init__(self, level: Level, budget_bytes: int = 0) -> None:
        self._level = level
        self._batch = Batch()
        self._copies = Copies(budget_bytes)
        self._known: dict[int, _Known] = {}
        self._kinds: dict[_Kind, Reading] = {}
        self.read = self._of_kind if level == "shapes" and not budget_bytes else self._unless_known
        """What a tensor is right now. Nobody may be listening to what torch is asked here."""

    @property
    def left_out(self) -> int:
        """How many tensors the budget had no room for."""
        return self._copies.left_out

    def _unless_known(self, tensor: torch.Tensor) -> Reading:
        known = self._known.get(id(tensor))
        identity = identity_of(tensor)
        if known is not None and known[0] == identity and _is_unchanged(known, tensor):
            return known[2]
        reading = self._new(tensor)
        try:
            self._known[id(tensor)] = identity, tensor._version, reading
        except RuntimeError:
            # See `_Known`.
            self._known.pop(id(tensor), None)
        return reading

    def forget(self) -> None:
        """Read every tensor anew: a backward may have given it a gradient."""
        self._known.clear()

    def finish(self) -> None:
        """Work out all statistics that were put off."""
        self._batch.finish()

    def _new(self, tensor: torch.Tensor) -> Reading:
        spec = describe(tensor)
        try:
            reading = Reading(spec, tensor.requires_grad, _has_grad(tensor))
            self._measure(tensor, reading)
            self._copies.take(tensor, reading)
        except Exception:  # noqa: BLE001 - a tensor class is foreign code, and no reading may raise
            return Reading(spec, False, False)
        return reading

    def _of_kind(self, tensor: torch.Tensor) -> Reading:
        """One object for all dense tensors of which there is nothing else to say."""
        if (
            type(tensor) is not _Tensor
            or tensor.is_nested
            or tensor.layout is not _STRIDED
            or not tensor.is_contiguous()
        ):
            return self._new(tensor)
        device = tensor.is_cpu or tensor.device
        key = tensor.shape, tensor.dtype, device, tensor.requires_grad, _has_grad(tensor)
        reading = self._kinds.get(key)
        if reading is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            reading = self._kinds[key] = self._new(tensor)
        return reading

    def _measure(self, tensor: torch.Tensor, reading: Reading) -> None:
        if self._level == "shapes":
            return
        spec = reading.spec
        values = _sample(tensor, spec) if self._level == "cheap" else tensor
        is_small = spec.bytes <= LARGEST_BYTES or values is not tensor
        if is_small and can_wait(tensor):
            self._batch.put(values, reading)
        else:
            reading.stats = measure(values)


class Copies:
    """Copies of tensors within a budget of bytes; the oldest give way to new ones."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._held: deque[tuple[Reading, int]] = deque()
        self._bytes = 0
        self.left_out = 0

    def take(self, tensor: torch.Tensor, reading: Reading) -> None:
        """Keep a copy with the reading of a tensor, if there is a budget and it has room for it."""
        if not self._budget:
            return
        size = tensor.numel() * tensor.element_size()
        if size > self._budget:
            self.left_out += 1
            return
        while self._bytes + size > self._budget:
            oldest, freed = self._held.popleft()
            oldest.copy = None
            self._bytes -= freed
            self.left_out += 1
        reading.copy = tensor.detach().clone()
        self._held.append((reading, size))
        self._bytes += size


def _is_unchanged(known: _Known, tensor: torch.Tensor) -> bool:
    return known[1] == tensor._version and known[2].requires_grad == tensor.requires_grad


def _has_grad(tensor: torch.Tensor) -> bool:
    # Asked of any other tensor, torch warns that it never has one.
    return (tensor.is_leaf or tensor.retains_grad) and tensor.grad is not None


def _sample(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Numbers from all over a large tensor; the tensor itself where it is small or scattered."""
    if spec.layout != "strided" or spec.elements <= _SAMPLE or not tensor.is_contiguous():
        return tensor
    return tensor.detach().view(-1)[:: _stride(spec.elements)]


@lru_cache(maxsize=1 << 12)
def _stride(elements: int) -> int:
    """How far apart the numbers of a sample are, so that none of the dimensions is left out."""
    stride = -(-elements // _SAMPLE)
    # Sharing a factor with a dimension, it would always meet the same columns.
    while math.gcd(stride, elements) > 1:
        stride += 1
    return stride
