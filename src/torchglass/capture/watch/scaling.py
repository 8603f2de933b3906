"""The scale that a `GradScaler` has put on the gradients of a training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from torchglass.capture.watch.ledger import Ledger


class Scaling:
    """Tells what undoes the scale on gradients.

    Without a scaler that was given, one that lives in the process is supposed to be that of the
    training until an optimizer steps: a scaler knows which optimizers it has to do with.
    """

    def __init__(self, given: Any = None) -> None:
        self._is_given = given is not None
        self._scaler = given
        self._living: list[Any] = []

    def learn(self, living: Iterable[Any]) -> None:
        """These scalers are there."""
        self._living = list(living)
        if not self._is_given and self._living:
            self._scaler = self._living[0]

    def factor(self) -> float:
        """What undoes the scale on the gradients of a backward that is under way."""
        return _factor(self._scaler)

    @property
    def is_on(self) -> bool:
        """Whether gradients of a backward that is under way are scaled, and checked afterwards."""
        return self._scaler is not None and self._scaler._scale is not None

    def settle(self, optimizer: Optimizer, ledger: Ledger) -> None:
        """An optimizer is about to step: correct what was supposed of the gradients before it."""
        own = next((each for each in self._living if _serves(each, optimizer)), None)
        # One that has not scaled anything yet may still turn out to be that of the training.
        supposed = own or next((each for each in self._living if each._scale is None), None)
        if not self._is_given and supposed is not self._scaler:
            ledger.correct_scale(_factor(own), is_scaled=own is not None)
            self._scaler = supposed


def _serves(scaler: Any, optimizer: Optimizer) -> bool:
    """Whether a scaler was asked to unscale or to step an optimizer since its last update."""
    return id(optimizer) in scaler._per_optimizer_states


def _factor(scaler: Any) -> float:
    if scaler is None or scaler._scale is None:
        return 1.0
    scale = float(scaler.get_scale())
    return 1 / scale if scale else 1.0
