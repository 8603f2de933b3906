"""The recorder of `tg.record` and `tg.inspect`: what module calls take in, return and cost.

    recorder = ModuleRecorder([model.named_modules()], RecordOptions())
    with observe_calls(recorder):
        model(x).sum().backward()
    recorder.close()

Tensors are read before and after a module runs, and none is kept alive. The clock is paused
meanwhile, so times exclude our own work. Nothing is put on the models. Hooks on autograd nodes,
which gradients and backward times need, are removed when the recorder is closed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchglass.capture.autograd import is_in_backward
from torchglass.capture.measure.devices import (
    DeviceTimer,
    StandingClock,
    gauge_for,
    timer_for,
)
from torchglass.capture.model.structure import class_name, modules_in, tensors_of
from torchglass.capture.module_calls import ModuleStack, observe_calls
from torchglass.capture.observe.backward import BackwardRecorder, GraphHooks
from torchglass.capture.observe.observed_call import Located, ModuleHistory, ObservedCall
from torchglass.capture.tensor.description import Args, Kwargs, named_tensors, tensors_of_call
from torchglass.capture.tensor_reader import StatisticsReader
from torchglass.capture.torch_internals import dispatch_mode_count, function_mode_count
from torchglass.capture.torch_modes import has_compiled, quietly
from torchglass.errors import (
    CaptureError,
    TargetError,
    deferred_signals,
    undo_reliably,
    uninterruptible,
)
from torchglass.records.calls import ForwardStats, Level, ModuleStatistics
from torchglass.records.model import join_path

_LEVELS = ("full", "cheap", "shapes")


class RecordOptions(NamedTuple):
    """What to record about module calls."""

    forward: bool = True
    """Inputs, outputs, time and memory of forwards."""
    backward: bool = True
    """Gradients, time and memory of backwards."""
    level: Level | None = "full"
    """How much of the tensors is read; None reads no tensors and no gradients."""
    memory: bool = True
    depth: int | None = None
    """How many levels below the model are observed; None is all."""
    keep: int = 100
    """How many calls of each module are kept."""
    copy_bytes: int = 0
    """Copies of tensors are kept up to this size."""
    recomputation: bool = True
    """Whether a recomputation counts for the original pass."""


Ended = Callable[[list[ForwardStats]], None]


@uninterruptible
def recording_statistics(
    target: object,
    *,
    level: Level = "full",
    keep: int = 100,
    budget_bytes: int = 0,
    ended: Ended | None = None,
) -> Iterator[ModuleRecorder]:
    """Record the calls of all modules in a model, a pipeline or a list, until the block ends.

    `ended` gets the calls of each forward pass, in the order in which they ended.
    """
    if level not in _LEVELS:
        raise CaptureError(f"level must be one of {', '.join(_LEVELS)}, not {level!r}")
    if keep < 1:
        raise CaptureError(f"keep must be 1 or more, not {keep}")
    if budget_bytes < 0:
        raise CaptureError(f"tensors must be True or a number of bytes, not {budget_bytes}")
    modules = modules_in(target)
    if not modules:
        raise TargetError(f"{type(target).__qualname__} is not a model; pass an nn.Module")
    recorder = statistics_recorder(modules, level=level, keep=keep, budget_bytes=budget_bytes)
    if ended is not None:
        recorder.call_ended = _PassReport(recorder, ended).add
    try:
        with observe_calls(recorder):
            yield recorder
    finally:
        undo_reliably(recorder.close)


def statistics_recorder(
    modules: Iterable[tuple[str, nn.Module]],
    *,
    level: Level = "full",
    keep: int = 100,
    budget_bytes: int = 0,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> ModuleRecorder:
    """A recorder of forwards only, for `tg.record`."""
    options = RecordOptions(
        backward=False,
        memory=False,
        recomputation=False,
        level=level,
        keep=keep,
        copy_bytes=budget_bytes,
    )
    return ModuleRecorder([modules], options, "some statistics were not recorded", clock=clock)


class _PassReport:
    """Reports the calls of a forward pass once its outermost call has ended."""

    def __init__(self, recorder: ModuleRecorder, ended: Ended) -> None:
        self._recorder = recorder
        self._ended = ended
        self._calls: list[ObservedCall] = []

    def add(self, call: ObservedCall) -> None:
        self._calls.append(call)
        if not self._recorder.running:
            calls, self._calls = self._calls, []
            self._recorder.finish_reading()
            self._ended([call.statistics() for call in calls])


class ModuleRecorder(ModuleStack[ObservedCall]):
    """Records the calls of the modules of several models, and of modules that they call."""

    def __init__(
        self,
        models: Sequence[Iterable[tuple[str, nn.Module]]],
        options: RecordOptions,
        lost: str = "some of the inspection was lost",
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        located = [list(modules) for modules in models]
        super().__init__([each for modules in located for each in modules], lost)
        self.options = options
        self.level: Level = options.level or "shapes"
        self.keep = options.keep
        self.passes = [0] * len(models)
        """How many forward passes each model has had."""
        self.histories: dict[tuple[int, str], ModuleHistory] = {}
        """By model and path, in the order of their first calls."""
        self.call_ended: Callable[[ObservedCall], None] | None = None
        """Called with each call that has ended."""
        self._paths = [{id(module): path for path, module in modules} for modules in located]
        """For each model the paths of its modules, by id."""
        self._known: dict[int, ModuleHistory] = {}
        self._clock = StandingClock(clock)
        self._reader = StatisticsReader(self.level, options.copy_bytes)
        # Without values and copies, all tensors of a kind are equal.
        is_quick = options.level == "shapes" and not options.copy_bytes
        self._read = self._reader.read_shape if is_quick else self._reader.read
        self._reads_tensors = options.forward and options.level is not None
        self._observe_rest([module for modules in located for module in modules])

    def _observe_rest(self, located: list[tuple[str, nn.Module]]) -> None:
        """Prepare what is recorded besides values: memory and backwards."""
        options = self.options
        has_devices = torch.accelerator.is_available() and options.level != "shapes"
        wants_tensors = has_devices or options.memory or options.backward
        tensors = tensors_of(located) if wants_tensors else []
        # A module has finished when its device has. Level "shapes" takes the time of the host.
        self._time_devices_of(tensors if has_devices else ())
        self._finds_devices = has_devices and not tensors
        # Compiled code runs differently below a dispatch mode.
        self.weighs = options.memory and not has_compiled(module for _, module in located)
        self._gauge = gauge_for(tensors, self._clock) if self.weighs else None
        self._watching = contextlib.ExitStack()
        reader = self._reader if options.level is not None else None
        self._backward = BackwardRecorder(
            self._clock, self._timer, reader, self._gauge, self._fence
        )
        self._graph = GraphHooks(self._backward, tensors) if options.backward else None
        has_rest = options.recomputation or options.memory or options.backward
        self._has_rest = has_rest

    @property
    def forward_count(self) -> int:
        """How many outermost calls there were."""
        return sum(self.passes)

    @property
    def left_out(self) -> int:
        """How many copies did not fit into the budget."""
        return self._reader.left_out

    @property
    def paths(self) -> list[str]:
        """The paths of called modules, in the order of their first calls."""
        return [path for _, path in self.histories]

    @property
    def gradient_bytes(self) -> Mapping[int, int]:
        """The sizes of the gradients of parameters when they arrived, by id of the parameter."""
        return self._backward.gradient_bytes

    def module(self, path: str) -> ModuleStatistics:
        return self.histories[0, path].statistics()

    def tensors(self, path: str) -> Iterator[tuple[int, str, torch.Tensor]]:
        """The copies that were kept of a module's tensors: number of the call, place, tensor."""
        for call in self.histories[0, path].kept:
            for place, tensor in call.tensors():
                yield call.number, place, tensor

    def rest(self) -> None:
        """The next node is unrelated to the last one."""
        if not is_in_backward():
            self._backward.rest()

    def finish_reading(self) -> None:
        """Complete the statistics and times of all calls, for which devices are waited for."""
        self._reader.finish()
        self._timer.settle()

    def close(self) -> None:
        """Release the models and all graphs, once no more calls are shown."""
        self._stop_watching()
        if self._graph is not None:
            with self._fence:
                self._backward.rest()
            undo_reliably(self._graph.close)
        self._backward.is_active = False
        with self._fence:
            self.finish_reading()
        self._reader.forget()
        self._located.clear()
        self._paths.clear()
        self._known.clear()
        self.running.clear()
        self.current = None

    def begin(self, module: nn.Module, args: Args, kwargs: Kwargs) -> ObservedCall | None:
        clock = self._clock
        began_ns = clock.raw()
        clock.depth += 1
        try:
            history = self._known.get(id(module)) or self._history(module)
            if history is None:
                return None
            parent = self.current
            if parent is None:
                call = self._outermost_call(history, args, kwargs)
            else:
                call = ObservedCall(history, parent, self.passes[history.model])
            timer = self._device_timer
            began = () if timer is None else timer.mark()
            if self._reads_tensors:
                if (
                    len(args) == 1
                    and type(args[0]) is Tensor
                    and not kwargs
                    and not function_mode_count()
                    and not dispatch_mode_count()
                ):
                    call.inputs = self._read(args[0])
                else:
                    call.inputs = self._read_all(tensors_of_call(args, kwargs))
            if self._has_rest:
                self._begin_rest(call, args, kwargs)
            if timer is not None:
                call.marks = began, timer.mark()
        finally:
            clock.depth -= 1
        call.start_ns = start_ns = clock.raw()
        clock.lost_ns = call.lost_ns = clock.lost_ns + start_ns - began_ns
        return call

    def end(self, call: ObservedCall, output: Any, error: BaseException | None) -> None:
        timer, clock = self._device_timer, self._clock
        ended = () if timer is None else timer.mark()
        end_ns = clock.raw()
        clock.depth += 1
        try:
            outer = self.current
            total_ns = end_ns - call.start_ns - (clock.lost_ns - call.lost_ns)
            call.total_ns = total_ns
            if error is not None:
                call.error = type(error).__name__
            if outer is not None and timer is None:
                outer.children_ns += total_ns
            node = None
            if self._has_rest:
                node = self._end_rest(call)
            if self._reads_tensors:
                if (
                    type(output) is Tensor
                    and not function_mode_count()
                    and not dispatch_mode_count()
                ):
                    call.outputs = self._read(output)
                else:
                    call.outputs = self._read_all(named_tensors(output))
            call.history.add(call)
            if self._graph is not None:
                self._graph.leave(call, outer, output)
            if timer is not None:
                call.time_on(timer, ended, node)
            if self.call_ended is not None:
                self.call_ended(call)
        finally:
            clock.depth -= 1
            clock.lost_ns += clock.raw() - end_ns

    def _begin_rest(self, call: ObservedCall, args: Args, kwargs: Kwargs) -> None:
        """Prepare for the backward and the memory of a call."""
        if self._graph is not None:
            self._graph.enter(call, tensors_of_call(args, kwargs))
        if self._gauge is not None:
            if not self.running:
                with deferred_signals():
                    self._watching.enter_context(self._gauge.watching())
            call.start_bytes = self._gauge.total_bytes

    def _end_rest(self, call: ObservedCall) -> ObservedCall | None:
        """Record the memory of a call. One that autograd recomputes counts for the backward.

        Returns the call whose node recomputes this one, for which it does not count.
        """
        node = None
        if not self.running:
            self._stop_watching()
            if call.recomputed:
                node = self._backward.running_owner()
        if call.recomputed and self._device_timer is None:
            if node is not None:
                node.charge_time(-call.total_ns)
            call.charge_time(call.self_ns)
        if self._gauge is not None and self.options.forward:
            call.added_bytes = self._gauge.total_bytes - call.start_bytes
        return node

    def _time_devices_of(self, tensors: Iterable[Tensor]) -> None:
        self._timer = timer_for(tensors, self._clock)
        self._device_timer = self._timer if isinstance(self._timer, DeviceTimer) else None

    def _stop_watching(self) -> None:
        with deferred_signals():
            undo_reliably(self._watching.close)

    def _outermost_call(self, history: ModuleHistory, args: Args, kwargs: Kwargs) -> ObservedCall:
        if self._finds_devices:
            # The model has no tensors of its own.
            self._finds_devices = False
            self._time_devices_of(tensor for _, tensor in tensors_of_call(args, kwargs))
            self._backward.timer = self._timer
        if self.options.recomputation and is_in_backward():
            return self._recomputed_call(history)
        self.passes[history.model] += 1
        if self._graph is not None:
            self._backward.rest()
        self._reader.forget()
        return ObservedCall(history, None, self.passes[history.model])

    def _recomputed_call(self, history: ModuleHistory) -> ObservedCall:
        """A call that a checkpoint repeats: it belongs to its caller in the forward."""
        before = history.latest_of_forward()
        if before is None:
            call = ObservedCall(history, None, self.passes[history.model])
        else:
            call = ObservedCall(history, before.parent, before.forward_pass)
        call.recomputed = True
        return call

    def _read_all(self, located: Iterable[tuple[str, torch.Tensor]]) -> Located:
        try:
            with quietly():
                return tuple((place, self._read(tensor)) for place, tensor in located)
        except Exception as problem:  # noqa: BLE001 - a call without its tensors is still a call
            self.missed(problem)
            return ()

    def _history(self, module: nn.Module) -> ModuleHistory | None:
        """The history of a module, or None if it is not observed.

        A module outside of all models is placed below its caller.
        """
        around = None if self.current is None else self.current.history
        holders = [model for model, paths in enumerate(self._paths) if id(module) in paths]
        if holders:
            model = around.model if around and around.model in holders else holders[0]
            path = self._paths[model][id(module)]
        elif around is not None:
            model, path = around.model, join_path(around.path, f"<{type(module).__name__}>")
        else:
            return None
        limit = self.options.depth
        if limit is not None and depth_of(path) > limit:
            return None
        history = self.histories.get((model, path))
        if history is None:
            kind = class_name(module).rpartition(".")[2]
            history = ModuleHistory(model, path, kind, self.finish_reading, self.options.keep)
            self.histories[model, path] = history
        if len(holders) == 1:
            self._known[id(module)] = history
        return history


def depth_of(path: str) -> int:
    """How many levels below the model a path is."""
    return path.count(".") + 1 if path else 0
