"""Measures the memory of a step, or predicts it without running the step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchglass.blocks import unbroken
from torchglass.capture.autograd import Reached, leaves_among
from torchglass.capture.fake_tensors import MOST_LSTM_WEIGHTS, Faking, has_fakes
from torchglass.capture.isolated_run import (
    NO_BACKWARD,
    Located,
    Loss,
    Step,
    Watcher,
    keeping_parameters,
    parameters_of,
    read_target,
    with_shapes,
)
from torchglass.capture.measure.allocators import Meter, meters_for
from torchglass.capture.measure.memory_recorder import MemoryRecorder
from torchglass.capture.measure.optimizer_copy import Making, Twin, optimizer_named
from torchglass.capture.nested_tensors import tensors_of_call
from torchglass.capture.restore_state import (
    Replace,
    has_compiled,
    keeping_modules,
    retried_with_gradients,
    running_uncompiled,
)
from torchglass.capture.torch_internals import replace_flat_weights, tree_map_only
from torchglass.capture.trial_forward import modules_in, note_where, tensors_of
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

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Measured(NamedTuple):
    """A model, the shapes that went through it, and the memory that it took."""

    model: Model
    calls: tuple[CallRecord, ...]
    footprint: Footprint


class _Plan(NamedTuple):
    """What a step is to be."""

    target: Any
    located: Located
    backward: bool
    loss: Loss | None
    optimizer: Making | None
    gradients: bool
    """Whether a forward alone runs as in training, too."""

    @property
    def modules(self) -> list[nn.Module]:
        """The modules of the model."""
        return [module for _, module in self.located]

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters that they hold now; for a while those may be fakes."""
        return parameters_of(self.modules)


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
) -> Measured:
    """Run a step of a model, and take down who takes which memory until when."""
    if optimizer is not None and not backward:
        raise CaptureError("an optimizer step needs gradients: use backward=True")
    if isinstance(optimizer, str):
        optimizer = optimizer_named(optimizer)
    arguments = args, dict(kwargs)
    tensors = tensors_of(modules_in(target))
    fake = fake or has_fakes(tensors) or any(tensor.is_meta for tensor in tensors)
    if fake and any(map(is_lazy, tensors)):
        raise CaptureError("lazy modules take their shapes from real tensors; try fake=False")
    target, located = with_shapes(target, args, kwargs)
    plan = _Plan(target, located, backward, loss, optimizer, gradients)
    modules = plan.modules
    with keeping_parameters(modules) as left_out, running_uncompiled():
        calls, footprint = _predicted(plan, arguments) if fake else _taken(plan, arguments)
    notes = [*footprint.notes]
    notes += [_COMPILED] if has_compiled(modules) else []
    notes += left_out
    return Measured(
        read_target(target, modules), calls, dataclasses.replace(footprint, notes=tuple(notes))
    )


def _taken(plan: _Plan, arguments: Arguments) -> tuple[tuple[CallRecord, ...], Footprint]:
    """Run the step twice: with a look at all storages, and with the allocators' own meters on."""
    args, kwargs = arguments
    inputs = [tensor for _, tensor in tensors_of_call(args, kwargs)]
    devices = {str(tensor.device) for tensor in (*tensors_of(plan.located), *inputs)}
    seen = _Seen(plan, plan.parameters)
    seen.run(arguments)
    last: Stage = "backward" if seen.went_back else "loss" if plan.backward else "forward"
    metered = _Metered(meters_for(devices or {"cpu"}), last, seen.twin)
    try:
        _run(plan, arguments, metered)
    finally:
        metered.stop()
    footprint = dataclasses.replace(seen.footprint(), allocations=tuple(metered.allocations))
    return seen.calls, footprint


def _predicted(plan: _Plan, arguments: Arguments) -> tuple[tuple[CallRecord, ...], Footprint]:
    """Run the step once, on tensors that hold nothing."""
    modules = plan.modules
    faking = Faking(tensors_of(plan.located), plan.located)
    users = plan.parameters
    with (
        keeping_modules(modules, {"_parameters": faking.fake, "_buffers": faking.fake}),
        faking.running(),
    ):
        for module in modules:
            if isinstance(module, nn.RNNBase):
                # It reaches its weights through a list of its own.
                replace_flat_weights(module, faking.fake)
        seen = _Seen(plan, users, faking.fake)
        seen.run(tree_map_only(torch.Tensor, faking.fake, arguments))
    footprint = seen.footprint()
    notes = [*footprint.notes]
    if seen.went_back and any(block.op == _LSTM for block in footprint.blocks):
        large = any(weight.nbytes > MOST_LSTM_WEIGHTS for weight in _lstm_weights(modules))
        notes.append(_NO_WORKSPACE if large else _ESTIMATED)
    if seen.has_sparse:
        notes.append(_SPARSE)
    return seen.calls, dataclasses.replace(footprint, fake=True, notes=tuple(notes))


def _lstm_weights(modules: Sequence[nn.Module]) -> list[torch.Tensor]:
    layers = (module for module in modules if isinstance(module, nn.LSTM))
    return [weight for layer in layers for weight in layer.parameters(recurse=False)]


def _run(plan: _Plan, arguments: Arguments, watcher: Watcher) -> None:
    step = Step(
        plan.target,
        plan.modules,
        *arguments,
        backward=plan.backward,
        loss=plan.loss,
        gradients=plan.gradients,
    )
    with _own_autocast_cache():
        step.run(watcher)


@unbroken
def _own_autocast_cache() -> Iterator[None]:
    """Let a step make its own copies of weights in another dtype, as every step does."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


class _Seen:
    """A step of which a ledger is kept."""

    def __init__(
        self, plan: _Plan, users: Sequence[torch.Tensor], fake: Replace | None = None
    ) -> None:
        self._plan = plan
        self._users = users
        self._recorder = MemoryRecorder(plan.located, fake)
        self._leaves: list[torch.Tensor] = []
        self.went_back = False
        self.calls: tuple[CallRecord, ...] = ()
        self.twin: Twin | None = None

    @property
    def has_sparse(self) -> bool:
        """Whether a kernel gave a sparse tensor."""
        return self._recorder.has_sparse

    def run(self, arguments: Arguments) -> None:
        """Run the step; what it raises passes through."""
        try:
            _run(self._plan, arguments, self)
        except Exception as error:
            note_where(error, self._recorder)
            raise
        finally:
            self._recorder.ledger.close()

    @unbroken
    def stage(self, name: Stage) -> Iterator[None]:
        """Watch a stage; after the backward the gradients are known, and the optimizer steps."""
        with self._recorder.watching(name):
            yield
        if name == "forward":
            self.calls = self._recorder.calls
            self._recorder.ledger.retain("output")
        elif name == "backward":
            self.went_back = True
            self._own_gradients()
            if self._plan.optimizer is not None:
                self._optimize(self._plan.optimizer)

    def before_backward(self, nodes: Sequence[Reached]) -> None:
        """What is there now is there for the backward."""
        self._leaves = leaves_among(nodes)
        self._recorder.retain(nodes)

    def footprint(self) -> Footprint:
        """What the ledger says."""
        blocks, changes, parts = self._recorder.ledger.read()
        without = self._plan.backward and not self.went_back
        return Footprint(
            blocks=blocks,
            changes=changes,
            parts=parts,
            optimizer=self.twin.name if self.twin else "",
            notes=(NO_BACKWARD,) if without else (),
        )

    def _own_gradients(self) -> None:
        for leaf in self._leaves:
            if leaf.grad is not None:
                path, name = self._recorder.slot_of(leaf)
                self._recorder.ledger.own(leaf.grad, "gradient", path, name)
        self._leaves = []

    def _optimize(self, making: Making) -> None:
        ledger = self._recorder.ledger
        twin = self.twin = Twin(making, self._plan.parameters, self._users)
        for copy, original in twin.copies:
            ledger.stand_in(copy, original)
        twin.take_gradients()
        with self._recorder.watching("optimizer"):
            twin.step()
        for tensor, original in twin.state():
            ledger.own(tensor, "optimizer", *self._recorder.slot_of(original))
        ledger.close()
        twin.drop_gradients()


class _Metered:
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

    def before_backward(self, nodes: Sequence[Reached]) -> None:
        """Nobody looks."""

    def stop(self) -> None:
        """Read the meters that still run."""
        for meter in self._meters:
            found = meter.stop()
            if found is not None:
                self.allocations.append(found)
        self._meters = ()
