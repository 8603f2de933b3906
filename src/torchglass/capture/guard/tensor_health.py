"""Whether a tensor is finite, cached until the tensor is written to.

A sum is the cheapest way to read a tensor, and a finite sum proves that there is no NaN or Inf. If
it is not finite, and for 16-bit floats, the range is read. On a GPU each read waits for the device.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import torch

from torchglass.capture.tensor.description import PLAIN_CLASSES, version_of
from torchglass.capture.tensor.memory_extent import View, view_of
from torchglass.capture.tensor.moments import measure


class Health(IntEnum):
    """The worst value in a tensor."""

    FINE = 0
    NEAR = 1
    """Close to the largest value of a 16-bit float."""
    INF = 2
    NAN = 3


NEAR_SHARE = 0.5
"""A value above this share of the largest one is near overflow."""

_SUMMED = frozenset({torch.float32, torch.float64})
_LIMITS = {dtype: NEAR_SHARE * torch.finfo(dtype).max for dtype in (torch.float16, torch.bfloat16)}


def look(tensor: torch.Tensor) -> Health:
    """The health of a tensor that was just created. Never raises."""
    dtype = tensor.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        return Health.FINE
    return _look(tensor)


def is_surely_finite(tensor: torch.Tensor) -> bool:
    """Whether one sum proves a plain tensor finite. False does not prove the opposite."""
    if type(tensor) is not torch.Tensor:
        return False
    dtype = tensor.dtype
    if dtype in _SUMMED:
        return tensor.layout is torch.strided and math.isfinite(tensor.detach().sum().item())
    return not (dtype.is_floating_point or dtype.is_complex)


def look_again(tensor: torch.Tensor) -> Health:
    """The health of any tensor: it may be expanded, or its memory freed."""
    if type(tensor) not in PLAIN_CLASSES or tensor.layout is not torch.strided or tensor.is_nested:
        return look(tensor)
    if not tensor.numel() or not tensor.untyped_storage().nbytes():
        return Health.FINE
    tensor = tensor.detach()
    for dim in range(tensor.dim() - 1, -1, -1):
        if tensor.stride(dim) == 0:
            tensor = tensor.select(dim, 0)
    return look(tensor)


def near_limit(dtype: torch.dtype) -> float | None:
    """The magnitude above which a dtype is near overflow; None for 32 and 64 bits."""
    return _LIMITS.get(dtype)


def _look(tensor: torch.Tensor) -> Health:
    try:
        if type(tensor) in PLAIN_CLASSES:
            if tensor.dtype in _SUMMED:
                # A sum may overflow although none of its terms did.
                if math.isfinite(tensor.detach().sum().item()):
                    return Health.FINE
                return _by_range(tensor.detach())
            if tensor.dtype in _LIMITS:
                return _by_range(tensor.detach())
        return _by_count(tensor)
    except Exception:  # noqa: BLE001 - a tensor that cannot be read so is counted, or left alone
        return _by_count(tensor)


def _by_range(tensor: torch.Tensor) -> Health:
    if not tensor.numel():
        return Health.FINE
    low, high = (bound.item() for bound in torch.aminmax(tensor))
    if math.isnan(low):
        return Health.NAN
    largest = max(-low, high)
    if math.isinf(largest):
        return Health.INF
    return Health.NEAR if largest > _LIMITS.get(tensor.dtype, math.inf) else Health.FINE


def _by_count(tensor: torch.Tensor) -> Health:
    """For the tensors that have no plain range: sparse, nested, complex, float8, subclasses."""
    stats = measure(tensor)
    if stats is None:
        return Health.FINE
    return Health.NAN if stats.nan else Health.INF if stats.inf else Health.FINE


_MOST = 1 << 14
"""After this many tensors, those that were freed are forgotten."""


class _Known(NamedTuple):
    view: View
    version: int
    health: Health
    maker: str


# Half the cost of calling the class, for every op.
_known: Callable[[tuple[Any, ...]], _Known] = functools.partial(tuple.__new__, _Known)


class KnownHealth:
    """Remembers tensors without keeping them alive, so that none is read twice.

    The id of a freed tensor may be reused: its memory distinguishes the two.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._limit = _MOST
        self._undefined: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.any_bad = False
        """Whether a bad tensor was remembered."""

    def remember(self, tensor: torch.Tensor, health: Health, maker: str = "") -> None:
        """Note the health of a tensor, and the op that caused it."""
        if health:
            self.any_bad = True
        self._known[id(tensor)] = _known((view_of(tensor), version_of(tensor), health, maker))
        if len(self._known) > self._limit:
            self._forget_the_dead()

    def recall(self, tensor: torch.Tensor) -> Health | None:
        """What is known about a tensor in its current state."""
        known = self._of(tensor)
        return None if known is None else known.health

    def health(self, tensor: torch.Tensor) -> Health:
        """The known health of a tensor, or else the result of reading it."""
        known = self.recall(tensor)
        return look_again(tensor) if known is None else known

    def maker(self, tensor: torch.Tensor) -> str:
        """The op that produced the bad values of a tensor, if it is known."""
        known = self._of(tensor)
        return "" if known is None else known.maker

    def leave_undefined(self, tensor: torch.Tensor) -> None:
        """Note that a tensor's memory is not initialized."""
        storage = tensor.untyped_storage()
        self._undefined[id(storage)] = weakref.ref(storage)

    def is_undefined(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is in memory that was not initialized."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return False
        noted = self._undefined.get(id(storage))
        return noted is not None and noted() is storage

    def _of(self, tensor: torch.Tensor) -> _Known | None:
        known = self._known.get(id(tensor))
        if known is None or known.version != version_of(tensor) or known.view != view_of(tensor):
            return None
        return known

    def _forget_the_dead(self) -> None:
        self._known = {
            key: known for key, known in self._known.items() if known.view[0]() is not None
        }
        self._undefined = {key: ref for key, ref in self._undefined.items() if ref() is not None}
        self._limit = 2 * len(self._known) + _MOST
