"""Times a model: its modules, ops and autograd nodes, in warm-up, plain and timed runs.

    watch = Stopwatch(clock, cpu)
    with observe_calls(ModuleTimer(watch, model.named_modules())), timing_ops(watch):
        model(x)

A node belongs to the op, or at least to the module call, that created it. Modules are not wrapped:
in-place modules, checkpoints and modules that return tuples work as before.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

from torchglass.analyse.latency import attribute_time
from torchglass.capture.autograd import (
    UNNUMBERED,
    Gradients,
    HookHandles,
    NodeCreators,
    Reached,
    node_name,
    nodes_behind,
    retried_with_gradients,
)
from torchglass.capture.isolated_run import (
    ForwardCalls,
    IsolatedRun,
    Loss,
    RunObserver,
    isolated_run,
)
from torchglass.capture.measure.devices import Clock, CpuClock, clock_for, cpu_clock
from torchglass.capture.module_calls import CallRecorder, ModuleStack, observe_calls
from torchglass.capture.tensor.description import Args, Kwargs, named_tensors
from torchglass.capture.torch_internals import node_number
from torchglass.capture.torch_modes import (
    OPENED,
    fused_paths_kept,
    mode_on,
    run_below,
    without_guards,
)
from torchglass.errors import uninterruptible
from torchglass.records.measures import RunTimes, Span, SpanKind, Stage, Timing
from torchglass.records.model import Model
from torchglass.records.trace import CallRecord


@dataclass(slots=True, eq=False)
class RawSpan:
    """A span with the marks of its clock still to be read."""

    kind: SpanKind
    subject: Any
    parent: int | None
    owner: int | None
    start: Any = field(init=False)
    end: Any = field(init=False)
    cpu_ns: int = field(init=False)
    """The CPU time at the start; after the end, the CPU time of the span."""


class Stopwatch:
    """Records when spans begin and end, and which of them created which autograd node."""

    def __init__(self, clock: Clock, cpu: CpuClock) -> None:
        self._clock = clock
        self._mark = clock.mark
        self._cpu = cpu
        self.spans: list[RawSpan] = []
        self._open: list[int] = []
        self.current: int | None = None
        """The innermost span that has not ended."""
        self.creators: NodeCreators[int] = NodeCreators()
        """The innermost span in which each autograd node was created."""

    def begin(self, kind: SpanKind, subject: Any, owner: int | None = None) -> int:
        """Begin a span; returns its index, which `end` takes."""
        spans, parent = self.spans, self.current
        span = RawSpan(kind, subject, parent, parent if owner is None else owner)
        self.current = index = len(spans)
        spans.append(span)
        self._open.append(index)
        self.creators.begin(index)
        # The clock is read last here and first at the end: our own work is not in the span.
        span.cpu_ns = self._cpu()
        span.start = self._mark()
        return index

    def end(self, index: int) -> None:
        """End a span, and all that began in it; one that has ended with another stays ended."""
        mark = self._mark()
        cpu_ns = self._cpu()
        running = self._open
        if index != self.current and index not in running:
            return
        ended = -1
        while ended != index:
            ended = running.pop()
            span = self.spans[ended]
            span.end = mark
            span.cpu_ns = cpu_ns - span.cpu_ns
        self.current = running[-1] if running else None
        self.creators.begin(self.current)

    def innermost_path(self) -> str | None:
        """The path of the running module; None outside of all modules."""
        index = self.current
        while index is not None:
            span = self.spans[index]
            if span.kind == "module":
                return str(span.subject)
            index = span.owner
        return None

    def is_in_node(self) -> bool:
        """Whether the innermost span is an autograd node."""
        return self.current is not None and self.spans[self.current].kind == "node"

    def read(self) -> tuple[Span, ...]:
        marks = [mark for span in self.spans for mark in (span.start, span.end)]
        times = self._clock.nanoseconds(marks)
        return tuple(
            Span(
                kind=span.kind,
                name=_name(span),
                parent=span.parent,
                owner=span.owner,
                start_ns=start,
                end_ns=end,
                cpu_ns=span.cpu_ns,
            )
            for span, start, end in zip(self.spans, times[::2], times[1::2], strict=True)
        )


class SharedStopwatch(Stopwatch):
    """The same where autograd has a thread for each device."""

    def __init__(self, clock: Clock, cpu: CpuClock) -> None:
        super().__init__(clock, cpu)
        self._lock = threading.RLock()

    def begin(self, kind: SpanKind, subject: Any, owner: int | None = None) -> int:
        with self._lock:
            return super().begin(kind, subject, owner)

    def end(self, index: int) -> None:
        with self._lock:
            super().end(index)


def stopwatch_for(clock: Clock, cpu: CpuClock) -> Stopwatch:
    """A stopwatch for this machine."""
    kind = SharedStopwatch if torch.accelerator.is_available() else Stopwatch
    return kind(clock, cpu)


def _name(span: RawSpan) -> str:
    if span.kind == "op":
        return str(getattr(span.subject, "__name__", type(span.subject).__name__))
    return str(span.subject)


Tag = Callable[[Iterable[torch.Tensor]], None]
"""Times the nodes that created some tensors, when autograd runs them."""

_is_compiling = torch.compiler.is_compiling
_ASK_ONLY = frozenset(
    {
        *("__get__", "__set__", "__delete__", "__len__", "__hash__", "__repr__", "__format__"),
        *("size", "dim", "ndimension", "stride", "numel", "nelement", "element_size", "is_complex"),
        *("is_floating_point", "is_contiguous", "storage_offset", "data_ptr", "get_device"),
        *("untyped_storage", "requires_grad_", "retain_grad", "register_hook", "is_shared"),
        *("_set_grad_enabled", "set_grad_enabled"),
    }
)
"""Functions that only inspect a tensor and compute nothing."""


class ModuleTimer(ModuleStack[int]):
    """Times the calls of modules, and the calls that they make. A call is its span's index."""

    def __init__(
        self, watch: Stopwatch, modules: Iterable[tuple[str, nn.Module]], tag: Tag | None = None
    ) -> None:
        super().__init__(modules, "the times of some modules were not recorded")
        self._watch = watch
        self._callers: dict[str, int | None] = {}
        self._tag = tag

    def begin(self, module: nn.Module, args: Args, kwargs: Kwargs) -> int | None:
        watch = self._watch
        path = self.locate(module)
        if path is None:
            return None
        if watch.is_in_node():
            # Autograd recomputes it: it still belongs to its caller in the forward.
            return watch.begin("module", path, self._callers.get(path))
        self._callers[path] = watch.current
        return watch.begin("module", path)

    def end(self, call: int, output: Any, error: BaseException | None) -> None:
        self._watch.end(call)
        if self._tag is not None and self._watch.is_in_node():
            # A checkpoint that recomputes its forward may run its backward right after.
            self._tag(tensor for _, tensor in named_tensors(output))

    def caller_path(self) -> str | None:
        """The path of the running module; for a node, that of its creator."""
        return self._watch.innermost_path()


class _OpTimer(TorchFunctionMode):
    """Times the torch functions that this thread calls."""

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self._watch = watch
        self._thread = get_ident()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _is_compiling():
            # Constant while dynamo compiles this method, as it does when `torch.cond` runs.
            return func(*args, **kwargs)
        # Autograd passes our mode on to its device threads.
        if not _computes(func) or get_ident() != self._thread:
            return func(*args, **kwargs)
        if func in OPENED:
            return run_below(self, without_guards(func), *args, **kwargs)
        span = self._watch.begin("op", func)
        try:
            return func(*args, **kwargs)
        finally:
            self._watch.end(span)


@uninterruptible
def timing_ops(watch: Stopwatch) -> Iterator[None]:
    """Time the ops of this thread until the block ends."""
    with fused_paths_kept(), mode_on(_OpTimer(watch)):
        yield


@functools.lru_cache(maxsize=4096)
def _computes(func: Any) -> bool:
    return getattr(func, "__name__", "") not in _ASK_ONLY


class NodeTimer:
    """Times autograd nodes when they run, until it is closed."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._owners: dict[Node, int | None] = {}
        self._hooks = HookHandles()

    def tag(self, tensors: Iterable[torch.Tensor]) -> None:
        """Time the nodes behind tensors, and attribute them to the spans that created them."""
        self.tag_nodes(nodes_behind(tensors))

    def tag_nodes(self, nodes: Iterable[Reached]) -> None:
        for reached in nodes:
            if reached.node not in self._owners:
                self._tag(reached)

    def close(self) -> None:
        """Remove the hooks: the node of a leaf may live as long as the leaf."""
        self._hooks.remove()
        self._owners.clear()

    def _tag(self, reached: Reached) -> None:
        node = reached.node
        number = node_number(node)
        if number != UNNUMBERED:
            owner = self._watch.creators.find(number)
        else:
            owner = None if reached.through is None else self._owners[reached.through]
        self._owners[node] = owner
        timer = _SpanHooks(self._watch, node_name(node), owner)
        self._hooks.around(node, timer.begin, timer.end)


class _SpanHooks:
    """What autograd calls right before and right after one node."""

    __slots__ = ("_name", "_owner", "_spans", "_watch")

    def __init__(self, watch: Stopwatch, name: str, owner: int | None) -> None:
        self._watch = watch
        self._name = name
        self._owner = owner
        self._spans: list[int] = []

    def begin(self, gradients: Gradients) -> None:
        self._spans.append(self._watch.begin("node", self._name, self._owner))

    def end(self, computed: Gradients, arrived: Gradients) -> None:
        self._watch.end(self._spans.pop())


_MOST_PLAIN_RUNS = 3
_NO_GRADIENT = "no output requires a gradient, so only the forward was timed"
_COMPILED = "compiled modules are timed as a whole: their internals are not recorded"


class MeasuredTime(NamedTuple):
    """A model, its shapes, and how long it took."""

    model: Model
    calls: tuple[CallRecord, ...]
    timing: Timing


@retried_with_gradients
def measure(
    target: Any,
    args: Args,
    kwargs: Kwargs,
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
    """Run a model several times, and time everything that runs in it."""
    with isolated_run(
        target, args, kwargs, backward=backward, loss=loss, gradients=gradients, compiled=True
    ) as run:
        timed = TimedRuns(run, ops=ops, clock=clock, cpu=cpu)
        recorder = CallRecorder(run.located)
        run.run(ForwardCalls(recorder))
        timed.measure(warmup, repeats)
        return MeasuredTime(run.read_model(), recorder.calls, timed.timing())


class TimedRuns:
    """The timed runs of a model; the fastest one is kept whole."""

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
        """Warm up, then run with timers and, up to `plain` times in between, without them."""
        self._warmup = warmup
        for _ in range(warmup):
            self._run_plain()
        for number in range(repeats):
            if number < plain:
                self._plain_cpu_ns.append(attribute_time(self._run_plain()).total_cpu_ns)
            spans = self._run_timed()
            self._charges.append(attribute_time(spans))
            if number == 0 or self._charges[-1].total_ns < self._charges[self._lowest].total_ns:
                self._lowest, self._spans = number, spans

    def timing(self) -> Timing:
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
        watch = stopwatch_for(self._clock, self._cpu)
        self._run.run(_StageTimer(watch))
        return watch.read()

    def _run_timed(self) -> tuple[Span, ...]:
        watch = stopwatch_for(self._clock, self._cpu)
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

    @uninterruptible
    def stage(self, name: Stage) -> Iterator[None]:
        span = self._watch.begin("stage", name)
        try:
            yield
        finally:
            self._watch.end(span)


class _StepTimer(_StageTimer):
    """Times the stages of a run with the modules, ops and nodes in them."""

    def __init__(self, watch: Stopwatch, run: IsolatedRun, *, ops: bool) -> None:
        super().__init__(watch)
        self.nodes = NodeTimer(watch)
        self._calls = ModuleTimer(watch, run.located, self.nodes.tag)
        self._ops = ops

    @uninterruptible
    def stage(self, name: Stage) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(observe_calls(self._calls))
            if self._ops:
                stack.enter_context(timing_ops(self._watch))
            stack.enter_context(super().stage(name))
            yield

    def before_backward(self, nodes: Sequence[Reached]) -> None:
        self.nodes.tag_nodes(nodes)
