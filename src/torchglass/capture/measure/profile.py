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
    ForwardCalls,
    IsolatedRun,
    Loss,
    RunObserver,
    isolated_run,
)
from torchglass.capture.measure.clocks import Clock, CpuClock, clock_for, cpu_clock
from torchglass.capture.measure.timer import ModuleTimer, NodeTimer, Stopwatch, timing_ops
from torchglass.capture.module_calls import CallRecorder, observe_calls
from torchglass.capture.restore_state import retried_with_gradients
from torchglass.records.model import Model
from torchglass.records.timing import RunTimes, Span, Stage, Timing
from torchglass.records.trace import CallRecord

_MOST_PLAIN_RUNS = 3
_NO_GRADIENT = "nothing that the model returned has a gradient, so only its forward was timed"
_COMPILED = "compiled modules are timed as a whole: their internals are not recorded"


class MeasuredTime(NamedTuple):
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
) -> MeasuredTime:
    """Run a model several times and take the time of all that runs in it."""
    with isolated_run(
        target, args, kwargs, backward=backward, loss=loss, gradients=gradients, compiled=True
    ) as run:
        timed = TimedRuns(run, ops=ops, clock=clock, cpu=cpu)
        recorder = CallRecorder(run.located)
        run.run(ForwardCalls(recorder))
        timed.measure(warmup, repeats)
        return MeasuredTime(run.read_model(), recorder.calls, timed.timing())


class TimedRuns:
    """The timed runs of a model, of which the fastest is kept whole."""

    def __init__(
        self,
        run: IsolatedRun,
        *,
        ops: bool = True,
        clock: Clock | None = None,
        cpu: CpuClock | None = None,
    ) -> None:
        self._run = run
        self._clock = clock or clock_for(run.tensors)
        self._cpu = cpu or cpu_clock(self._clock)
        self._ops = ops and not run.has_compiled
        self._charges: list[RunTimes] = []
        self._plain_cpu_ns: list[int] = []
        self._lowest = 0
        self._spans: tuple[Span, ...] = ()
        self._warmup = 0

    def measure(self, warmup: int, repeats: int, plain: int = _MOST_PLAIN_RUNS) -> None:
        """Warm up, then run with the timers and, up to `plain` times in between, without."""
        self._warmup = warmup
        for _ in range(warmup):
            self._run_plain()
        for number in range(repeats):
            if number < plain:
                self._plain_cpu_ns.append(charge(self._run_plain()).total_cpu_ns)
            spans = self._run_timed()
            self._charges.append(charge(spans))
            if number == 0 or self._charges[-1].total_ns < self._charges[self._lowest].total_ns:
                self._lowest, self._spans = number, spans

    def timing(self) -> Timing:
        """What the runs took."""
        run = self._run
        notes = [_NO_GRADIENT] if run.backward and not run.went_back else []
        notes += [_COMPILED] if run.has_compiled else []
        return Timing(
            runs=tuple(self._charges),
            published=self._lowest,
            spans=self._spans,
            plain_cpu_ns=tuple(self._plain_cpu_ns),
            warmup=self._warmup,
            clock=self._clock.name,
            threads=torch.get_num_threads(),
            notes=(*notes, *run.notes),
        )

    def _run_plain(self) -> tuple[Span, ...]:
        watch = Stopwatch(self._clock, self._cpu)
        self._run.run(_StageTimer(watch))
        return watch.read()

    def _run_timed(self) -> tuple[Span, ...]:
        watch = Stopwatch(self._clock, self._cpu)
        observer = _StepTimer(watch, self._run, ops=self._ops)
        try:
            self._run.run(observer)
        finally:
            observer.nodes.close()
        return watch.read()


class _StageTimer(RunObserver):
    """Times the stages of a run as wholes."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    @unbroken
    def stage(self, name: Stage) -> Iterator[None]:
        depth = self._watch.begin("stage", name)
        try:
            yield
        finally:
            self._watch.end(depth)


class _StepTimer(_StageTimer):
    """Times the stages of a run with the modules, ops and nodes in them."""

    def __init__(self, watch: Stopwatch, run: IsolatedRun, *, ops: bool) -> None:
        super().__init__(watch)
        self.nodes = NodeTimer(watch)
        self._calls = ModuleTimer(watch, run.located, self.nodes.tag)
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
