"""Sums of gradients, which autograd makes in place unless a dispatch mode is on.

Where several gradients come to one tensor, autograd adds each to the sum so far. If nobody else has
that sum it adds in place; while a mode looks on it never does, and takes a new block that a plain
run would not take. Such a block is to be counted as the old one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from torchglass.capture.tensor.extents import extent_of
from torchglass.capture.trace.dispatch import LookingMode
from torchglass.capture.trace.nodes import running_node
from torchglass.capture.trace.ops import OpEvent
from torchglass.capture.trace.phases import BACKWARD

_ADD = torch.ops.aten.add.Tensor


class _Holders(NamedTuple):
    """How many hold a tensor, and its storage, while a kernel is being dispatched."""

    tensor: int
    storage: int


class Sums:
    """Tells sums that a plain run would make in place."""

    def __init__(self) -> None:
        self._lone = _holders_of_lone_sum()

    def in_place(self, event: OpEvent) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The sum so far and the new one, if a plain run would have written it over the old."""
        if event.function is not _ADD or event.chain[-2:-1] != (BACKWARD,):
            return None
        old, new = event.args[0], event.output
        if old.layout is not torch.strided or new.layout is not torch.strided:
            return None
        return (old, new) if _is_dense(old) and _holders_of(old) == self._lone else None


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a piece of memory, each at a place of its own."""
    extent = extent_of(tensor)
    if extent is None:
        return False
    return extent.last + 1 - extent.first == tensor.numel() * extent.item


def _holders_of(tensor: torch.Tensor) -> _Holders:
    storage = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return _Holders(tensor._use_count(), storage)  # type: ignore[attr-defined]


@functools.cache
def _holders_of_lone_sum() -> _Holders:
    """What is counted of a sum that nobody has but autograd, in this version of torch."""
    counting = _Counting()
    with torch.inference_mode(False), torch.enable_grad(), counting:
        x = torch.zeros(2, requires_grad=True)
        y = x * 2
        torch.autograd.backward((y * 3 + y.relu()).sum())
    return counting.seen


class _Counting(LookingMode):  # type: ignore[no-untyped-call]
    """Counts who holds the sum at the one place where a backward adds."""

    seen: _Holders = _Holders(0, 0)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is _ADD and running_node() is not None:
            self.seen = _holders_of(args[0])
        return func(*args, **(kwargs or {}))
