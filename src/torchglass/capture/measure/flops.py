"""Runs one step of a model and counts its FLOPs, with a timed run where time is wanted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn

from torchglass.blocks import unbroken
from torchglass.capture.fake_tensors import lack_values
from torchglass.capture.isolated_run import IsolatedRun, Loss, RunObserver, isolated_run
from torchglass.capture.measure.clocks import Clock, clock_for
from torchglass.capture.measure.flop_counter import FlopCounter, FlopMode, counting_functions
from torchglass.capture.model.live_modules import modules_in, tensors_of
from torchglass.capture.module_calls import observe_calls
from torchglass.capture.nested_tensors import tensors_of_call
from torchglass.capture.restore_state import retried_with_gradients
from torchglass.capture.torch_modes import mode_on
from torchglass.errors import CaptureError
from torchglass.records.measures import FlopRecord
from torchglass.records.model import Model
from torchglass.records.timing import Stage

_NO_GRADIENT = "nothing that the model returned has a gradient, so only its forward was counted"
_UNCOMPILED = "compiled modules were counted as the Python that they were made of"


class CountedFlops(NamedTuple):
    """A model, and what one step of it computes."""

    model: Model
    work: FlopRecord


@retried_with_gradients
def count(
    target: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    backward: bool = False,
    loss: Loss | None = None,
    fake: bool = False,
    timed: bool = False,
    gradients: bool = False,
) -> CountedFlops:
    """Run a model and count what each kernel of the run computes.

    Kernels are timed, in a further run, where it is wished, or where some could not be counted.
    """
    inputs = (tensor for _, tensor in tensors_of_call(args, kwargs))
    fake = fake or lack_values((*tensors_of(modules_in(target)), *inputs))
    if fake and timed:
        raise CaptureError("a model without values computes nothing, so it cannot be timed")
    with isolated_run(
        target, args, kwargs, backward=backward, loss=loss, gradients=gradients, fake=fake
    ) as run:
        observer = FlopObserver(run)
        run.run(observer)
        if timed or (not fake and observer.has_uncounted):
            observer = FlopObserver(run, clock_for(run.tensors))
            run.run(observer)
        return CountedFlops(run.read_model(), observer.work())


class FlopObserver(RunObserver):
    """Counts the FLOPs of a run, and with a clock times its kernels."""

    def __init__(self, run: IsolatedRun, clock: Clock | None = None) -> None:
        self._run = run
        self._clock = clock
        self._counter = FlopCounter(run.located, clock)
        self._mode = FlopMode(self._counter, clock)
        self._marks: list[Any] = []

    @property
    def has_uncounted(self) -> bool:
        """Whether there is no formula for some kernel that ran."""
        return any(op.nature == "uncounted" for op in self._counter.ops())

    @unbroken
    def stage(self, name: Stage) -> Iterator[None]:
        """Count the kernels of a stage."""
        self._counter.is_backward = name == "backward"
        with contextlib.ExitStack() as stack:
            stack.enter_context(observe_calls(self._counter))
            stack.enter_context(counting_functions(self._mode))
            if name == "forward" and not isinstance(self._run.target, nn.Module):
                stack.enter_context(self._counter.inside(""))
            stack.enter_context(mode_on(self._mode))
            self._mark()
            stack.callback(self._mark)
            yield

    def work(self) -> FlopRecord:
        """What the run computed."""
        run = self._run
        notes = [_NO_GRADIENT] if run.backward and not run.went_back else []
        notes += [_UNCOMPILED] if run.has_compiled else []
        return FlopRecord(
            places=self._counter.places(),
            ops=self._counter.ops(),
            total_ns=self._total_ns(),
            backward=run.went_back,
            fake=run.faking is not None,
            notes=(*notes, *run.notes),
        )

    def _total_ns(self) -> int | None:
        if self._clock is None:
            return None
        times = self._clock.nanoseconds(self._marks)
        return sum(times[1::2]) - sum(times[::2])

    def _mark(self) -> None:
        if self._clock is not None:
            self._marks.append(self._clock.mark())
