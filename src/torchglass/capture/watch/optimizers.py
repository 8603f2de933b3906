"""Finds the optimizers and gradient scalers of a training, and which steps are running.

An optimizer whose `step` calls that of its parent class runs torch's hooks twice in one step, where
torch has put its wrapper around both.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from torchglass.capture.autograd import OPTIMIZER_STEP
from torchglass.capture.torch_internals import current_scale, has_served
from torchglass.capture.watch.step_values import StepValues


class FoundOptimizers(NamedTuple):
    """What of a training was found in memory."""

    optimizers: set[Optimizer]
    scalers: list[torch.amp.GradScaler]


def find_optimizers(is_ours: Callable[[Optimizer], bool]) -> FoundOptimizers:
    """All optimizers that are ours, and all gradient scalers that scale."""
    found = FoundOptimizers(set(), [])
    for thing in gc.get_objects():
        # Asked of its type: a thing may lie about its class, or compute it.
        kind = type(thing)
        if issubclass(kind, Optimizer):
            if hasattr(thing, "param_groups") and is_ours(thing):
                found.optimizers.add(thing)
        elif issubclass(kind, torch.amp.GradScaler) and thing.is_enabled():
            found.scalers.append(thing)
    return found


class GradientScale:
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
        return self._scaler is not None and current_scale(self._scaler) is not None

    def settle(self, optimizer: Optimizer, values: StepValues) -> None:
        """An optimizer is about to step: correct what was supposed of the gradients before it."""
        own = next((each for each in self._living if has_served(each, optimizer)), None)
        # One that has not scaled anything yet may still turn out to be that of the training.
        supposed = own or next((each for each in self._living if current_scale(each) is None), None)
        if not self._is_given and supposed is not self._scaler:
            values.correct_scale(_factor(own), is_scaled=own is not None)
            self._scaler = supposed


def _factor(scaler: Any) -> float:
    if scaler is None or current_scale(scaler) is None:
        return 1.0
    scale = float(scaler.get_scale())
    return 1 / scale if scale else 1.0


def is_within_own(optimizer: Optimizer) -> bool:
    """Whether the step of an optimizer that runs now is part of another step of its own."""
    return sum(one is optimizer for one in _under_way()) > 1


def is_any_under_way() -> bool:
    """Whether an optimizer of this thread is in its step."""
    return next(_under_way(), None) is not None


def _under_way() -> Iterator[Optimizer]:
    """The optimizer of each step that this thread is in, the innermost first."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is OPTIMIZER_STEP:
            yield frame.f_locals["args"][0]


def computes_gradients(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `optimizer.step(closure)` was called: its gradients are there only afterwards."""
    return callable(kwargs.get("closure", args[1] if len(args) > 1 else None))


def is_still(optimizer: Optimizer) -> bool:
    """Whether an optimizer steps at a learning rate of 0, so that nothing moves."""
    rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
    # A rate that is a tensor may lie on a device, which is not waited for.
    return bool(rates) and all(isinstance(rate, float | int) and not rate for rate in rates)
