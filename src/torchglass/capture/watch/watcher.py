"""A training watched step by step, with nothing put on the model.

    with Watcher(model, sink) as watcher:
        for inputs, targets in batches:
            loss = criterion(model(inputs), targets)
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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, SupportsIndex, final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchglass.blocks import collector_paused, deferred_signals, undo_reliably
from torchglass.capture.model.structure import read_model
from torchglass.capture.tensor.description import Args, Kwargs
from torchglass.capture.tensor_reader import HistogramReader
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
from torchglass.errors import Fence
from torchglass.records.findings import Finding
from torchglass.records.model import Model
from torchglass.records.reader import Sink
from torchglass.records.run import Ending, status_of_ending
from torchglass.records.series import Frame, Point, SeriesId


class Listener(Protocol):
    """Who is told what happens to a training."""

    def found(self, findings: Sequence[Finding]) -> None:
        """A step has shown new problems; these are all of them."""

    def ended(self, ending: Ending, steps: int, findings: Sequence[Finding]) -> None:
        """The run was closed after so many steps."""


_watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()


@final
class Watcher:
    """Records what flows, the weights, the gradients and what is logged, until it is closed.

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
        self._sink, self._options = sink, options
        self._model = weakref.ref(model)
        self._reader = HistogramReader(
            bins=options.bins, sample_n=options.sample_n, zeros="stats" in options.log
        )
        self._weights = Weights(model, self._reader, options)
        self._steps = Steps(options.log_freq, options.unit, self._put_frame, start=start)
        record = self._record = read_model(model)
        facts = self._facts = FactsRecorder(model)
        graphs = self._graphs = PassGraphs(model, record, sink.put_document, facts.see_trace)
        self._flow = FlowRecorder(model, self, self._reader, options.log, graphs, facts)
        self._scaling = GradientScale(options.scaler)
        self._has_looked = False
        self._running: set[int] = set()
        """The backwards that have begun and not ended."""
        self._pictures = Pictures()
        self._problems = TrainingProblems(facts, self._model_record)
        self._origin = NonFiniteOrigin(model, self._found_origin) if options.guard else None
        self._fence = Fence("some values were not recorded")
        self._safely = LockedFence(self)
        self._idle = IdleFlush(self._write_if_idle)
        self._other_optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """Optimizers that train none of the weights."""
        self._undo = contextlib.ExitStack()
        # Who keeps neither watcher nor model has nobody else to close the file.
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
        """Keep a number of this step, such as the loss; one on another device is fetched later.

        It belongs to the step whose forward was seen last. Before the first forward of a step it
        belongs to the step that follows, if the first number was logged before the first step of an
        optimizer, and otherwise to the step before.
        """
        with self._safely:
            number = logged_number(name, value)
            if not self._steps.is_paused:
                self._steps.log(SeriesName("", str(name)), number)
        # Here and not in a function: an error of ours must not get out of the fence above.
        error, self._on_finding.pending = self._on_finding.pending, None
        if error is not None:
            raise error

    def step(self, number: SupportsIndex | None = None) -> None:
        """End the current step, in loops that know better when that is; `number` is the step's own.

        From then on neither optimizers nor backwards end steps. Without an optimizer, this is when
        weights are measured.
        """
        with self._safely:
            values = self._steps.end_by_hand(None if number is None else step_number(number))
            if self._steps.is_recorded and not self._steps.has_measured:
                self._read_all_gradients(values)
                self._weights.read_values(self._weights.all, values)
            self._steps.advance()
        # Here and not in a function: an error of ours must not get out of the fence above.
        error, self._on_finding.pending = self._on_finding.pending, None
        if error is not None:
            raise error

    def begin_step(self, number: int) -> None:
        """Say which step begins, in loops that also call `step(number)` when it ends."""
        with self._safely:
            self._steps.begin_by_hand(number)

    def write_step(self, *, incomplete: bool = False) -> None:
        """Write the current step now if its update is over, or however far it is."""
        with self._safely:
            # The frames of ranks are added up in the order in which they come: each step has one.
            if self._options.adds_up_ranks or self._flow.is_in_pass:
                return
            if self._steps.is_over or (incomplete and self._steps.has_begun()):
                self._steps.write()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong with the training as far as it has been recorded, causes first."""
        with self._safely:
            self._problems.conclude()
        return self._problems.findings

    def pause(self) -> None:
        """Record nothing until `resume`; steps are still counted."""
        self._steps.is_paused = True

    def resume(self) -> None:
        """Go on after `pause`."""
        self._steps.is_paused = False

    def close(self) -> None:
        """Take everything off again, and close the sink with what was seen until now.

        In an `except` or `finally` clause, and at the end of a program that an exception ended, the
        run keeps that exception as the reason of its end.
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
            # Ctrl-C, at which all the more nothing must stay.
            self._close(error)
            raise

    def __repr__(self) -> str:
        model = self._model()
        name = "a model that is gone" if model is None else type(model).__name__
        where = "in memory" if self.path is None else f"in {self.path}"
        return f"<watcher of {name}: at step {self._steps.number}, recorded {where}>"

    def _repr_html_(self) -> str | None:
        """The page of the run, as a notebook shows it."""
        return self._page() if self._page is not None else None

    def begin(self, *, training: bool) -> StepValues | None:
        """A pass through the model begins: where it is to be recorded, None if it is not."""
        self._idle.stop()
        with self._safely.lock:
            is_asked = self._users_clock is not None and self._users_clock.is_asked
            if is_asked or (self._origin is not None and self._origin.is_rerunning):
                return None
            self._running.clear()
            if self._steps.is_updating:
                # One that raised has not told that it is over.
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
        if self._origin is not None:
            self._origin.begin_pass(args, kwargs)

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
        """The step of the pass that is going on."""
        return self._steps.number_of_pass

    def wants_backward(self) -> bool:
        """Whether backwards are to be heard of because they may be what ends a step."""
        is_asked = self._users_clock is not None and self._users_clock.is_asked
        return self._steps.unit != "optimizer" and not self._steps.by_hand and not is_asked

    def gradient_factor(self) -> float:
        """What undoes the scale that a `GradScaler` has put on gradients."""
        self._look_around()
        return self._scaling.factor()

    def are_gradients_scaled(self) -> bool:
        """Whether a `GradScaler` has scaled the gradients of the running backward."""
        self._look_around()
        return self._scaling.is_on

    def values_of_gradient(self, values: StepValues) -> StepValues | None:
        """Where the gradient of a pass is recorded, whose own values are these."""
        return self._steps.values_of_gradient(values)

    def backward_begun(self) -> None:
        """The first gradient of a backward has come: be told when the last one has."""
        if self.wants_backward():
            self._steps.backward_begun()
            backward = current_backward()
            self._running.add(backward)
            queue_callback(lambda: self._backward_ended(backward))

    def changed(self, model: nn.Module) -> None:
        """The model has other modules or parameters than before."""
        self._weights.refresh(model)
        self._other_optimizers.clear()
        self._record = read_model(model)
        self._sink.put_model(self._record)

    def picture(self, place: SeriesName, output: Tensor) -> None:
        """A module of a recorded pass put out a tensor."""
        self._pictures.take(place.path, place.name, self._steps.number_of_pass, output)

    def miss(self, problem: Exception) -> None:
        """Something could not be recorded: a warning, if it is new; the training goes on."""
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
        """Look at the whole training once more."""
        self._sink.put_document(self._facts.record())
        if self._problems.conclude(status_of_ending(ending)):
            self._put_findings()

    def _ending(self, error: BaseException | None) -> Ending:
        step = self._steps.number_of_pass
        if error is not None and self._steps.is_between:
            step += self._last_update.is_before(error.__traceback__)
        return ending_of(error, step)

    def go_quiet(self) -> None:
        """Record nothing any more in this process, a forked child whose parent records on.

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
        # The global hooks keep the watcher alive, and it the weights: not beyond the model's life.
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
            self._graphs.close()
            self._put_pictures()
        undo_reliably(self._flow.let_go)
        undo_reliably(self._undo.close)

    def _before_update(
        self, optimizer: Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        if torch.compiler.is_compiling():
            return
        with self._safely, collector_paused():
            if optimizers.is_within_own(optimizer) or not self._trains_ours(optimizer):
                return
            self._idle.stop()
            self._follow_thread()
            self._look_around()
            # Beforehand, as the histograms of all that was read are made when a step ends.
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
                    # Some optimizers are handed the scale, and undo it as they step.
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
        if torch.compiler.is_compiling():
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
        # A backward inside of another, as a checkpoint makes one, ends nothing.
        if self._running:
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
        """All of a step has been seen, and it may be long until another one ends it."""
        # The frames of ranks are added up in the order in which they come: each step has one.
        if not self._options.adds_up_ranks:
            self._idle.start()

    def _write_if_idle(self) -> None:
        """Show a step to whoever looks, although nothing has come yet that ends it."""
        with self._safely:
            if not self._flow.is_in_pass:
                self._steps.write()

    def _look_around(self) -> None:
        """Find the optimizers and the gradient scaler of the training, once."""
        if not self._has_looked:
            self._has_looked = True
            living = find_optimizers(self._weights.are_in)
            self._steps.learn(living.optimizers)
            self._facts.learn(living.optimizers)
            self._scaling.learn(living.scalers)

    def _trains_ours(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer trains weights of the model, which may be new ones."""
        if self._weights.are_in(optimizer):
            return True
        if optimizer not in self._other_optimizers:
            self._learn_weights()
            if self._weights.are_in(optimizer):
                return True
            self._other_optimizers.add(optimizer)
        return False

    def _learn_weights(self) -> None:
        """Look again which parameters there are: some may have been replaced."""
        model = self._model()
        if model is not None and not self._weights.are_of(model):
            self.changed(model)

    def _follow_thread(self) -> None:
        """Look at the calls of the thread that trains, wherever `watch` was called."""
        if self._flow.thread != threading.get_ident():
            self._flow.close()
            self._flow.open()

    @collector_paused()
    def _put_frame(self, number: int, values: StepValues) -> None:
        self._flow.let_go()
        model = self._model()
        if self._users_clock is not None and model is not None:
            with self._safely:
                self._users_clock.tell(model, number, values)
        with quietly():
            self._reader.finish()
            values.add_derived(zeros="stats" in self._options.log)
            points = values.points(self._options.bins)
        if points:
            ids = {self._series(place, point): point for place, point in points.items()}
            self._sink.put_frame(Frame(step=number, time_ns=time.time_ns(), points=ids))
        has_changed = self._problems.look(number, values, points, self._flow.compiled)
        values.clear()
        if self._facts.is_new:
            self._sink.put_document(self._facts.record())
        self._put_pictures()
        if has_changed:
            self._put_findings()

    def _series(self, place: SeriesName, point: Point) -> SeriesId:
        return self._sink.series(*place, "scalar" if isinstance(point, float) else "histogram")

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
