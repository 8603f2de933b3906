"""A training watched step by step, with nothing put on the model.

    with Watcher(model, sink) as watcher:
        for inputs, targets in batches:
            loss = criterion(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)

Gradients of parameters are read right before the update, as the optimizer gets them; parameters
right after it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, SupportsIndex, final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchglass.capture.histogram_reader import HistogramReader
from torchglass.capture.model.structure import read_model
from torchglass.capture.tensor.description import Args, Kwargs
from torchglass.capture.tensor.device_reads import LateNumber, is_capturing
from torchglass.capture.torch_internals import current_backward, queue_callback
from torchglass.capture.torch_modes import quietly
from torchglass.capture.watch import activations, optimizers
from torchglass.capture.watch.activations import Pictures
from torchglass.capture.watch.facts_recorder import FactsRecorder
from torchglass.capture.watch.module_flow import FlowRecorder
from torchglass.capture.watch.optimizers import GradientScale, Weights, find_optimizers
from torchglass.capture.watch.options import Options
from torchglass.capture.watch.pass_graphs import PassGraphs
from torchglass.capture.watch.run_end import (
    ErrorsSinceStart,
    IdleFlush,
    LastUpdate,
    LockedFence,
    ending_of,
)
from torchglass.capture.watch.step_values import (
    SeriesIds,
    SeriesName,
    StepValues,
    logged_number,
    step_number,
)
from torchglass.capture.watch.steps import StepClock, Steps, UserClock
from torchglass.capture.watch.training_problems import (
    FindingCallback,
    NonFiniteOrigin,
    TrainingProblems,
)
from torchglass.errors import Fence, collector_paused, deferred_signals, undo_reliably
from torchglass.records.findings import Finding
from torchglass.records.model import Model
from torchglass.records.run import Ending, Frame, Sink, status_of_ending


class Listener(Protocol):
    """Is notified of what happens in a training."""

    def found(self, findings: Sequence[Finding]) -> None:
        """A step showed new problems; the argument has all problems."""

    def ended(self, ending: Ending, steps: int, findings: Sequence[Finding]) -> None:
        """The run was closed after this many steps."""


class _UnwrittenFrame(NamedTuple):
    """A step that is over."""

    number: int
    time_ns: int
    values: StepValues
    copies: int
    """It is complete once this many copies have arrived from devices."""


_watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
_GONE = (
    "the watched model no longer exists, so its training is not recorded; keep a reference to it: "
    "parts = nn.ModuleList([a, b]), then tg.watch(parts)"
)


@final
class Watcher:
    """Records activations, weights, gradients and logged values until it is closed.

    Weights that no optimizer trains are measured in the first step only.
    """

    def __init__(
        self,
        model: nn.Module,
        sink: Sink,
        options: Options | None = None,
        *,
        start: int = 0,
        path: Path | None = None,
        page: Callable[[], str] | None = None,
        listener: Listener | None = None,
        on_finding: Callable[[Finding], object] | None = None,
    ) -> None:
        options = options or Options()
        self.path, self._page = path, page
        self._listener, self._on_finding = listener, FindingCallback(on_finding)
        self._errors = ErrorsSinceStart()
        self._last_update = LastUpdate()
        self._clock = StepClock() if options.logs_times else None
        self._users_clock = UserClock(*options.time_log) if options.time_log else None
        self._sink, self._options, self._model = sink, options, weakref.ref(model)
        self._reader = HistogramReader(
            bins=options.bins, sample_n=options.sample_n, zeros="stats" in options.log
        )
        self._unwritten: deque[_UnwrittenFrame] = deque()
        self._ids = SeriesIds(sink)
        self._weights = Weights(model, self._reader, options)
        self._steps = Steps(options.log_freq, options.unit, self._put_frame, start=start)
        record = self._record = read_model(model)
        facts = self._facts = FactsRecorder(model, self._reader.reads)
        graphs = self._graphs = PassGraphs(model, record, sink.put_document, facts.see_trace)
        self._flow = FlowRecorder(model, self, self._reader, options.log, graphs, facts)
        self._scaling = GradientScale(options.scaler, self._reader.reads)
        self._has_looked = False
        self._running: set[int] = set()
        """The backwards in progress."""
        self._pictures = Pictures(self._reader.reads)
        self._problems = TrainingProblems(facts, self._model_record)
        self._origin = NonFiniteOrigin(model, self._found_origin) if options.guard else None
        self._fence = Fence("some values were not recorded")
        self._safely = LockedFence(self)
        self._idle = IdleFlush(self._write_if_idle)
        self._other_optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """Optimizers that train none of the weights."""
        self._undo = contextlib.ExitStack()
        # If the user keeps neither watcher nor model, nothing else closes the file.
        self._close_sink = weakref.finalize(self, undo_reliably, sink.close)
        self._close_sink.atexit = False
        sink.put_model(record)
        try:
            with deferred_signals():
                self._attach(model)
        except BaseException:
            with deferred_signals():
                self._undo.close()
            raise

    def log(self, name: str, value: float | Tensor) -> None:
        """Log a number of this step, such as the loss; a number on another device is fetched later.

        It belongs to the step of the latest forward. Before the first forward of a step it belongs
        to the next step if your first number was logged before the first optimizer step, and
        otherwise to the previous step.
        """
        with self._safely:
            if is_capturing():
                return
            number = logged_number(name, value, self._reader.reads)
            if not self._steps.is_paused:
                self._steps.log(SeriesName("", str(name)), number)
            if self._model() is None and self._close_sink.alive:
                self.miss(ReferenceError(_GONE))
        # Not in a function: our own errors must not leave the fence above.
        error, self._on_finding.pending = self._on_finding.pending, None
        if error is not None:
            raise error

    def step(self, number: SupportsIndex | None = None) -> None:
        """End the current step yourself; `number` is its number.

        From then on neither optimizers nor backwards end steps. Without an optimizer, weights are
        measured here.
        """
        with self._safely:
            if is_capturing():
                return
            values = self._steps.end_by_hand(None if number is None else step_number(number))
            if self._steps.is_recorded and not self._steps.has_measured:
                self._read_all_gradients(values)
                self._weights.read_values(self._weights.all, values)
            self._steps.advance()
        # Not in a function: our own errors must not leave the fence above.
        error, self._on_finding.pending = self._on_finding.pending, None
        if error is not None:
            raise error

    def begin_step(self, number: int) -> None:
        """Say which step begins, in loops that also call `step(number)` when it ends."""
        with self._safely:
            self._steps.begin_by_hand(number)

    def write_step(self, *, incomplete: bool = False) -> None:
        """Write the current step now, complete or not."""
        with self._safely:
            # Frames of ranks are added up in the order of arrival, so each step has one.
            if self._options.adds_up_ranks or self._flow.is_in_pass:
                return
            if self._steps.is_over or (incomplete and self._steps.has_begun()):
                self._steps.write()
            self._write_frames(wait=True)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The problems of the training so far, causes first."""
        with self._safely:
            self._write_frames(wait=True)
            self._problems.conclude()
        return self._problems.findings

    def pause(self) -> None:
        """Record nothing until `resume`; steps are still counted."""
        self._steps.is_paused = True

    def resume(self) -> None:
        """Continue after `pause`."""
        self._steps.is_paused = False

    def close(self) -> None:
        """Stop watching, and close the run.

        In an `except` or `finally` clause, and at the end of a program that an exception ended, the
        run records that exception as the reason.
        """
        undo_reliably(self._close, self._errors.current())

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            undo_reliably(self._close, error)
        except BaseException:
            # Also on Ctrl-C, nothing must stay behind.
            self._close(error)
            raise

    def __repr__(self) -> str:
        model = self._model()
        name = "a deleted model" if model is None else type(model).__name__
        where = "in memory" if self.path is None else f"in {self.path}"
        return f"<watcher of {name}: at step {self._steps.number}, recorded {where}>"

    def _repr_html_(self) -> str | None:
        """The page of the run, as a notebook shows it."""
        return self._page() if self._page is not None else None

    def begin(self, *, training: bool) -> StepValues | None:
        """A pass through the model begins; returns where to record it, or None."""
        self._idle.stop()
        if is_capturing():
            return None
        with self._safely.lock:
            is_asked = self._users_clock is not None and self._users_clock.is_asked
            if is_asked or (self._origin is not None and self._origin.is_rerunning):
                return None
            self._running.clear()
            if self._steps.is_updating:
                # A backward that raised has not reported its end.
                self._steps.is_updating = optimizers.is_any_under_way()
            self._facts.begin_forward(training=training)
            values = self._steps.begin_pass(training=training)
            if values is not None:
                self._learn_weights()
        if self._clock is not None:
            self._clock.begin_pass(values if training else None)
        return values

    def begin_forward(self, args: Args, kwargs: Kwargs) -> None:
        """The forward of a pass in training begins, recorded or not."""
        if is_capturing():
            return
        step, is_recorded = self._steps.number_of_pass, self._steps.is_recorded
        self._facts.see_batch(args, kwargs, step, is_recorded=is_recorded)
        if self._origin is not None:
            self._origin.begin_pass(args, kwargs, is_recorded=is_recorded)

    def end_forward(self, output: Any) -> None:
        """The forward of a pass in training has returned."""
        if self._origin is not None:
            self._origin.end_pass(output)

    def end(self) -> None:
        """A pass through the model is over."""
        if self._clock is not None:
            self._clock.end_pass()

    @property
    def step_of_pass(self) -> int:
        """The step of the current pass."""
        return self._steps.number_of_pass

    def wants_backward(self) -> bool:
        """Whether backwards must be observed because they may end a step."""
        is_asked = self._users_clock is not None and self._users_clock.is_asked
        return self._steps.unit != "optimizer" and not self._steps.by_hand and not is_asked

    def gradient_factor(self) -> float | LateNumber:
        """The factor that undoes the scale of a `GradScaler`."""
        self._look_around()
        return self._scaling.factor()

    def are_gradients_scaled(self) -> bool:
        """Whether a `GradScaler` has scaled the gradients of the running backward."""
        self._look_around()
        return self._scaling.is_on

    def values_of_gradient(self, values: StepValues) -> StepValues | None:
        """Where to record the gradient of the pass with these values."""
        return self._steps.values_of_gradient(values)

    def backward_begun(self) -> None:
        """The first gradient of a backward has arrived: get notified of the last one."""
        if self.wants_backward():
            self._steps.backward_begun()
            backward = current_backward()
            self._running.add(backward)
            queue_callback(lambda: self._backward_ended(backward))

    def changed(self, model: nn.Module) -> None:
        """The modules or parameters of the model have changed."""
        self._weights.refresh(model)
        self._other_optimizers.clear()
        self._record = read_model(model)
        self._sink.put_model(self._record)

    def picture(self, place: SeriesName, output: Tensor) -> None:
        """A module of a recorded pass returned a tensor."""
        self._pictures.take(place.path, place.name, self._steps.number_of_pass, output)

    def miss(self, problem: Exception) -> None:
        """Something could not be recorded: warn if this is new; the training continues."""
        self._fence.caught(problem)

    def _close(self, error: BaseException | None) -> None:
        ending = Ending()
        with self._safely:
            ending = self._ending(error)
        with deferred_signals():
            undo_reliably(self._detach)
        if self._close_sink.alive:
            with self._safely:
                self._put_conclusion(ending)
                self._sink.put_document(ending)
            self._close_sink()
            with self._safely:
                if self._listener is not None:
                    self._listener.ended(ending, self._steps.taken, self._problems.findings)

    def _found_origin(self, finding: Finding) -> None:
        self._problems.add(finding, self._steps.number)

    def _put_conclusion(self, ending: Ending) -> None:
        """Run all rules on the whole training."""
        has_changed = self._problems.conclude(status_of_ending(ending))
        facts = self._problems.take_facts()
        if facts is not None:
            self._sink.put_document(facts)
        if has_changed:
            self._put_findings()

    def _ending(self, error: BaseException | None) -> Ending:
        step = self._steps.number_of_pass
        if error is not None and self._steps.is_between:
            step += self._last_update.is_before(error.__traceback__)
        return ending_of(error, step)

    def go_quiet(self) -> None:
        """Stop recording in this process, a forked child whose parent continues to record.

        A lock that another thread of the parent held when it forked is never released here.
        """
        self._safely = LockedFence(self)
        self._idle = IdleFlush(lambda: None)
        self._steps = Steps(1, None, lambda number, values: None)
        self._steps.is_paused = True
        self._listener = None

    def _attach(self, model: nn.Module) -> None:
        _watchers.add(self)
        undo: Callable[..., object] = partial(self._undo.callback, undo_reliably)  # type: ignore[call-arg]
        undo(self._weights.clear)
        if self._origin is not None:
            undo(self._origin.close)
        undo(register_optimizer_step_pre_hook(self._before_update).remove)
        undo(register_optimizer_step_post_hook(self._after_update).remove)
        undo(self._flow.close)
        self._flow.open()
        self._undo.enter_context(activations.listening(self._flow))
        # The global hooks keep the watcher and the weights alive, but must not outlive the model.
        undo(weakref.finalize(model, self._detach).detach)
        undo(atexit.unregister, self.close)
        atexit.register(self.close)

    def _detach(self) -> None:
        undo_reliably(self._idle.close)
        with self._safely:
            if self._steps.has_begun():
                self._steps.advance()
            if self._steps.has_begun():
                self._steps.advance()
        with self._safely:
            self._write_frames(wait=True)
        with self._safely:
            self._graphs.close()
            self._put_pictures()
        undo_reliably(self._flow.let_go)
        undo_reliably(self._undo.close)

    def _before_update(
        self, optimizer: Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        if torch.compiler.is_compiling() or is_capturing():
            return
        with self._safely, collector_paused():
            if optimizers.is_within_own(optimizer) or not self._trains_ours(optimizer):
                return
            self._idle.stop()
            if self._unwritten:
                self._write_frames()
            self._follow_thread()
            self._look_around()
            # Before the step ends, because that computes all histograms.
            self._scaling.settle(optimizer, self._steps.of_pass)
            values = self._steps.before_update(optimizer)
            if self._origin is not None:
                self._origin.before_update(optimizer, is_recorded=self._steps.is_recorded)
            if self._steps.is_recorded:
                if not self._weights.are_all_of(optimizer):
                    self._learn_weights()
                trained = self._weights.of(optimizer)
                self._facts.before_update(optimizer, trained, self._steps.number)
                self._weights.before_update(trained)
                if not optimizers.computes_gradients(args, kwargs):
                    # Some optimizers get the scale, and unscale as they step.
                    is_scaled = getattr(optimizer, "grad_scale", None) is not None
                    factor = self.gradient_factor() if is_scaled else 1.0
                    self._weights.read_gradients(trained, values, factor, is_scaled=is_scaled)
        # Here and not in a function: an error of ours must not get out of the fence above.
        error, self._on_finding.pending = self._on_finding.pending, None
        if error is not None:
            raise error

    def _after_update(
        self, optimizer: Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        if torch.compiler.is_compiling() or is_capturing():
            return
        with self._safely, collector_paused():
            if optimizers.is_within_own(optimizer) or not self._weights.are_in(optimizer):
                return
            values = self._steps.after_update(optimizer)
            self._last_update.note()
            self._facts.note_update(optimizer, self._steps.number)
            if self._clock is not None:
                self._clock.end_step(values)
            if self._steps.have_all_stepped and not self._steps.by_hand:
                self._rest()
            if values is None:
                return
            values.is_still = values.is_still is not False and optimizers.is_still(optimizer)
            trained = self._weights.of(optimizer)
            if optimizers.computes_gradients(args, kwargs):
                self._weights.read_gradients(trained, values)
            self._facts.after_update(self._steps.number)
            self._weights.after_update(trained, values)
            self._weights.read_values(trained, values)
            self._weights.read_still(self._steps.optimizers, values)
            self._weights.read_state(optimizer, values)

    def _read_all_gradients(self, values: StepValues) -> None:
        factor, is_scaled = self.gradient_factor(), self.are_gradients_scaled()
        self._weights.read_gradients(self._weights.all, values, factor, is_scaled=is_scaled)

    def _backward_ended(self, backward: int) -> None:
        self._running.discard(backward)
        # A nested backward, as in a checkpoint, ends nothing.
        if self._running or is_capturing():
            return
        with self._safely:
            self._look_around()
            values = self._steps.backward_ended()
            if values is None:
                return
            self._last_update.note()
            if self._steps.is_recorded:
                self._read_all_gradients(values)
                self._weights.read_values(self._weights.all, values)
            self._rest()

    def _rest(self) -> None:
        """A step is complete, but it may take long until the next one ends it."""
        # Frames of ranks are added up in the order of arrival, so each step has one.
        if not self._options.adds_up_ranks:
            self._idle.start()

    def _write_if_idle(self) -> bool:
        """Write a step that nothing has ended yet, so that views can show it.

        Returns whether a device has not delivered its values yet.
        """
        with self._safely:
            if not self._flow.is_in_pass:
                self._steps.write()
                self._write_frames()
        return bool(self._unwritten)

    def _look_around(self) -> None:
        """Find the optimizers and the gradient scaler of the training, once."""
        if not self._has_looked:
            self._has_looked = True
            living = find_optimizers(self._weights.are_in)
            self._steps.learn(living.optimizers)
            self._facts.learn(living.optimizers)
            self._scaling.learn(living.scalers)

    def _trains_ours(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer trains weights of the model, even new ones."""
        if self._weights.are_in(optimizer):
            return True
        if optimizer not in self._other_optimizers:
            self._learn_weights()
            if self._weights.are_in(optimizer):
                return True
            self._other_optimizers.add(optimizer)
            self._facts.learn_other(optimizer)
        return False

    def _learn_weights(self) -> None:
        """Read the parameters again: some may have been replaced."""
        model = self._model()
        if model is not None and not self._weights.are_of(model):
            self.changed(model)

    def _follow_thread(self) -> None:
        """Observe the calls of the training thread, wherever `watch` was called."""
        if self._flow.thread != threading.get_ident():
            self._flow.close()
            self._flow.open()

    @collector_paused()
    def _put_frame(self, number: int, values: StepValues) -> None:
        """A step is over: write it, once its values have arrived from the devices."""
        self._flow.let_go()
        model = self._model()
        if self._users_clock is not None and model is not None:
            with self._safely:
                self._users_clock.tell(model, number, values)
        with quietly():
            self._reader.send()
        self._unwritten.append(
            _UnwrittenFrame(number, time.time_ns(), values, self._reader.reads.sent)
        )
        self._write_frames()

    def _write_frames(self, *, wait: bool = False) -> None:
        """Write the steps whose values have arrived; with `wait`, all that are over."""
        with quietly():
            self._reader.reads.receive(wait=wait)
            self._reader.make_histograms()
        while self._unwritten and self._unwritten[0].copies <= self._reader.reads.received:
            self._write_frame(*self._unwritten.popleft()[:3])

    def _write_frame(self, number: int, time_ns: int, values: StepValues) -> None:
        points = values.points(self._options.bins, zeros="stats" in self._options.log)
        if points:
            by_id = self._ids.of(points)
            self._sink.put_frame(Frame(step=number, time_ns=time_ns, points=by_id))
        has_changed = self._problems.look(number, values, points, self._flow.compiled)
        values.clear()
        facts = self._problems.take_facts()
        if facts is not None:
            self._sink.put_document(facts)
        self._put_pictures()
        if has_changed:
            self._put_findings()

    def _put_findings(self) -> None:
        self._sink.put_document(self._problems.record())
        if self._listener is not None:
            self._listener.found(self._problems.findings)
        self._on_finding.tell(self._problems.findings)

    def _model_record(self) -> Model | None:
        model = self._model()
        return None if model is None else self._record

    def _put_pictures(self) -> None:
        document = self._pictures.document()
        if document is not None:
            self._sink.put_document(document)


def _go_quiet_in_child() -> None:
    for watcher in list(_watchers):
        watcher.go_quiet()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_go_quiet_in_child)
