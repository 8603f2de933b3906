"""Watches a training that a library's trainer runs, with the trainer's step numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import torchglass as tg
from torchglass.api.new_run import read_config
from torchglass.records.run import ConfigValue

if TYPE_CHECKING:
    from torchglass.capture.watch.watcher import Watcher


class Followed:
    """A watched training; a trainer's callback calls its methods.

    A step is over when the next one begins, so that a validation between them belongs to it.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.number: int | None = None
        """The number of the current step."""
        self._watcher: Watcher | None = None
        self._options = dict(options)
        self._numbers: dict[str, float | torch.Tensor] = {}
        """Values logged before the first step."""

    def begin(self, model: nn.Module, settings: Callable[[], object]) -> None:
        """Start a training; an earlier one that an exception stopped is closed first.

        `settings` returns the trainer's own; those passed as `config` take precedence.
        """
        self.stop()
        config = {**trainer_settings(settings), **read_config(self._options.get("config"))}
        self._watcher = tg.watch(model, **{**self._options, "config": config})

    def begin_step(self, number: int) -> None:
        """Start the step with a number, or continue it."""
        if number == self.number:
            return
        if self.number is not None:
            self._end_step(self.number)
        self.number = number
        if self._watcher is not None:
            self._watcher.begin_step(number)
            self._log_numbers(self._watcher)

    def log(self, values: Mapping[str, Any]) -> None:
        """Log the values that are numbers for the current step."""
        if self._watcher is not None:
            self._numbers.update(numbers_in(values))
            if self.number is not None:
                self._log_numbers(self._watcher)

    def end(self) -> None:
        """End the training; nothing stays on the model."""
        if self.number is not None:
            self._end_step(self.number)
        self.stop()

    def stop(self) -> None:
        """End the training after an exception in the middle of a step."""
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


_SECRET = re.compile(r"(token|secret|password|passwd|credentials?|_key)$", re.IGNORECASE)
"""Ends of the names of settings that may be secret: `hub_token`, `api_key`."""


def trainer_settings(settings: Callable[[], object]) -> dict[str, ConfigValue]:
    """The settings of a trainer as plain values, without secrets and without those that are None.

    Nobody chose to write them to a file that others will read.

    >>> trainer_settings(lambda: {"lr": 0.1, "hub_token": "x", "model": {"width": 8, "key": None}})
    {'lr': 0.1, 'model.width': 8}
    """
    try:
        found = read_config(settings())
    except Exception:  # noqa: BLE001 - the user's own classes; no setting may stop a training
        return {}
    return {
        name: value
        for name, value in found.items()
        if value is not None and not _SECRET.search(name)
    }


def numbers_in(values: Mapping[str, Any]) -> dict[str, float | torch.Tensor]:
    """The values that are single numbers."""
    numbers: dict[str, float | torch.Tensor] = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            if value.numel() == 1:
                # The trainer may change it in place later.
                numbers[name] = value.detach().clone()
        elif isinstance(value, Real):
            numbers[name] = float(value)
    return numbers
