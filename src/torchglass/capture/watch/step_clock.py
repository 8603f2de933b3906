"""How long each step and its forwards take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import nn

from torchglass.capture.watch.step_values import Ledger, Place

_FORWARD, _STEP = Place("", "time.forward"), Place("", "time.step")


class StepClock:
    """Puts seconds into the ledgers of steps that are looked at."""

    def __init__(self) -> None:
        self._began_ns = 0
        self._ledger: Ledger | None = None
        self._ended_ns = time.perf_counter_ns()

    def begin_pass(self, ledger: Ledger | None) -> None:
        """A forward begins, of a step with this ledger."""
        self._ledger = ledger
        self._began_ns = time.perf_counter_ns()

    def end_pass(self) -> None:
        """It is over; several of one step are added up."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            seconds = (time.perf_counter_ns() - self._began_ns) / 1e9
            ledger.numbers[_FORWARD] = ledger.numbers.get(_FORWARD, 0.0) + seconds

    def end_step(self, ledger: Ledger | None) -> None:
        """An optimizer has stepped: that is how far a step reaches."""
        now = time.perf_counter_ns()
        if ledger is not None:
            ledger.numbers[_STEP] = (now - self._ended_ns) / 1e9
        self._ended_ns = now


class UsersClock:
    """A function of the user's that tells the time beside the steps, asked once a step."""

    def __init__(self, name: str, ask: Callable[[Any, int], float]) -> None:
        self.is_asked = False
        """Whether it runs right now: what it runs of the model is no pass of the training."""
        self._place = Place("", name)
        self._ask = ask
        self._step: int | None = None

    def tell(self, model: nn.Module, step: int, ledger: Ledger) -> None:
        """Put the time of a step into its ledger."""
        if step == self._step:
            return
        self._step = step
        self.is_asked = True
        try:
            ledger.numbers[self._place] = float(self._ask(model, step))
        finally:
            self.is_asked = False
