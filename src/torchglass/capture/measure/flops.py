"""Runs one step of a model and counts its FLOPs, with a timed run where time is wanted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.blocks import together, unbroken
from torchglass.capture.autograd import Reached
from torchglass.capture.fake_tensors import Faking, has_fakes
from torchglass.capture.isolated_run import (
    Located,
    Loss,
    Step,
    keeping_parameters,
    read_target,
    with_shapes,
)
from torchglass.capture.measure.clocks import Clock, clock_for
from torchglass.capture.measure.flop_counter import FlopCounter, FlopMode, counting_functions
from torchglass.capture.module_calls import observe_calls
from torchglass.capture.nested_tensors import tensors_of_call
from torchglass.capture.restore_state import (
    has_compiled,
    keeping_modules,
    retried_with_gradients,
    running_uncompiled,
)
from torchglass.capture.torch_internals import tree_map_only
from torchglass.capture.torch_modes import mode_on
from torchglass.capture.trial_forward import tensors_of
from torchglass.errors import CaptureError
from torchglass.records.measures import FlopRecord
from torchglass.records.model import Model
from torchglass.records.timing import Stage

_NO_GRADIENT = "nothing that the model returned has a gradient, so only its forward was counted"
_UNCOMPILED = "compiled modules were counted as the Python that they were made of"


class Counted(NamedTuple):
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
) -> Counted:
    """Run a model and count what each kernel of the run computes.

    Kernels are timed, in a further run, where it is wished, or where some could not be counted.
    """
    target, located = with_shapes(target, args, kwargs)
    tensors = [*tensors_of(located), *(tensor for _, tensor in tensors_of_call(args, kwargs))]
    is_fake = fake or has_fakes(tensors) or any(tensor.is_meta for tensor in tensors)
    if is_fake and timed:
        raise CaptureError("a model without values computes nothing, so it cannot be timed")
    modules = [module for _, module in located]
    with together(
        # A compiled function that the forward calls would hide its kernels, too.
        running_uncompiled(),
        _without_numbers(tensors, located, args, kwargs)
        if is_fake
        else contextlib.nullcontext((args, kwargs)),
        keeping_parameters(modules),
    ) as (_, (args, kwargs), left_out):
        step = Step(
            target, modules, args, kwargs, backward=backward, loss=loss, gradients=gradients
        )
        run = _Run(step, located, is_module=isinstance(target, nn.Module))
        work = run.count(None)
        if timed or (not is_fake and any(op.nature == "uncounted" for op in work.ops)):
            work = run.count(clock_for(tensors))
    notes = [_NO_GRADIENT] if backward and not step.went_back else []
    notes += [_UNCOMPILED] if has_compiled(modules) else []
    notes += left_out
    return Counted(
        read_target(target, modules),
        FlopRecord(
            places=work.places,
            ops=work.ops,
            total_ns=work.total_ns,
            backward=step.went_back,
            fake=is_fake,
            notes=tuple(notes),
        ),
    )


@unbroken
def _without_numbers(
    tensors: Sequence[torch.Tensor],
    located: Located,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Let modules have tensors without numbers, and give such arguments."""
    faking = Faking(tensors, located)
    replace = {"_parameters": faking.fake, "_buffers": faking.fake}
    with keeping_modules((module for _, module in located), replace), faking.running():
        yield tree_map_only(torch.Tensor, faking.fake, (args, dict(kwargs)))


class _Run:
    """A step that can be counted, any number of times."""

    def __init__(self, step: Step, modules: Located, *, is_module: bool) -> None:
        self._step = step
        self._modules = modules
        self._is_module = is_module

    def count(self, clock: Clock | None) -> FlopRecord:
        """Run the step once, and give what it computed."""
        counter = FlopCounter(self._modules, clock)
        watcher = _Counting(counter, clock, is_module=self._is_module)
        self._step.run(watcher)
        return FlopRecord(places=counter.places(), ops=counter.ops(), total_ns=watcher.total_ns())


class _Counting:
    """Counts the stages of a step."""

    def __init__(self, counter: FlopCounter, clock: Clock | None, *, is_module: bool) -> None:
        self._counter = counter
        self._clock = clock
        self._mode = FlopMode(counter, clock)
        self._is_module = is_module
        self._marks: list[Any] = []

    def total_ns(self) -> int | None:
        """How long all stages took."""
        if self._clock is None:
            return None
        times = self._clock.nanoseconds(self._marks)
        return sum(times[1::2]) - sum(times[::2])

    @unbroken
    def stage(self, name: Stage) -> Iterator[None]:
        self._counter.is_backward = name == "backward"
        with contextlib.ExitStack() as stack:
            stack.enter_context(observe_calls(self._counter))
            stack.enter_context(counting_functions(self._mode))
            if name == "forward" and not self._is_module:
                stack.enter_context(self._counter.inside(""))
            stack.enter_context(mode_on(self._mode))
            self._mark()
            stack.callback(self._mark)
            yield

    def before_backward(self, nodes: Sequence[Reached]) -> None:
        return None

    def _mark(self) -> None:
        if self._clock is not None:
            self._marks.append(self._clock.mark())
