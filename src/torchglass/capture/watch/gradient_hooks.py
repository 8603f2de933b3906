"""Hooks that receive gradients without keeping their receiver alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Protocol

from torch import Tensor

from torchglass.capture.tensor.memory_extent import view_of
from torchglass.capture.torch_internals import node_number
from torchglass.capture.watch.step_values import Ledger, Place


class GradientSource:
    """A tensor's place at a call, by the names of all that is measured of it."""

    __slots__ = ("gradient", "norms", "value")

    def __init__(self, path: str, name: str) -> None:
        self.value = Place(path, name)
        self.gradient = Place(path, f"{name}.grad")
        self.norms = Place(path, f"{name}.grad_norm")


class GradientReceiver(Protocol):
    """Who wants to know of gradients, and of what went wrong with them."""

    def take_gradient(
        self, ledger: Ledger, spots: Iterable[GradientSource], gradient: Tensor
    ) -> None:
        """The gradient of what was at some places has come."""

    def notice_backward(self) -> None:
        """A gradient of what a pass put out has come."""

    def miss(self, problem: Exception) -> None:
        """A gradient could not be recorded."""


class TensorGradientHook:
    """What torch calls with the gradient of a tensor.

    It is one object with all that is to be known of the tensor, as every garbage collection of the
    step looks through what is kept of thousands of them.
    """

    __slots__ = ("_ledger", "_others", "_source", "_spot", "_taker", "_version")

    def __init__(
        self,
        taker: weakref.ref[GradientReceiver],
        ledger: Ledger,
        spot: GradientSource,
        tensor: Tensor,
        version: int,
    ) -> None:
        self._taker = taker
        self._ledger = ledger
        self._spot = spot
        self._others: tuple[GradientSource, ...] = ()
        """Where else the tensor was seen."""
        self._source = _source_of(tensor)
        self._version = version

    def is_of(self, tensor: Tensor, version: int) -> bool:
        """Whether it waits for the gradient of a tensor as it is now."""
        return self._version == version and self._source == _source_of(tensor)

    def add(self, spot: GradientSource) -> None:
        """The tensor was seen at another place, or at the same one again."""
        if spot is not self._spot and spot not in self._others:
            self._others += (spot,)

    def __call__(self, gradient: Tensor | None) -> None:
        taker = self._taker()
        # An output of several that nothing used has no gradient.
        if taker is not None and gradient is not None:
            try:
                taker.take_gradient(self._ledger, (self._spot, *self._others), gradient)
            except Exception as problem:  # noqa: BLE001 - no error of ours may stop a backward
                taker.miss(problem)


def _source_of(tensor: Tensor) -> tuple[object, ...]:
    """Which output of which node of autograd a tensor is; of a leaf, the memory that it shows."""
    node = tensor.grad_fn
    return view_of(tensor) if node is None else (node_number(node), tensor.output_nr)


def on_backward(taker: weakref.ref[GradientReceiver]) -> Callable[[Tensor | None], None]:
    """What torch calls when the gradient of a pass's output is there."""

    def notice(gradient: Tensor | None) -> None:
        here = taker()
        if here is not None:
            try:
                here.notice_backward()
            except Exception as problem:  # noqa: BLE001 - no error of ours may stop a backward
                here.miss(problem)

    return notice
