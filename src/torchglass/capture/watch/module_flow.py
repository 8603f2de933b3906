"""What flows through the modules of a training, and its gradients.

Only the start and the end of a pass that is not recorded are observed. Gradient hooks are set after
a call has returned, so in-place operations work; gradients are those of the loss, over all uses of
a tensor.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn, strided

from torchglass.capture.autograd import (
    NO_BACKWARD,
    GradientHook,
    GradientReceiver,
    is_in_backward,
)
from torchglass.capture.histogram_reader import HistogramReader, HistogramReading
from torchglass.capture.module_calls import (
    ModuleStack,
    add_observer,
    intercept_calls,
    remove_observer,
)
from torchglass.capture.tensor.description import named_tensors, tensors_of_call
from torchglass.capture.tensor.device_reads import LateNumber, is_capturing
from torchglass.capture.torch_internals import (
    add_gradient_hook,
    current_backward,
    is_compiled,
    is_functorch_wrapped_tensor,
)
from torchglass.capture.torch_modes import is_overheard, quietly
from torchglass.capture.watch.activations import has_view, own_way
from torchglass.capture.watch.step_values import SeriesName, StepValues
from torchglass.errors import collect_as_usual, collect_less, undo_reliably
from torchglass.records.model import join_path

if TYPE_CHECKING:
    from torchglass.capture.trace.op_mode import OpEvent
    from torchglass.capture.watch.facts_recorder import FactsRecorder
    from torchglass.capture.watch.pass_graphs import PassGraphs
    from torchglass.capture.watch.watcher import Watcher


class TensorSeries:
    """The names of the series of a tensor at a call."""

    __slots__ = ("gradient", "norms", "value")

    def __init__(self, path: str, name: str) -> None:
        self.value = SeriesName(path, name)
        self.gradient = SeriesName(path, f"{name}.grad")
        self.norms = SeriesName(path, f"{name}.grad_norm")


class SeriesGradientHook(GradientHook):
    """The gradient of a tensor of one step, and every series that it belongs to."""

    __slots__ = ("_others", "_series", "values")

    def __init__(
        self,
        receiver: weakref.ref[GradientReceiver],
        values: StepValues,
        series: TensorSeries,
        tensor: Tensor,
        version: int,
    ) -> None:
        super().__init__(receiver, tensor, version)
        self.values = values
        self._series = series
        self._others: tuple[TensorSeries, ...] = ()

    @property
    def every_series(self) -> tuple[TensorSeries, ...]:
        """The series that the tensor belongs to."""
        return (self._series, *self._others)

    def add(self, series: TensorSeries) -> None:
        """The tensor was seen in another series, or in the same one again."""
        if series is not self._series and series not in self._others:
            self._others += (series,)


def on_backward(receiver: weakref.ref[GradientReceiver]) -> Callable[[Tensor | None], None]:
    """What torch calls when the gradient of a pass's output is computed."""

    def notice(gradient: Tensor | None) -> None:
        here = receiver()
        if here is not None:
            try:
                here.notice_backward()
            except Exception as problem:  # noqa: BLE001 - no error of ours may stop a backward
                here.gradient_missed(problem)

    return notice


class _LatestTensor:
    """The tensor that was read last: the output of a module is most often the next one's input.

    It keeps the tensor alive, until the next one is read or the pass is over.
    """

    __slots__ = ("_hook", "_reading", "_storage", "_tensor", "_values", "_version")

    def __init__(
        self,
        tensor: Tensor,
        values: StepValues,
        reading: HistogramReading | None,
        hook: SeriesGradientHook,
    ) -> None:
        self._tensor = tensor
        self._storage = tensor.untyped_storage()
        self._version = tensor._version
        self._values = values
        self._reading = reading
        self._hook = hook

    def is_of(self, tensor: Tensor) -> bool:
        """Whether this is the tensor, and nothing has changed it."""
        return (
            tensor is self._tensor
            and tensor._version == self._version
            # Assigning to `tensor.data` does not change the version.
            and tensor.untyped_storage() is self._storage
            and tensor.requires_grad
        )

    def add(self, series: TensorSeries) -> None:
        """It belongs to another series, too."""
        self._values.put(series.value, self._reading)
        self._hook.add(series)


MOST_CALLS = 16
"""How many calls of one module in a pass have separate series; later calls share one."""

_ONE_ARGUMENT = ("0",)


class WatchedCall:
    """A call of a module, the same object in every pass, and the names of its series."""

    __slots__ = ("inner_depth", "input", "output", "path", "prefix")

    def __init__(self, path: str, prefix: str) -> None:
        self.path = path
        self.prefix = prefix
        self.inner_depth = 0
        self.input = TensorSeries(path, f"{prefix}input.0")
        """The series of its only argument."""
        self.output = TensorSeries(path, f"{prefix}output")


_UNRECORDED = WatchedCall("", "")
"""Every call outside of a recorded pass."""


class FlowRecorder(ModuleStack[WatchedCall]):
    """Observes the module calls of a training, and adds them to the values of their step."""

    def __init__(
        self,
        model: nn.Module,
        watcher: Watcher,
        reader: HistogramReader,
        log: frozenset[str],
        graphs: PassGraphs,
        facts: FactsRecorder,
    ) -> None:
        # The model may be freed while it is watched, so its modules are not kept here.
        super().__init__((), "some passes were not recorded")
        self._staying = contextlib.ExitStack()
        self._is_away = False
        """Whether the rest of the current pass is ignored."""
        self.compiled: dict[str, None] = {}
        """The paths of modules that ran compiled, whose internals are not visible."""
        self._here: weakref.ref[GradientReceiver] = weakref.ref(self)
        self._model = weakref.ref(model)
        self._paths = _paths(model)
        self._watcher = watcher
        self._reader = reader
        self._logs_values = "io" in log
        self._logs_gradients = "io_grad" in log
        self._logs_pictures = "activations" in log
        self._graphs = graphs
        self._facts = facts
        self._is_looked_at = False
        """Whether the pass is one of the few whose operations are measured."""
        self._is_traced = False
        self._start: int | None = None
        """The depth of the outermost call of the current pass."""
        self._values: StepValues | None = None
        self._last: StepValues | None = None
        self._is_again = False
        """Whether the pass is a recomputation in a backward."""
        self._training = True
        self._shape: list[tuple[int, str, tuple[str, ...]]] = []
        self._series: dict[tuple[str, str], TensorSeries] = {}
        self._calls: dict[tuple[str, int, bool], WatchedCall] = {}
        self._latest: _LatestTensor | None = None
        self._hooks: dict[int, SeriesGradientHook] = {}
        self._handles: list[Any] = []
        self._backward = NO_BACKWARD
        self._factor: float | LateNumber = 1.0
        self._is_scaled = False

    @property
    def is_in_pass(self) -> bool:
        """Whether a pass is running."""
        return self._start is not None

    def open(self) -> None:
        """Observe the calls of this thread from now on."""
        self.thread = threading.get_ident()
        self._staying.enter_context(intercept_calls())
        add_observer(self)

    def close(self) -> None:
        """Stop observing calls."""
        self._is_away = False
        undo_reliably(remove_observer, self)
        self._graphs.stop()
        self._staying.close()

    def begin(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> WatchedCall:
        """A call begins; the outermost call of the model begins a pass."""
        call = _UNRECORDED
        # The call goes on the stack in any case: the end of the outermost one ends the pass.
        try:
            if self._start is None and self._known_path(module) is not None:
                self._begin_pass(module, args, kwargs)
            if self._values is not None:
                path = self._paths.get(id(module))
                if path is None:
                    path = self.locate(module) or ""
                    if self._is_looked_at:
                        self._facts.called_stray(path, module)
                elif not module.training:
                    self._facts.called_in_eval(path)
                call = self._call_of(path)
                self._take_inputs(call, module, args, kwargs)
        except Exception as problem:  # noqa: BLE001 - see missed
            self.missed(problem)
        return call

    def end(self, call: WatchedCall, output: Any, error: BaseException | None) -> None:
        """A call returned or raised."""
        start = self._start
        if start is None:
            return
        try:
            if call is not _UNRECORDED and self._values is not None:
                self._take_outputs(call, output, error)
        except Exception as problem:  # noqa: BLE001 - see missed
            self.missed(problem)
        if len(self.running) <= start:
            self._end_of_pass(output, error)

    def missed(self, problem: Exception) -> None:
        """Our own errors must not stop a forward."""
        self._watcher.miss(problem)

    def let_go(self) -> None:
        """Forget the tensors of a finished step, and remove the hooks from those still alive."""
        collect_as_usual(self)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooks.clear()
        self._reader.forget()

    def attach(self, tensor: Tensor, module: nn.Module, name: str) -> Tensor:
        """Record an attached tensor under its own name in a module, if the pass is recorded."""
        try:
            series = self._attached_series(module, name)
            if series is None:
                return tensor
            way = own_way(tensor)
            if self._is_traced and (way is not tensor or has_view(tensor)):
                self._graphs.attached(series.value.name)
            with quietly():
                self._take(series, way)
        except Exception as problem:  # noqa: BLE001 - no error of ours may stop a forward
            self._watcher.miss(problem)
            return tensor
        return way

    def _attached_series(self, module: nn.Module, name: str) -> TensorSeries | None:
        path = self._paths.get(id(module))
        if path is None or self._values is None:
            return None
        # Autograd recomputes checkpoints in its own threads.
        if self.thread != threading.get_ident() and not is_in_backward():
            return None
        prefix = next((call.prefix for call in reversed(self.running) if call.path == path), "")
        return self._series_at(path, f"{prefix}{name!s}")

    def _begin_pass(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._start = len(self.running)
        self._numbers.clear()
        self._shape.clear()
        self._is_again = self.is_recomputation()
        self._is_traced = False
        if self._is_again:
            last = self._last
            self._values = last if last is not None and last.is_open else None
            return
        self._training = module.training
        self._values = self._watcher.begin(training=module.training)
        if module.training and module is self._model():
            self._watcher.begin_forward(args, kwargs)
        if self._values is not None:
            self._last = self._values
            collect_less(self)
            self._learn_modules()
            with quietly():
                inputs = list(tensors_of_call(args, kwargs))
                self._is_looked_at = self._facts.begin_pass(inputs, self._watcher.step_of_pass)
                if self._is_looked_at and inputs:
                    self._facts.probes.see_input(inputs[0][1], self._watcher.step_of_pass)
            self._is_traced = self._graphs.begin(
                training=module.training,
                arguments=tuple(place for place, _ in inputs),
                probe=self._see_op if self._is_looked_at else None,
                is_wanted=self._facts.wants_eval_trace(),
            )
        elif module is self._model():
            self._is_away = True
            remove_observer(self)

    def _learn_modules(self) -> None:
        """Read the modules again: some may have been added or removed."""
        model = self._model()
        paths = _paths(model) if model is not None else {}
        if paths != self._paths:
            self._paths = paths
            if model is not None:
                self._watcher.changed(model)

    def _end_of_pass(self, output: Any, error: BaseException | None) -> None:
        try:
            self._graphs.stop()
            if self._is_away:
                add_observer(self)
                self._is_away = False
            if not self._is_again:
                self._end(output, error)
        except Exception as problem:  # noqa: BLE001 - no error of ours may stop a forward
            self._watcher.miss(problem)
        finally:
            if self._is_away:
                self._is_away = False
                undo_reliably(add_observer, self)
            if self._values is not None:
                self._facts.called(self._numbers)
            self._start = None
            self._values = None
            self._is_looked_at = False
            self._latest = None
            self._graphs.stop()

    def _end(self, output: Any, error: BaseException | None) -> None:
        self._watcher.end()
        if self._training and error is None:
            self._watcher.end_forward(output)
        if self._values is not None:
            self._graphs.end(tuple(self._shape) if error is None else None)
            if self._is_looked_at:
                with quietly():
                    self._facts.probes.end_pass(output, self._watcher.step_of_pass)
        if self._training and self._watcher.wants_backward():
            with quietly():
                self._notice_backward_of(output)

    def _take_inputs(
        self,
        call: WatchedCall,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        path = call.path
        if is_compiled(module):
            self.compiled.setdefault(path)
        depth = len(self.running) - (self._start or 0)
        if len(args) == 1 and not kwargs and type(args[0]) is Tensor and not is_overheard():
            self._shape.append((depth, path, _ONE_ARGUMENT))
            self._take(call.input, args[0])
        else:
            with quietly():
                inputs = list(tensors_of_call(args, kwargs))
                self._shape.append((depth, path, tuple(place for place, _ in inputs)))
                for place, tensor in inputs:
                    self._take(self._series_at(path, f"{call.prefix}input.{place}"), tensor)
        if self._is_traced:
            call.inner_depth = self._graphs.enter(module, args, kwargs)

    def _take_outputs(self, call: WatchedCall, output: Any, error: BaseException | None) -> None:
        if self._is_traced:
            self._graphs.leave(call.inner_depth, output, error)
        if error is not None:
            return
        if type(output) is Tensor and not is_overheard():
            self._take_output(call.output, output)
        else:
            with quietly():
                for place, tensor in named_tensors(output):
                    name = join_path(f"{call.prefix}output", place)
                    self._take_output(self._series_at(call.path, name), tensor)

    def _see_op(self, event: OpEvent) -> None:
        path = self.running[-1].path if self.running else ""
        self._facts.probes.see(event, path, self._watcher.step_of_pass)

    def _take_output(self, series: TensorSeries, tensor: Tensor) -> None:
        self._take(series, tensor)
        if self._is_looked_at and not self._is_again:
            with quietly():
                self._facts.probes.see_output(tensor, series.value.path, self._watcher.step_of_pass)
        if self._logs_pictures and not self._is_again and not is_functorch_wrapped_tensor(tensor):
            self._watcher.picture(series.value, tensor)

    def _take(self, series: TensorSeries, tensor: Tensor) -> None:
        latest = self._latest
        if latest is not None and latest.is_of(tensor):
            latest.add(series)
            return
        self._latest = None
        values = self._values
        if values is None or is_functorch_wrapped_tensor(tensor):
            # Inside vmap or grad a tensor is a short-lived wrapper.
            return
        reading = hook = None
        if self._logs_values and not self._is_again:
            reading = self._reader.read(tensor)
            values.put(series.value, reading)
        if self._logs_gradients and tensor.requires_grad:
            hook = self._ask_for_gradient(series, tensor, values)
            if tensor.layout is strided and not tensor.is_nested:
                self._latest = _LatestTensor(tensor, values, reading, hook)

    def _ask_for_gradient(
        self, series: TensorSeries, tensor: Tensor, values: StepValues
    ) -> SeriesGradientHook:
        """Record the gradient when it arrives, once for all series of a tensor."""
        known = self._hooks.get(id(tensor))
        version = tensor._version
        if known is not None and known.is_of(tensor, version):
            known.add(series)
            return known
        hook = SeriesGradientHook(self._here, values, series, tensor, version)
        if tensor.is_leaf:
            # A leaf keeps its hooks forever; the hooks of other tensors are freed with the graph.
            self._handles.append(tensor.register_hook(hook))  # type: ignore[no-untyped-call]
        else:
            add_gradient_hook(tensor, hook)
        self._hooks[id(tensor)] = hook
        return hook

    def take_gradient(self, hook: SeriesGradientHook, gradient: Tensor) -> None:
        """Record the gradient of a tensor in its series."""
        self._begin_backward()
        where: StepValues | None = hook.values
        if not hook.values.is_open:
            where = self._watcher.values_of_gradient(hook.values)
        if where is None or is_functorch_wrapped_tensor(gradient):
            return
        if type(gradient) is Tensor and not is_overheard():
            reading = self._reader.read_once(gradient, norms=True)
        else:
            with quietly():
                reading = self._reader.read_once(gradient, norms=True)
        if reading is None:
            return
        reading.factor, reading.is_scaled = self._factor, self._is_scaled
        norms = reading.norms
        if norms is not None:
            norms.factor, norms.is_scaled = reading.factor, reading.is_scaled
        for series in hook.every_series:
            where.put(series.gradient, reading)
            where.put(series.norms, norms)

    def notice_backward(self) -> None:
        """A gradient of a pass's output has arrived."""
        self._begin_backward()

    def gradient_missed(self, problem: Exception) -> None:
        """A gradient could not be recorded."""
        self._watcher.miss(problem)

    def _notice_backward_of(self, output: Any) -> None:
        """Get notified of the backward of a pass's output."""
        for _, tensor in named_tensors(output):
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(on_backward(self._here))  # type: ignore[no-untyped-call]

    def _begin_backward(self) -> None:
        backward = current_backward()
        if backward != self._backward and not is_capturing():
            self._backward = backward
            self._factor = self._watcher.gradient_factor()
            self._is_scaled = self._watcher.are_gradients_scaled()
            self._watcher.backward_begun()
            self._facts.backward_begun(self._factor if self._is_scaled else None)

    def locate(self, module: nn.Module) -> str | None:
        """The path of a module; a module that is not in the model is below its caller."""
        path = self._known_path(module)
        return super().locate(module) if path is None else path

    def _known_path(self, module: nn.Module) -> str | None:
        path = self._paths.get(id(module))
        if path is None and type(module).__name__ == "OptimizedModule":
            # What `torch.compile` returns is a module around the one that was compiled.
            path = self._paths.get(id(module.__dict__["_modules"].get("_orig_mod")))
        return path

    def _call_of(self, path: str) -> WatchedCall:
        """The call that begins."""
        number = self.count(path)
        if number > MOST_CALLS:
            # Such calls share their series, and may run inside each other.
            return WatchedCall(path, _prefix(number, self._training))
        call = self._calls.get((path, number, self._training))
        if call is None:
            call = WatchedCall(path, _prefix(number, self._training))
            self._calls[path, number, self._training] = call
        return call

    def _series_at(self, path: str, name: str) -> TensorSeries:
        series = self._series.get((path, name))
        if series is None:
            series = self._series[path, name] = TensorSeries(path, name)
        return series


def _paths(model: nn.Module) -> dict[int, str]:
    return {id(module): path for path, module in model.named_modules()}


def _prefix(number: int, training: bool) -> str:
    """The prefix of the names of a call's series: empty for the first call in training mode."""
    which = "" if number == 1 else f"{number}:" if number <= MOST_CALLS else "more:"
    return which if training else f"eval:{which}"
