"""One forward and backward of a model, after which everything it touched is restored."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchglass.blocks import unbroken
from torchglass.capture.autograd import Reached, leaves_among, nodes_behind
from torchglass.capture.model.structure import read_model
from torchglass.capture.nested_tensors import named_tensors
from torchglass.capture.restore_state import (
    KeptGradients,
    gradients_set,
    keeping_modules,
    keeping_random_state,
    retried_with_gradients,
    telling_of_changes,
)
from torchglass.capture.torch_functions import without_guards
from torchglass.capture.torch_internals import accumulated_gradient_hooks, tree_map_only
from torchglass.capture.trial_forward import copy_of_lazy, modules_in, tensors_of
from torchglass.errors import CaptureError
from torchglass.records.model import Model, Module, ModuleId
from torchglass.records.timing import Stage

# As a function that torch hands to modes it would hide from ours what a checkpoint runs again.
_backward = without_guards(torch.autograd.backward)

NO_BACKWARD = "nothing that the model returned has a gradient, so there was no backward"

_NO_STEP = "what hangs on the gradients, as an optimizer that steps in the backward, was left out"

Located = Sequence[tuple[str, nn.Module]]
Loss = Callable[[Any], torch.Tensor]
"""What a model returned, to the one number that its backward starts from."""


class Watcher(Protocol):
    """Who is told of the stages of a step."""

    def stage(self, name: Stage) -> contextlib.AbstractContextManager[object]:
        """A block in which a stage runs, and nothing else."""

    def before_backward(self, nodes: Sequence[Reached]) -> None:
        """The nodes that the backward is about to come to."""


class Step:
    """A model with its inputs, ready to be run any number of times from the same state.

    Each run has the same random numbers, fresh copies of inputs and buffers, and no gradients yet.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        modules: Sequence[nn.Module],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        backward: bool = True,
        loss: Loss | None = None,
        gradients: bool = False,
    ) -> None:
        """With `gradients` a forward alone, too, runs as in training."""
        self._target = target
        self._modules = modules
        self._arguments = args, dict(kwargs)
        self._backward = backward
        self._gradients = backward or gradients
        self._loss = _checked(sum_of_outputs if loss is None else loss)
        self.went_back = False
        """Whether the last run had a backward."""

    def run(self, watcher: Watcher) -> None:
        """Forward, loss and backward, each as a stage; what they raise passes through."""
        with self._world() as (args, kwargs, kept):
            with watcher.stage("forward"):
                output = self._target(*args, **kwargs)
            if not self._backward:
                return
            with watcher.stage("loss"):
                loss: object = self._loss(output)
            if not isinstance(loss, torch.Tensor):
                kind = type(loss).__name__
                raise CaptureError(f"loss gave {kind}, but a backward starts from a tensor")
            self.went_back = loss.requires_grad
            if not loss.requires_grad:
                return
            nodes = list(nodes_behind([loss]))
            kept.keep(leaves_among(nodes))
            watcher.before_backward(nodes)
            with watcher.stage("backward"):
                _backward(loss)

    @unbroken
    def _world(self) -> Iterator[tuple[tuple[Any, ...], dict[str, Any], KeptGradients]]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(keeping_random_state())
            stack.enter_context(keeping_modules(self._modules, {"_buffers": _Copies().copy}))
            kept = stack.enter_context(KeptGradients())
            kept.keep(parameters_of(self._modules))
            stack.enter_context(gradients_set(self._gradients))
            args, kwargs = copied(self._arguments)
            stack.enter_context(_without_collecting())
            yield args, kwargs, kept


def copied(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """Arguments whose tensors are copies, so that a forward may change them."""
    return tree_map_only(torch.Tensor, _Copies().copy, arguments)


def with_shapes(
    target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, Located]:
    """A model and its modules; of a lazy one a copy that has been run, so that it stays lazy."""
    if not callable(target):
        raise CaptureError(f"{type(target).__name__} cannot be run: it is not callable")
    located = modules_in(target)
    tensors = tensors_of(located)
    if not any(map(is_lazy, tensors)):
        return target, located
    made = copy_of_lazy(target, tensors)
    _give_shapes(made, args, kwargs)
    return made, modules_in(made)


@retried_with_gradients
def _give_shapes(
    target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, gradients: bool = False
) -> None:
    args, kwargs = copied((args, dict(kwargs)))
    with keeping_random_state(), gradients_set(gradients):
        target(*args, **kwargs)


def read_target(target: Any, modules: Sequence[nn.Module]) -> Model:
    """What a model is made of; a function without modules is made of nothing but itself."""
    if modules:
        return read_model(target)
    kind = type(target).__name__
    root = Module(id=ModuleId(0), path="", name="", class_name=kind)
    return Model(name=getattr(target, "__name__", kind), modules=(root,))


def _checked(loss: Loss) -> Loss:
    if not callable(loss):
        raise CaptureError(f"loss must be a function of the model's output, not {loss!r}")
    return loss


def sum_of_outputs(output: Any) -> torch.Tensor:
    """The sum of all outputs that a gradient can come from; of complex ones, that of both parts."""
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
            f"torch cannot add up {name} ({tensor.dtype}, {tensor.layout}), and the backward "
            "starts from that sum. Give a function of the output as loss=, or backward=False."
        ) from error


@unbroken
def keeping_parameters(modules: Sequence[nn.Module]) -> Iterator[Sequence[str]]:
    """Let no optimizer step that hangs on the backward, and warn if weights change even so.

    The block is told what there is to say of such an optimizer.
    """
    parameters = parameters_of(modules)
    optimizers = [hooks for p in parameters if (hooks := accumulated_gradient_hooks(p))]
    steps = [dict(hooks) for hooks in optimizers]
    for hooks in optimizers:
        hooks.clear()
    try:
        with telling_of_changes(modules):
            yield [_NO_STEP] if optimizers else []
    finally:
        for hooks, step in zip(optimizers, steps, strict=True):
            hooks.update(step)


class _Copies:
    """Copies of tensors, one for each: a model may ask whether two arguments are the same one."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """The copy of a tensor, with a gradient of its own if it has one."""
        if is_lazy(tensor):
            return tensor
        if id(tensor) not in self._made:
            copy = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            # Only what is no leaf may be changed in place, so what is none must not become one.
            made = copy if tensor.is_leaf else copy.clone()
            self._made[id(tensor)] = tensor, made
        return self._made[id(tensor)][1]


@unbroken
def _without_collecting() -> Iterator[None]:
    """Let no garbage collection fall into a span that has nothing to do with it."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def parameters_of(modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    """The parameters that modules hold and that have a shape, shared ones once."""
    own = (parameter for module in modules for parameter in module._parameters.values())
    return list({id(one): one for one in own if one is not None and not is_lazy(one)}.values())
