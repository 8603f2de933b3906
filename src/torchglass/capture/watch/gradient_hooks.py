"""Where in a step the gradient of a tensor is recorded."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from torch import Tensor

from torchglass.capture.autograd import GradientHook, GradientReceiver
from torchglass.capture.watch.step_values import Ledger, Place


class GradientSource:
    """A tensor's place at a call, by the names of all that is measured of it."""

    __slots__ = ("gradient", "norms", "value")

    def __init__(self, path: str, name: str) -> None:
        self.value = Place(path, name)
        self.gradient = Place(path, f"{name}.grad")
        self.norms = Place(path, f"{name}.grad_norm")


class TensorGradientHook(GradientHook):
    """The gradient of a tensor of one step, and all places where the tensor was seen."""

    __slots__ = ("_others", "_spot", "ledger")

    def __init__(
        self,
        receiver: weakref.ref[GradientReceiver],
        ledger: Ledger,
        spot: GradientSource,
        tensor: Tensor,
        version: int,
    ) -> None:
        super().__init__(receiver, tensor, version)
        self.ledger = ledger
        self._spot = spot
        self._others: tuple[GradientSource, ...] = ()

    @property
    def spots(self) -> tuple[GradientSource, ...]:
        """Where the tensor was seen."""
        return (self._spot, *self._others)

    def add(self, spot: GradientSource) -> None:
        """The tensor was seen at another place, or at the same one again."""
        if spot is not self._spot and spot not in self._others:
            self._others += (spot,)


def on_backward(receiver: weakref.ref[GradientReceiver]) -> Callable[[Tensor | None], None]:
    """What torch calls when the gradient of a pass's output is there."""

    def notice(gradient: Tensor | None) -> None:
        here = receiver()
        if here is not None:
            try:
                here.notice_backward()
            except Exception as problem:  # noqa: BLE001 - no error of ours may stop a backward
                here.gradient_missed(problem)

    return notice
