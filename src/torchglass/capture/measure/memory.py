"""Measures the memory of a step, or predicts it without running the step."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from torchglass.capture.autograd import Reached, leaves_among, retried_with_gradients
from torchglass.capture.fake_tensors import MOST_LSTM_WEIGHTS
from torchglass.capture.isolated_run import (
    NO_BACKWARD,
    IsolatedRun,
    Loss,
    RunObserver,
    isolated_run,
    note_failures,
)
from torchglass.capture.measure.devices import Meter, meters_for
from torchglass.capture.measure.memory_recorder import MemoryRecorder
from torchglass.capture.model.structure import modules_in, parameters_of, tensors_of
from torchglass.capture.tensor.description import Args, Kwargs, lack_values, named_tensors
from torchglass.capture.torch_internals import (
    OPTIMIZER_HOOK_TABLES,
    FakeTensor,
    foreach_devices,
    tree_map_only,
)
from torchglass.errors import CaptureError, uninterruptible
from torchglass.records.measures import AllocatorPeak, Footprint, Stage
from torchglass.records.model import Model
from torchglass.records.trace import CallRecord

OptimizerChoice = str | Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer]
"""An optimizer: its name in torch.optim, an instance, or a function of the parameters."""


class _Trained(NamedTuple):
    """A parameter that the optimizer would change."""

    own: nn.Parameter
    """The copy that it changes instead."""
    original: torch.Tensor
    """The one that the model runs on."""
    users: torch.Tensor
    """The parameter in the user's optimizer; the original may be a fake of it."""


class OptimizerCopy:
    """An optimizer over copies of parameters, which takes their gradients from the originals."""

    def __init__(
        self,
        choice: OptimizerChoice,
        originals: Sequence[torch.Tensor],
        users: Sequence[torch.Tensor],
    ) -> None:
        self._trained = [
            _Trained(nn.Parameter(original.detach().clone()), original, user)
            for original, user in zip(originals, users, strict=True)
            if original.requires_grad
        ]
        self._optimizer = _made(choice, self._trained)
        if any(isinstance(trained.own, FakeTensor) for trained in self._trained):
            _update_at_once(self._optimizer)

    @property
    def name(self) -> str:
        return type(self._optimizer).__name__

    @property
    def copies(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The copies of the parameters, each with its original."""
        return ((trained.own, trained.original) for trained in self._trained)

    def take_gradients(self) -> None:
        """Give the gradients of the originals to the copies."""
        for trained in self._trained:
            trained.own.grad = trained.original.grad

    def drop_gradients(self) -> None:
        """Free the gradients, as `zero_grad` does before the next forward."""
        for trained in self._trained:
            trained.own.grad = None

    def step(self) -> None:
        self._optimizer.step()

    def state(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The tensors of the optimizer's state, each with the original parameter."""
        originals = {id(trained.own): trained.original for trained in self._trained}
        for own, state in self._optimizer.state.items():
            for _, tensor in named_tensors(state):
                yield tensor, originals[id(own)]


def _made(choice: OptimizerChoice, trained: Sequence[_Trained]) -> Optimizer:
    if isinstance(choice, Optimizer):
        return _like(choice, {id(one.users): one.own for one in trained})
    make = optimizer_named(choice) if isinstance(choice, str) else choice
    made = make([one.own for one in trained])
    if not isinstance(made, Optimizer):
        raise CaptureError(f"{choice!r} returned a {type(made).__name__}, not an optimizer")
    return made


def optimizer_named(name: str) -> Callable[[Iterable[nn.Parameter]], Optimizer]:
    """The class in torch.optim with a name, in any case."""
    kinds = {
        kind.lower(): found
        for kind, found in vars(torch.optim).items()
        if isinstance(found, type) and issubclass(found, Optimizer) and found is not Optimizer
    }
    if name.lower() not in kinds:
        raise CaptureError(f"torch.optim has no {name!r}; it has {', '.join(sorted(kinds))}")
    kind: Callable[[Iterable[nn.Parameter]], Optimizer] = kinds[name.lower()]
    return kind


def _like(original: Optimizer, own: Mapping[int, nn.Parameter]) -> Optimizer:
    """A copy of an optimizer with its settings and state, for copies of its parameters."""
    optimizer_copy = object.__new__(type(original))
    # A scheduler sets `step` on the instance, which would be the original's.
    optimizer_copy.__dict__.update(
        {name: value for name, value in vars(original).items() if name != "step"}
    )
    optimizer_copy.__dict__.update({name: OrderedDict() for name in OPTIMIZER_HOOK_TABLES})
    optimizer_copy.param_groups = [
        {**group, "params": [own[id(p)] for p in group["params"] if id(p) in own]}
        for group in original.param_groups
    ]
    optimizer_copy.state = defaultdict(dict)
    for parameter, state in original.state.items():
        if id(parameter) in own:
            optimizer_copy.state[own[id(parameter)]] = _copied(state)
    return optimizer_copy


def _update_at_once(optimizer: Optimizer) -> None:
    """Let an optimizer of fakes update groups at once, as torch does on a GPU by default.

    Its temporaries are as large as the parameters then. torch does not do so with subclasses, which
    fakes are.
    """
    devices = foreach_devices()
    for group in optimizer.param_groups:
        is_free = group.get("foreach", False) is None and not group.get("fused")
        if is_free and not group.get("differentiable"):
            group["foreach"] = all(one.device.type in devices for one in group["params"]) or None


def _copied(state: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), state)


_ESTIMATED = "the workspace that an LSTM keeps for the backward is estimated from a few real steps"
_NO_WORKSPACE = (
    "the workspace that an LSTM keeps for the backward is not predicted: its weights are too large"
)
_SPARSE = "the size of a sparse tensor depends on its values, which a prediction does not have"
_COMPILED = "compiled modules were run uncompiled"
_LSTM = "mkldnn_rnn_layer"


class MeasuredMemory(NamedTuple):
    """A model, its shapes, and the memory it used."""

    model: Model
    calls: tuple[CallRecord, ...]
    footprint: Footprint


@retried_with_gradients
def measure(
    target: Any,
    args: Args,
    kwargs: Kwargs,
    *,
    backward: bool = True,
    optimizer: OptimizerChoice | None = None,
    loss: Loss | None = None,
    fake: bool = False,
    gradients: bool = False,
) -> MeasuredMemory:
    """Run a step of a model, and log which module allocates which memory, and until when.

    A real step runs twice: once to log its storages, once to read the allocators.
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
        # A lazy model runs as a copy, which has its own parameters.
        users = users if run.target is target else parameters_of(run.modules)
        observer = MemoryObserver(run, optimizer, users)
        with observer:
            run.run(observer)
        footprint = observer.footprint()
        if not fake:
            allocations = _allocations(run, observer.optimizer_copy)
            footprint = dataclasses.replace(footprint, allocations=allocations)
        return MeasuredMemory(run.read_model(), observer.calls, footprint)


def _allocations(
    run: IsolatedRun, optimizer_copy: OptimizerCopy | None
) -> tuple[AllocatorPeak, ...]:
    """Run the step again, and read the allocators of its devices."""
    devices = {str(tensor.device) for tensor in run.tensors}
    last: Stage = "backward" if run.went_back else "loss" if run.backward else "forward"
    metered = _Metered(meters_for(devices or {"cpu"}), last, optimizer_copy)
    torch.clear_autocast_cache()
    try:
        run.run(metered)
    finally:
        metered.stop()
        torch.clear_autocast_cache()
    return tuple(metered.allocations)


class MemoryObserver(RunObserver):
    """Logs the storages of a run; as a with-block it forgets them at the end."""

    def __init__(
        self,
        run: IsolatedRun,
        optimizer: OptimizerChoice | None = None,
        users: Sequence[torch.Tensor] = (),
    ) -> None:
        """`users` has the parameters of the user's optimizer; the run may use fakes."""
        self._run = run
        self._optimizer = optimizer
        self._users = users
        self._recorder = MemoryRecorder(run.located, run.faking.fake if run.faking else None)
        self._leaves: list[torch.Tensor] = []
        self.calls: tuple[CallRecord, ...] = ()
        self.optimizer_copy: OptimizerCopy | None = None

    def __enter__(self) -> None:
        # Every step creates its own copies of weights in another dtype.
        torch.clear_autocast_cache()

    def __exit__(self, *_: object) -> None:
        torch.clear_autocast_cache()
        self._recorder.log.close()

    @uninterruptible
    def stage(self, name: Stage) -> Iterator[None]:
        """Log a stage; after the backward, own the gradients and step the optimizer."""
        with note_failures(self._recorder), self._recorder.watching(name):
            yield
        if name == "forward":
            self.calls = self._recorder.calls
            self._recorder.log.retain("output")
        elif name == "backward":
            self._own_gradients()
            if self._optimizer is not None:
                self._optimize(self._optimizer)

    def before_backward(self, nodes: Sequence[Reached]) -> None:
        self._leaves = leaves_among(nodes)
        self._recorder.retain(nodes)

    def footprint(self) -> Footprint:
        blocks, changes, parts = self._recorder.log.read()
        footprint = Footprint(
            blocks=blocks,
            changes=changes,
            parts=parts,
            optimizer=self.optimizer_copy.name if self.optimizer_copy else "",
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
                self._recorder.log.own(leaf.grad, "gradient", path, name)
        self._leaves = []

    def _optimize(self, choice: OptimizerChoice) -> None:
        log = self._recorder.log
        optimizer_copy = self.optimizer_copy = OptimizerCopy(
            choice, parameters_of(self._run.modules), self._users
        )
        for copy, original in optimizer_copy.copies:
            log.stand_in(copy, original)
        optimizer_copy.take_gradients()
        with self._recorder.watching("optimizer"):
            optimizer_copy.step()
        for tensor, original in optimizer_copy.state():
            log.own(tensor, "optimizer", *self._recorder.slot_of(original))
        log.close()
        optimizer_copy.drop_gradients()


def _lstm_weights(modules: Sequence[nn.Module]) -> list[torch.Tensor]:
    layers = (module for module in modules if isinstance(module, nn.LSTM))
    return [weight for layer in layers for weight in layer.parameters(recurse=False)]


class _Metered(RunObserver):
    """Reads the allocators over a step without any other observer."""

    def __init__(
        self, meters: Sequence[Meter], last: Stage, optimizer_copy: OptimizerCopy | None
    ) -> None:
        self._meters = meters
        self._last = last
        self._optimizer_copy = optimizer_copy
        self.allocations: list[AllocatorPeak] = []

    @uninterruptible
    def stage(self, name: Stage) -> Iterator[None]:
        """Run the meters from after the copy of the inputs to before everything is freed."""
        if name == "forward":
            for meter in self._meters:
                meter.start()
        yield
        if name == self._last:
            if self._optimizer_copy is not None:
                self._optimizer_copy.take_gradients()
                self._optimizer_copy.step()
                self._optimizer_copy.drop_gradients()
            self.stop()

    def stop(self) -> None:
        for meter in self._meters:
            found = meter.stop()
            if found is not None:
                self.allocations.append(found)
        self._meters = ()
