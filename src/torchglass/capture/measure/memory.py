"""Measures the memory of a step, or predicts it without running the step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.blocks import unbroken
from torchglass.capture.autograd import Reached, leaves_among
from torchglass.capture.fake_tensors import MOST_LSTM_WEIGHTS, lack_values
from torchglass.capture.isolated_run import (
    NO_BACKWARD,
    IsolatedRun,
    Loss,
    RunObserver,
    isolated_run,
    note_failures,
)
from torchglass.capture.measure.allocators import Meter, meters_for
from torchglass.capture.measure.memory_recorder import MemoryRecorder
from torchglass.capture.measure.optimizer_copy import Making, Twin, optimizer_named
from torchglass.capture.model.live_modules import modules_in, parameters_of, tensors_of
from torchglass.capture.restore_state import retried_with_gradients
from torchglass.errors import CaptureError
from torchglass.records.measures import AllocatorPeak, Footprint
from torchglass.records.model import Model
from torchglass.records.timing import Stage
from torchglass.records.trace import CallRecord

_ESTIMATED = "the workspace that an LSTM keeps for the backward is estimated from a few real steps"
_NO_WORKSPACE = (
    "the workspace that an LSTM keeps for the backward is not predicted: its weights are too large"
)
_SPARSE = "how much a sparse tensor takes hangs on its numbers, which a prediction does not have"
_COMPILED = "compiled modules were run as the Python that they were made of"
_LSTM = "mkldnn_rnn_layer"


class MeasuredMemory(NamedTuple):
    """A model, the shapes that went through it, and the memory that it took."""

    model: Model
    calls: tuple[CallRecord, ...]
    footprint: Footprint


@retried_with_gradients
def measure(
    target: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    backward: bool = True,
    optimizer: Making | None = None,
    loss: Loss | None = None,
    fake: bool = False,
    gradients: bool = False,
) -> MeasuredMemory:
    """Run a step of a model, and take down who takes which memory until when.

    A real step is run twice: with a look at all storages, and with the allocators' own meters on.
    """
    if optimizer is not None and not backward:
        raise CaptureError("an optimizer step needs gradients: use backward=True")
    if isinstance(optimizer, str):
        optimizer = optimizer_named(optimizer)
    located = modules_in(target)
    fake = fake or lack_values(tensors_of(located))
    users = parameters_of(module for _, module in located)
    with isolated_run(
        target, args, kwargs, backward=backward, loss=loss, gradients=gradients, fake=fake
    ) as run:
        # Those of a lazy model are the ones of its copy.
        users = users if run.target is target else parameters_of(run.modules)
        observer = MemoryObserver(run, optimizer, users)
        with observer:
            run.run(observer)
        footprint = observer.footprint()
        if not fake:
            allocations = _allocations(run, observer.twin)
            footprint = dataclasses.replace(footprint, allocations=allocations)
        return MeasuredMemory(run.read_model(), observer.calls, footprint)


def _allocations(run: IsolatedRun, twin: Twin | None) -> tuple[AllocatorPeak, ...]:
    """Run the step once more, and ask the allocators of its devices."""
    devices = {str(tensor.device) for tensor in run.tensors}
    last: Stage = "backward" if run.went_back else "loss" if run.backward else "forward"
    metered = _Metered(meters_for(devices or {"cpu"}), last, twin)
    torch.clear_autocast_cache()
    try:
        run.run(metered)
    finally:
        metered.stop()
        torch.clear_autocast_cache()
    return tuple(metered.allocations)


class MemoryObserver(RunObserver):
    """Logs the storages of a run; as a with-block it lets go of them at the end."""

    def __init__(
        self,
        run: IsolatedRun,
        optimizer: Making | None = None,
        users: Sequence[torch.Tensor] = (),
    ) -> None:
        """`users` are the parameters that the user's optimizer knows; the run may have fakes."""
        self._run = run
        self._optimizer = optimizer
        self._users = users
        self._recorder = MemoryRecorder(run.located, run.faking.fake if run.faking else None)
        self._leaves: list[torch.Tensor] = []
        self.calls: tuple[CallRecord, ...] = ()
        self.twin: Twin | None = None

    def __enter__(self) -> None:
        # Every step makes its own copies of weights in another dtype.
        torch.clear_autocast_cache()

    def __exit__(self, *_: object) -> None:
        torch.clear_autocast_cache()
        self._recorder.ledger.close()

    @unbroken
    def stage(self, name: Stage) -> Iterator[None]:
        """Log a stage; after the backward the gradients are known, and the optimizer steps."""
        with note_failures(self._recorder), self._recorder.watching(name):
            yield
        if name == "forward":
            self.calls = self._recorder.calls
            self._recorder.ledger.retain("output")
        elif name == "backward":
            self._own_gradients()
            if self._optimizer is not None:
                self._optimize(self._optimizer)

    def before_backward(self, nodes: Sequence[Reached]) -> None:
        """What is there now is there for the backward."""
        self._leaves = leaves_among(nodes)
        self._recorder.retain(nodes)

    def footprint(self) -> Footprint:
        """What the log says."""
        blocks, changes, parts = self._recorder.ledger.read()
        footprint = Footprint(
            blocks=blocks,
            changes=changes,
            parts=parts,
            optimizer=self.twin.name if self.twin else "",
            fake=self._run.faking is not None,
        )
        return dataclasses.replace(footprint, notes=tuple(self._notes(footprint)))

    def _notes(self, footprint: Footprint) -> Iterator[str]:
        run = self._run
        if run.backward and not run.went_back:
            yield NO_BACKWARD
        if footprint.fake:
            if run.went_back and any(block.op == _LSTM for block in footprint.blocks):
                large = any(
                    weight.nbytes > MOST_LSTM_WEIGHTS for weight in _lstm_weights(run.modules)
                )
                yield _NO_WORKSPACE if large else _ESTIMATED
            if self._recorder.has_sparse:
                yield _SPARSE
        if run.has_compiled:
            yield _COMPILED
        yield from run.notes

    def _own_gradients(self) -> None:
        for leaf in self._leaves:
            if leaf.grad is not None:
                path, name = self._recorder.slot_of(leaf)
                self._recorder.ledger.own(leaf.grad, "gradient", path, name)
        self._leaves = []

    def _optimize(self, making: Making) -> None:
        ledger = self._recorder.ledger
        twin = self.twin = Twin(making, parameters_of(self._run.modules), self._users)
        for copy, original in twin.copies:
            ledger.stand_in(copy, original)
        twin.take_gradients()
        with self._recorder.watching("optimizer"):
            twin.step()
        for tensor, original in twin.state():
            ledger.own(tensor, "optimizer", *self._recorder.slot_of(original))
        ledger.close()
        twin.drop_gradients()


def _lstm_weights(modules: Sequence[nn.Module]) -> list[torch.Tensor]:
    layers = (module for module in modules if isinstance(module, nn.LSTM))
    return [weight for layer in layers for weight in layer.parameters(recurse=False)]


class _Metered(RunObserver):
    """A step over which the allocators are asked, and nobody else looks on."""

    def __init__(self, meters: Sequence[Meter], last: Stage, twin: Twin | None) -> None:
        self._meters = meters
        self._last = last
        self._twin = twin
        self.allocations: list[AllocatorPeak] = []

    @unbroken
    def stage(self, name: Stage) -> Iterator[None]:
        """From when the inputs have been copied until before all is let go, the meters run."""
        if name == "forward":
            for meter in self._meters:
                meter.start()
        yield
        if name == self._last:
            if self._twin is not None:
                self._twin.take_gradients()
                self._twin.step()
                self._twin.drop_gradients()
            self.stop()

    def stop(self) -> None:
        """Read the meters that still run."""
        for meter in self._meters:
            found = meter.stop()
            if found is not None:
                self.allocations.append(found)
        self._meters = ()
