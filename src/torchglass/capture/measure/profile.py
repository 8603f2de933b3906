"""Times a model: warm-up runs, then plain and timed runs in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torchglass.analyse.time_attribution import charge
from torchglass.blocks import unbroken
from torchglass.capture.autograd import Reached
from torchglass.capture.isolated_run import (
    Located,
    Loss,
    Step,
    keeping_parameters,
    read_target,
    with_shapes,
)
from torchglass.capture.measure.clocks import Clock, CpuClock, clock_for, cpu_clock
from torchglass.capture.measure.timer import ModuleTimer, NodeTimer, Stopwatch, timing_ops
from torchglass.capture.module_calls import CallRecorder, observe_calls
from torchglass.capture.nested_tensors import tensors_of_call
from torchglass.capture.restore_state import has_compiled, retried_with_gradients
from torchglass.capture.trial_forward import note_where, tensors_of
from torchglass.records.model import Model
from torchglass.records.timing import RunTimes, Span, Stage, Timing
from torchglass.records.trace import CallRecord

_MOST_PLAIN_RUNS = 3
_NO_GRADIENT = "nothing that the model returned has a gradient, so only its forward was timed"
_COMPILED = "compiled modules are timed as a whole: their internals are not recorded"


class Measured(NamedTuple):
    """A model, the shapes that went through it, and how long it took."""

    model: Model
    calls: tuple[CallRecord, ...]
    timing: Timing


@retried_with_gradients
def measure(
    target: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    backward: bool = True,
    warmup: int = 3,
    repeats: int = 10,
    loss: Loss | None = None,
    ops: bool = True,
    clock: Clock | None = None,
    cpu: CpuClock | None = None,
    gradients: bool = False,
) -> Measured:
    """Run a model several times and take the time of all that runs in it."""
    target, located = with_shapes(target, args, kwargs)
    inputs = (tensor for _, tensor in tensors_of_call(args, kwargs))
    clock = clock or clock_for((*tensors_of(located), *inputs))
    modules = [module for _, module in located]
    compiled = has_compiled(modules)
    step = Step(target, modules, args, kwargs, backward=backward, loss=loss, gradients=gradients)
    runs = _Runs(step, located, clock, cpu or cpu_clock(clock), ops=ops and not compiled)
    with keeping_parameters(modules) as left_out:
        calls = _look(step, located)
        runs.measure(warmup, repeats)
    notes = [_NO_GRADIENT] if backward and not step.went_back else []
    notes += [_COMPILED] if compiled else []
    notes += left_out
    timing = Timing(
        runs=tuple(runs.charges),
        published=runs.lowest,
        spans=runs.spans,
        plain_cpu_ns=tuple(runs.plain_cpu_ns),
        warmup=warmup,
        clock=clock.name,
        threads=torch.get_num_threads(),
        notes=tuple(notes),
    )
    return Measured(read_target(target, modules), calls, timing)


def _look(step: Step, modules: Located) -> tuple[CallRecord, ...]:
    """Run once without a clock, and take down the shapes."""
    recorder = CallRecorder(modules)
    try:
        step.run(_Looking(recorder))
    except Exception as error:
        note_where(error, recorder)
        raise
    return recorder.calls


class _Runs:
    """The runs of a step, of which one is kept whole."""

    def __init__(
        self, step: Step, modules: Located, clock: Clock, cpu: CpuClock, *, ops: bool
    ) -> None:
        self._step = step
        self._modules = modules
        self._clocks = clock, cpu
        self._ops = ops
        self.charges: list[RunTimes] = []
        self.plain_cpu_ns: list[int] = []
        self.lowest = 0
        self.spans: tuple[Span, ...] = ()

    def measure(self, warmup: int, repeats: int) -> None:
        """Warm up, then run with the timers and, some times in between, without."""
        for _ in range(warmup):
            self._plain()
        for number in range(repeats):
            if number < _MOST_PLAIN_RUNS:
                self.plain_cpu_ns.append(charge(self._plain()).total_cpu_ns)
            spans = self._timed()
            self.charges.append(charge(spans))
            if number == 0 or self.charges[-1].total_ns < self.charges[self.lowest].total_ns:
                self.lowest, self.spans = number, spans

    def _plain(self) -> tuple[Span, ...]:
        watch = Stopwatch(*self._clocks)
        self._step.run(_Stages(watch))
        return watch.read()

    def _timed(self) -> tuple[Span, ...]:
        watch = Stopwatch(*self._clocks)
        watcher = _Everything(watch, self._modules, ops=self._ops)
        try:
            self._step.run(watcher)
        finally:
            watcher.nodes.close()
        return watch.read()


class _Looking:
    """Shows a recorder of shapes the forward."""

    def __init__(self, recorder: CallRecorder) -> None:
        self._recorder = recorder

    def stage(self, name: Stage) -> contextlib.AbstractContextManager[object]:
        return observe_calls(self._recorder) if name == "forward" else contextlib.nullcontext()

    def before_backward(self, nodes: Sequence[Reached]) -> None:
        return None


class _Stages:
    """Shows a stopwatch the stages of a step, and nothing in them."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    @unbroken
    def stage(self, name: Stage) -> Iterator[None]:
        depth = self._watch.begin("stage", name)
        try:
            yield
        finally:
            self._watch.end(depth)

    def before_backward(self, nodes: Sequence[Reached]) -> None:
        return None


class _Everything(_Stages):
    """Shows a stopwatch the stages with the modules, ops and nodes in them."""

    def __init__(self, watch: Stopwatch, modules: Located, *, ops: bool) -> None:
        super().__init__(watch)
        self.nodes = NodeTimer(watch)
        self._calls = ModuleTimer(watch, modules, self.nodes.tag)
        self._ops = ops

    @unbroken
    def stage(self, name: Stage) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(observe_calls(self._calls))
            if self._ops:
                stack.enter_context(timing_ops(self._watch))
            stack.enter_context(super().stage(name))
            yield

    def before_backward(self, nodes: Sequence[Reached]) -> None:
        self.nodes.tag_nodes(nodes)
