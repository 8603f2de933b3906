"""Which step it is, which steps are recorded, and how long each takes.

A step of the training is one round of the model's optimizers, however many passes and backwards
come before it: a pass after the optimizers have stepped belongs to the next step. Without an
optimizer, each backward ends a step. Passes in eval mode belong to the current step.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from torchglass.capture.watch.options import Unit
from torchglass.capture.watch.step_values import Number, SeriesName, StepValues

Finish = Callable[[int, StepValues], None]


class Steps:
    """Counts steps and keeps the values of each; `finish` is called for each step with values."""

    def __init__(self, every: int, unit: Unit | None, finish: Finish, *, start: int = 0) -> None:
        self.number = start
        self.taken = 0
        self.unit = unit
        self.is_paused = False
        self.by_hand = False
        self.is_updating = False
        """Whether an optimizer is stepping; its closure may run the model."""
        self._every = every
        self._finish = finish
        self._now = StepValues()
        self._next: StepValues | None = None
        """The values of the passes since an optimizer stepped, in this step or the next."""
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._partners: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """The optimizers expected in the current step."""
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._has_stepped = False
        self._backward_over = False
        self._passes_in_eval = 0
        self._logs_before_steps: bool | None = None
        self._has_written = False
        """Whether the current step was written before its end."""
        self._is_named_late = False
        """Whether the user passes the number of a step only when it ends."""

    @property
    def is_over(self) -> bool:
        """Whether the current step is complete and its number final."""
        if self.is_updating or self._is_named_late:
            return False
        return self._backward_over or (self._has_stepped and self.have_all_stepped)

    @property
    def is_recorded(self) -> bool:
        """Whether the current step is recorded."""
        return self._is_recorded(self.taken)

    @property
    def number_of_pass(self) -> int:
        """The number of the step that the latest pass belongs to."""
        return self.number + (self._next is not None)

    @property
    def is_between(self) -> bool:
        """Whether a step has ended and the next one has not begun."""
        has_ended = (self._has_stepped and not self.is_updating) or self._backward_over
        return has_ended and self._next is None

    @property
    def of_pass(self) -> StepValues:
        """The values of the step that the latest pass belongs to; they may still be empty."""
        return self._now if self._next is None else self._next

    @property
    def has_measured(self) -> bool:
        """Whether the weights of this step were measured, by an optimizer step or a backward."""
        return self._has_stepped or self._backward_over

    @property
    def optimizers(self) -> Iterable[Optimizer]:
        """The optimizers known to train the model."""
        return self._optimizers

    @property
    def have_all_stepped(self) -> bool:
        """Whether all optimizers expected in this step have stepped."""
        # Trainers wrap an optimizer in another one, which has the same groups and never steps.
        stepped = set(map(_groups, self._stepped))
        return all(_groups(optimizer) in stepped for optimizer in self._partners)

    def begin_pass(self, *, training: bool) -> StepValues | None:
        """Where to record a pass that begins; None if it is not recorded."""
        if self.is_paused:
            if training and self._backward_over:
                self.advance()
            return None
        if not training:
            self._passes_in_eval += 1
            wanted = (self._passes_in_eval - 1) % self._every == 0
            return self.of_pass if wanted else None
        self._passes_in_eval = 0
        if self._has_stepped and not self.by_hand and not self.is_updating:
            return self._begin_after_step()
        if self._backward_over:
            self.advance()
        return self._now if self.is_recorded else None

    def learn(self, optimizers: Iterable[Optimizer]) -> None:
        """These optimizers train the model: their steps count, or backwards if there are none."""
        self._optimizers.update(optimizers)
        self._partners.update(optimizers)
        if self.unit is None:
            self.unit = "optimizer" if self._optimizers else "backward"

    def before_update(self, optimizer: Optimizer) -> StepValues:
        """An optimizer of the model is about to step; returns the values of its step."""
        if self.unit != "optimizer":
            self.unit = "optimizer"
            self._backward_over = False
        is_new = self._has_stepped and optimizer not in self._optimizers
        self._optimizers.add(optimizer)
        if (is_new or optimizer in self._stepped) and not self.by_hand:
            self.advance()
        else:
            self._take_over_next()
        self._stepped.add(optimizer)
        self._has_stepped = True
        self.is_updating = True
        return self._now

    def after_update(self, optimizer: Optimizer) -> StepValues | None:
        """It has stepped; returns the values of that step, None if it is not recorded."""
        self.is_updating = False
        return self._now if optimizer in self._stepped and self.is_recorded else None

    def backward_begun(self) -> None:
        """A backward begins; if there was no pass since the last one, it is a new step."""
        if self.unit == "backward" and self._backward_over and not self.by_hand:
            self.advance()

    def values_of_gradient(self, values: StepValues) -> StepValues | None:
        """The values that a pass's gradient belongs to; the pass may be from an earlier step."""
        if values.is_open:
            return values
        return self._now if self.unit == "backward" and self.is_recorded else None

    def backward_ended(self) -> StepValues | None:
        """A backward has ended; returns the values of its step if backwards are steps."""
        if self.unit != "backward" or self.by_hand:
            return None
        self._backward_over = True
        return self._now if not self.is_paused else None

    def write(self) -> None:
        """Write what is known about the current step so far; more may follow."""
        values, self._now = self._now, StepValues()
        if values or (self.is_recorded and not self._has_written):
            self._finish(self.number, values)
        values.is_open = False
        self._has_written = True

    def log(self, place: SeriesName, value: Number) -> None:
        """Keep a number for the step that it belongs to.

        That is the step whose pass has begun. Before the pass, it is the next step if the first
        number was logged before the first step, and otherwise the previous one.
        """
        if self._logs_before_steps is None:
            self._logs_before_steps = not self.taken and not self._has_stepped
        is_ahead = self._logs_before_steps and self._has_stepped and self._next is None
        if is_ahead and not self.by_hand:
            self.advance()
        self.of_pass.numbers[place] = value

    def begin_by_hand(self, number: int) -> None:
        """A trainer says which step begins or continues; `end_by_hand` ends it."""
        self.by_hand = True
        self.number = number

    def end_by_hand(self, number: int | None) -> StepValues:
        """The user says that a step is over; returns its values. `advance` then ends it."""
        self.by_hand = True
        if number is not None:
            self._is_named_late = self._is_named_late or number != self.number
            self.number = number
        self._take_over_next()
        return self._now

    def advance(self) -> None:
        """End the current step, and begin the next."""
        try:
            self.write()
        finally:
            self._begin_next()

    def has_begun(self) -> bool:
        """Whether anything of the current step was observed."""
        return bool(self._now or self._next or self._has_written)

    def _begin_next(self) -> None:
        self.number += 1
        self.taken += 1
        self._has_written = False
        self._backward_over = False
        if self._has_stepped:
            # Optimizers that did not take part will probably not take part in the next step.
            self._partners = weakref.WeakSet(self._stepped)
            self._stepped.clear()
            self._has_stepped = False
        if self._next is not None:
            self._now, self._next = self._next, None
            if not self.is_recorded:
                self._now.drop_training()

    def _take_over_next(self) -> None:
        """What came after an optimizer stepped still belongs to this step."""
        if self._next is not None:
            if not self.is_recorded:
                self._next.drop_training()
            self._now.take_over(self._next)
            self._next = None

    def _begin_after_step(self) -> StepValues | None:
        if self._next is None:
            self._next = StepValues()
        is_of_this = not self.have_all_stepped and self.is_recorded
        wanted = is_of_this or self._is_recorded(self.taken + 1)
        return self._next if wanted else None

    def _is_recorded(self, step: int) -> bool:
        return step % self._every == 0 and not self.is_paused


def _groups(optimizer: Optimizer) -> int:
    """The parameter groups of an optimizer; a wrapper has those of the optimizer inside."""
    return id(getattr(optimizer, "param_groups", optimizer))


_FORWARD, _STEP = SeriesName("", "time.forward"), SeriesName("", "time.step")


class StepClock:
    """Adds durations to the values of recorded steps."""

    def __init__(self) -> None:
        self._began_ns = 0
        self._values: StepValues | None = None
        self._ended_ns = time.perf_counter_ns()

    def begin_pass(self, values: StepValues | None) -> None:
        """A forward begins, of a step with these values."""
        self._values = values
        self._began_ns = time.perf_counter_ns()

    def end_pass(self) -> None:
        """The forward has ended; several forwards in one step are added up."""
        values, self._values = self._values, None
        if values is not None:
            seconds = (time.perf_counter_ns() - self._began_ns) / 1e9
            values.numbers[_FORWARD] = float(values.numbers.get(_FORWARD, 0.0)) + seconds

    def end_step(self, values: StepValues | None) -> None:
        """An optimizer has stepped, which ends the step."""
        now = time.perf_counter_ns()
        if values is not None:
            values.numbers[_STEP] = (now - self._ended_ns) / 1e9
        self._ended_ns = now


class UserClock:
    """The user's function for another time axis, called once per step."""

    def __init__(self, name: str, ask: Callable[[Any, int], float]) -> None:
        self.is_asked = False
        """Whether it is running: its forwards are not passes of the training."""
        self._place = SeriesName("", name)
        self._ask = ask
        self._step: int | None = None

    def tell(self, model: nn.Module, step: int, values: StepValues) -> None:
        """Put the time of a step into its values."""
        if step == self._step:
            return
        self._step = step
        self.is_asked = True
        try:
            values.numbers[self._place] = float(self._ask(model, step))
        finally:
            self.is_asked = False
