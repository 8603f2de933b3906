"""Who is told of the passes through a watched model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from torchglass.capture.watch.ledger import Ledger, Place


class Passes(Protocol):
    """Who knows of the steps, and is told of passes through the model."""

    def begin(self, *, training: bool) -> Ledger | None:
        """A pass begins: where it is to be recorded, None if it is not."""

    def end(self) -> None:
        """The pass that began last is over."""

    def gradient_factor(self) -> float:
        """What gradients of the running backward are to be multiplied with."""

    def are_gradients_scaled(self) -> bool:
        """Whether a `GradScaler` has scaled the gradients of the running backward."""

    def backward_begun(self) -> None:
        """The first gradient of a backward has come."""

    def ledger_of_gradient(self, ledger: Ledger) -> Ledger | None:
        """Where a gradient of a pass is to be recorded, that once was recorded in a ledger."""

    def wants_backward(self) -> bool:
        """Whether to be told of a backward even if nothing else is wanted of the pass."""

    def changed(self, model: nn.Module) -> None:
        """The model has other modules than before."""

    def picture(self, place: Place, output: Tensor) -> None:
        """A module of a recorded pass put out a tensor."""

    def miss(self, problem: Exception) -> None:
        """Something could not be recorded."""


class Inner(Protocol):
    """Who else looks at the calls of a recorded pass."""

    def begin(self, *, training: bool, arguments: tuple[str, ...] = ()) -> bool:
        """A pass begins with tensors at these places; whether its calls are to be shown."""

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """A call begins."""

    def leave(self, depth: int, output: Any = None, error: BaseException | None = None) -> None:
        """The call at a depth ended."""

    def end(self, shape: tuple[tuple[int, str, tuple[str, ...]], ...] | None) -> None:
        """The pass ended; its shape is the depth, path and arguments of its calls.

        None if it raised.
        """

    def stop(self) -> None:
        """Look at no more of the pass."""

    def attached(self, name: str) -> None:
        """The tensor that was made last was given a name."""
