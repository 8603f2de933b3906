"""Tensors inside a forward that the user wants to see, by a name of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeVar, cast

import torch
from torch import nn

from torchglass.capture.watch.flow import Flow

Thing = TypeVar("Thing")

_flows: tuple[Flow, ...] = ()
"""Those of the watchers that are on."""


def attach(tensor: Thing, module: nn.Module, name: str) -> Thing:
    """Take a tensor down in all watchers that are recording a pass of the module.

    Only then is it not the very same tensor that comes back but a view of it, so that its gradient
    is the one that comes this way, and not by others.
    """
    for flow in _flows:
        spot = flow.spot(module, name)
        if spot is not None and isinstance(tensor, torch.Tensor):
            view = tensor.view_as(tensor)
            flow.put(spot, view)
            tensor = cast(Thing, view)
    return tensor


@contextlib.contextmanager
def listening(flow: Flow) -> Iterator[None]:
    """Show a flow what is attached until the block ends."""
    global _flows  # noqa: PLW0603 - forwards know of no watcher
    _flows = (*_flows, flow)
    try:
        yield
    finally:
        _flows = tuple(other for other in _flows if other is not flow)
