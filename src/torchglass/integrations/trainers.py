"""A training that somebody else's trainer runs, watched under the trainer's own step numbers."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import torchglass as tg

if TYPE_CHECKING:
    from torchglass.capture.watch import Watcher


class Followed:
    """A training, from its beginning to its end; a trainer's callback says when what happens.

    A step is over when the next one begins, so that a validation between them belongs to it.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.number: int | None = None
        """That of the step that is going on."""
        self._watcher: Watcher | None = None
        self._options = dict(options)
        self._numbers: dict[str, float | torch.Tensor] = {}
        """Logged before the first step began."""

    def begin(self, model: nn.Module) -> None:
        """A training begins; one that an exception ended before is closed first."""
        self.stop()
        self._watcher = tg.watch(model, **self._options)

    def begin_step(self, number: int) -> None:
        """A step begins, or goes on: its number tells."""
        if number == self.number:
            return
        if self.number is not None:
            self._end_step(self.number)
        self.number = number
        if self._watcher is not None:
            self._watcher.begin_step(number)
            self._log_numbers(self._watcher)

    def log(self, values: Mapping[str, Any]) -> None:
        """Keep what of it is a number for the current step."""
        if self._watcher is not None:
            self._numbers.update(numbers_in(values))
            if self.number is not None:
                self._log_numbers(self._watcher)

    def end(self) -> None:
        """The training is over; nothing stays on the model."""
        if self.number is not None:
            self._end_step(self.number)
        self.stop()

    def stop(self) -> None:
        """An exception has ended the training in the middle of a step."""
        watcher, self._watcher = self._watcher, None
        self.number = None
        self._numbers.clear()
        if watcher is not None:
            watcher.close()

    def _end_step(self, number: int) -> None:
        if self._watcher is not None:
            self._watcher.step(number)

    def _log_numbers(self, watcher: Watcher) -> None:
        for name, value in self._numbers.items():
            watcher.log(name, value)
        self._numbers.clear()


def numbers_in(values: Mapping[str, Any]) -> dict[str, float | torch.Tensor]:
    """What of some values is one number."""
    numbers: dict[str, float | torch.Tensor] = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            if value.numel() == 1:
                # The trainer may go on to change it in place.
                numbers[name] = value.detach().clone()
        elif isinstance(value, Real):
            numbers[name] = float(value)
    return numbers
