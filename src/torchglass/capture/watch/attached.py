"""Tensors inside a forward that the user wants to see, by a name of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from torchglass.blocks import unbroken
from torchglass.errors import Fence


class Attaching(Protocol):
    """Who takes down what is attached, and never raises."""

    def attach(self, tensor: Tensor, module: nn.Module, name: str) -> Tensor:
        """Take a tensor down, if a pass of the module is recorded; what to go on with."""


_fence = Fence("a tensor was not attached")
_attaching: tuple[Attaching, ...] = ()
"""Those of the watchers that are on."""


def attach(tensor: Any, module: nn.Module, name: str) -> Any:
    """Take a tensor down in all watchers that are recording a pass of the module."""
    try:
        if isinstance(tensor, Tensor):
            for one in _attaching:
                tensor = one.attach(tensor, module, name)
    except Exception as problem:  # noqa: BLE001 - no error of ours may stop a forward
        _fence.caught(problem)
    return tensor


def own_way(tensor: Tensor) -> Tensor:
    """A view of a tensor, whose gradient is the one that comes this way, and not by others.

    It is the tensor itself where a view would be noticed: a leaf would lose its gradient, and what
    was made without gradients could not be written to.
    """
    if not tensor.requires_grad or not torch.is_grad_enabled() or tensor.is_leaf:
        return tensor
    try:
        return tensor.view_as(tensor)
    except (RuntimeError, NotImplementedError):
        # Sparse and nested tensors have no views.
        return tensor


def has_view(tensor: Tensor) -> bool:
    """Whether a tensor can be viewed, which whoever looks at operations has then seen done."""
    try:
        tensor.view_as(tensor)
    except (RuntimeError, NotImplementedError):
        return False
    return True


@unbroken
def listening(one: Attaching) -> Iterator[None]:
    """Show someone what is attached until the block ends."""
    global _attaching  # noqa: PLW0603 - forwards know of no watcher
    try:
        _attaching = (*_attaching, one)
        yield
    finally:
        _attaching = tuple(other for other in _attaching if other is not one)
