"""Isolated runs: forward, loss and backward of a model, after which everything is as it was.

    with isolated_run(model, (x,), backward=True) as run:
        run.run(observer)        # any number of times, each from the same state

**What it is.** `tg.summary`, `flops`, `memory`, `profile`, `inspect` and the explorer run the
user's model on their own account. They all do it here. `isolated_run` prepares the model once for
the block, and `IsolatedRun.run` runs one step and tells an observer of its stages.

**How an observer is written.** Derive from `RunObserver`. `stage(name)` gives a with-block that
is put around the stage: enter modes and `observe_calls` there. `before_backward(nodes)` is given
the autograd nodes that the backward is about to run. `run` takes several observers, so that one
run serves several questions; they are entered in order, so the last one is nearest to the model.

    class Calls(RunObserver):
        def stage(self, name):
            return observe_calls(self.recorder)

**What is restored, and when.**

| what | how | when |
|---|---|---|
| random state of Python, numpy, torch | saved and restored | each run |
| buffers | the model runs on copies | each run |
| attributes, containers and generators of modules, parameter memory | restored | each run |
| gradients | taken off, then put back | each run |
| inputs | the model is given copies, one for each tensor | each run |
| gradient mode, garbage collection | set, then restored | each run |
| FSDP: sharded or gathered weights | restored by FSDP itself | each run |
| optimizers that step in the backward | their hooks are taken off, then put back | the block |
| `torch.compile` | the model runs as Python, unless `compiled=True` | the block |
| parameters that are written to | cannot be restored cheaply: a warning names them | the block |

A lazy model is run as a copy, so that it stays lazy. With `fake=True` parameters, buffers and
inputs are fake tensors for the length of the block, and nothing is computed.

The with-blocks that do the restoring are in `restore_state.py`; tracing and the guard, which run
the user's forward only once or again, use some of them directly.
"""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

from torchglass.blocks import uninterruptible
from torchglass.capture.autograd import Reached, leaves_among, nodes_behind
from torchglass.capture.fake_tensors import Faking
from torchglass.capture.model.live_modules import (
    LocatedModule,
    modules_in,
    parameters_of,
    tensors_of,
)
from torchglass.capture.model.structure import read_model
from torchglass.capture.module_calls import CallRecorder, observe_calls
from torchglass.capture.restore_state import (
    KeptGradients,
    gradients_set,
    keeping_modules,
    keeping_random_state,
    retried_with_gradients,
    running_uncompiled,
    telling_of_changes,
)
from torchglass.capture.tensor.description import Args, Kwargs, named_tensors, tensors_of_call
from torchglass.capture.torch_internals import (
    accumulated_gradient_hooks,
    has_compiled,
    replace_flat_weights,
    tree_map_only,
)
from torchglass.capture.torch_modes import without_guards
from torchglass.errors import CaptureError
from torchglass.records.measures import Stage
from torchglass.records.model import Model, Module, ModuleId

# As a function that torch hands to modes it would hide from ours what a checkpoint runs again.
_backward = without_guards(torch.autograd.backward)

NO_BACKWARD = "no output requires a gradient, so there was no backward"
LAZY_IS_NOT_FAKE = "lazy modules take their shapes from real tensors; try fake=False"
_NO_STEP = "hooks on gradients were skipped, such as an optimizer that steps in the backward"

Loss = Callable[[Any], torch.Tensor]
"""Takes what a model returned; returns the scalar that the backward starts from."""


class RunObserver:
    """Observes the stages of a run; this one does nothing."""

    def stage(self, name: Stage) -> contextlib.AbstractContextManager[object]:
        """A block that is put around one stage."""
        return contextlib.nullcontext()

    def before_backward(self, nodes: Sequence[Reached]) -> None:
        """The nodes that the backward is about to run."""


class ForwardCalls(RunObserver):
    """Records the module calls of the forward, and notes the module of an exception."""

    def __init__(self, recorder: CallRecorder) -> None:
        self._recorder = recorder

    @uninterruptible
    def stage(self, name: Stage) -> Iterator[None]:
        if name != "forward":
            yield
            return
        with observe_calls(self._recorder), note_failures(self._recorder):
            yield


class IsolatedRun:
    """A model with its inputs, ready to be run any number of times from the same state.

    Each run has the same random numbers, fresh copies of inputs and buffers, and no gradients yet.
    """

    def __init__(
        self,
        target: Any,
        located: Sequence[LocatedModule],
        arguments: tuple[Args, dict[str, Any]],
        *,
        backward: bool,
        loss: Loss | None,
        gradients: bool,
    ) -> None:
        self.target = target
        self.located = located
        self.modules = [module for _, module in located]
        self.arguments = arguments
        """What the forward is called with; fakes, if the run is fake."""
        self.backward = backward
        self.has_compiled = has_compiled(self.modules)
        self.faking: Faking | None = None
        self.notes: list[str] = []
        """What users should know about how the model was run."""
        self.went_back = False
        """Whether the last run had a backward."""
        self._gradients = backward or gradients
        self._loss = sum_of_outputs if loss is None else loss
        if not callable(self._loss):
            raise CaptureError(f"loss must be a function of the model's output, not {loss!r}")

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The parameters and buffers of the model, and the input tensors."""
        inputs = (tensor for _, tensor in tensors_of_call(*self.arguments))
        return [*tensors_of(self.located), *inputs]

    def read_model(self) -> Model:
        """The structure of the model; a function without modules is one module."""
        if self.modules:
            return read_model(self.target)
        kind = type(self.target).__name__
        root = Module(id=ModuleId(0), path="", name="", class_name=kind)
        return Model(name=getattr(self.target, "__name__", kind), modules=(root,))

    def run(self, *observers: RunObserver) -> None:
        """Run forward, loss and backward as stages; their exceptions pass through."""
        with self._restored() as (args, kwargs, kept):
            with _stage(observers, "forward"):
                output = self.target(*args, **kwargs)
            if not self.backward:
                return
            with _stage(observers, "loss"):
                loss: object = self._loss(output)
            if not isinstance(loss, torch.Tensor):
                kind = type(loss).__name__
                raise CaptureError(f"loss must return a tensor, not {kind}")
            self.went_back = loss.requires_grad
            if not loss.requires_grad:
                return
            nodes = list(nodes_behind([loss]))
            kept.keep(leaves_among(nodes))
            for observer in observers:
                observer.before_backward(nodes)
            with _stage(observers, "backward"):
                _backward(loss)

    @uninterruptible
    def _restored(self) -> Iterator[tuple[tuple[Any, ...], dict[str, Any], KeptGradients]]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(keeping_random_state())
            stack.enter_context(keeping_modules(self.modules, {"_buffers": _Copies().copy}))
            kept = stack.enter_context(KeptGradients())
            kept.keep(parameters_of(self.modules))
            stack.enter_context(gradients_set(self._gradients))
            args, kwargs = _copied(self.arguments)
            stack.enter_context(_without_garbage_collection())
            yield args, kwargs, kept


@uninterruptible
def isolated_run(
    target: Any,
    args: Args,
    kwargs: Kwargs | None = None,
    *,
    backward: bool = False,
    loss: Loss | None = None,
    gradients: bool = False,
    fake: bool = False,
    compiled: bool = False,
) -> Iterator[IsolatedRun]:
    """Prepare a model to be run in this block, and restore it afterwards.

    With `gradients` a forward alone, too, runs as in training. With `compiled` what is compiled
    runs so; otherwise as the Python that it was made of, which calls its modules.
    """
    if not callable(target):
        raise CaptureError(f"{type(target).__name__} cannot be run: it is not callable")
    located = modules_in(target)
    arguments = args, dict(kwargs or {})
    if any(map(is_lazy, tensors_of(located))):
        if fake:
            raise CaptureError(LAZY_IS_NOT_FAKE)
        target = _copy_with_shapes(target, located, arguments)
        located = modules_in(target)
    run = IsolatedRun(target, located, arguments, backward=backward, loss=loss, gradients=gradients)
    with contextlib.ExitStack() as stack:
        if stack.enter_context(_without_optimizer_hooks(run.modules)):
            run.notes.append(_NO_STEP)
        if not fake:
            stack.enter_context(telling_of_changes(run.modules))
        if not compiled:
            stack.enter_context(running_uncompiled())
        if fake:
            stack.enter_context(_fake_tensors(run))
        yield run


@uninterruptible
def _stage(observers: Sequence[RunObserver], name: Stage) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for observer in observers:
            stack.enter_context(observer.stage(name))
        yield


@uninterruptible
def _fake_tensors(run: IsolatedRun) -> Iterator[None]:
    faking = run.faking = Faking(run.tensors, run.located)
    replace = {"_parameters": faking.fake, "_buffers": faking.fake}
    with keeping_modules(run.modules, replace), faking.running():
        for module in run.modules:
            if isinstance(module, nn.RNNBase):
                # It uses its weights through a list of its own.
                replace_flat_weights(module, faking.fake)
        run.arguments = tree_map_only(torch.Tensor, faking.fake, run.arguments)
        yield


@uninterruptible
def _without_optimizer_hooks(modules: Sequence[nn.Module]) -> Iterator[bool]:
    """Stop optimizers that step in the backward; yields whether there are any."""
    parameters = parameters_of(modules)
    optimizers = [hooks for p in parameters if (hooks := accumulated_gradient_hooks(p))]
    steps = [dict(hooks) for hooks in optimizers]
    for hooks in optimizers:
        hooks.clear()
    try:
        yield bool(optimizers)
    finally:
        for hooks, step in zip(optimizers, steps, strict=True):
            hooks.update(step)


def _copy_with_shapes(
    target: Any, located: Sequence[LocatedModule], arguments: tuple[Args, dict[str, Any]]
) -> Any:
    """A copy of a lazy model that has its shapes from a forward."""
    # torch can copy a parameter that has no shape yet, but not such a buffer.
    copies = {
        id(tensor): UninitializedBuffer(device=tensor.device, dtype=tensor.dtype)  # type: ignore[call-arg]
        for tensor in tensors_of(located)
        if isinstance(tensor, UninitializedBuffer)
    }
    made = copy.deepcopy(target, copies)
    _give_shapes(made, arguments)
    return made


@retried_with_gradients
def _give_shapes(
    target: Any, arguments: tuple[Args, dict[str, Any]], *, gradients: bool = False
) -> None:
    args, kwargs = _copied(arguments)
    recorder = CallRecorder(modules_in(target))
    with (
        keeping_random_state(),
        gradients_set(gradients),
        observe_calls(recorder),
        note_failures(recorder),
    ):
        target(*args, **kwargs)


@contextlib.contextmanager
def note_failures(recorder: CallRecorder) -> Iterator[None]:
    """Add to an exception of the user's model which module raised it."""
    try:
        yield
    except Exception as error:
        path = recorder.where_failed(error)
        # Python 3.10 has no notes.
        if path is not None and hasattr(error, "add_note"):
            error.add_note(f"while running {path or 'the model itself'}")
        raise


def sum_of_outputs(output: Any) -> torch.Tensor:
    """The sum of all outputs with a gradient; of complex ones, of both parts."""
    sums = [
        total
        for place, tensor in named_tensors(output)
        if tensor.requires_grad
        for total in _sums(place, tensor)
    ]
    total = sums[0] if sums else torch.zeros(())
    for other in sums[1:]:
        total = total + other
    return total


def _sums(place: str, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    try:
        if tensor.is_complex():
            yield torch.view_as_real(tensor.resolve_conj()).sum()
        elif tensor.is_nested and tensor.layout is torch.strided:
            yield from (part.sum() for part in tensor.unbind())
        elif tensor.dtype.itemsize == 1:
            # An 8-bit float has no sum of its own.
            yield tensor.float().sum()
        else:
            yield tensor.sum()
    except NotImplementedError as error:
        name = f"output {place}" if place else "the output"
        raise CaptureError(
            f"backward cannot start: torch cannot sum {name} ({tensor.dtype}, {tensor.layout}). "
            "Pass loss=, a function of the output, or backward=False."
        ) from error


def _copied(arguments: tuple[Args, dict[str, Any]]) -> Any:
    return tree_map_only(torch.Tensor, _Copies().copy, arguments)


class _Copies:
    """Copies of tensors, one for each: a model may ask whether two arguments are the same one."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_lazy(tensor):
            return tensor
        if id(tensor) not in self._made:
            copy = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            # A leaf cannot be changed in place, so a tensor that is not a leaf must not become one.
            made = copy if tensor.is_leaf else copy.clone()
            self._made[id(tensor)] = tensor, made
        return self._made[id(tensor)][1]


@uninterruptible
def _without_garbage_collection() -> Iterator[None]:
    """Keep garbage collections out of the measured spans."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
