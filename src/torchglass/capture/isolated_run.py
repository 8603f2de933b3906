"""Isolated runs: forward, loss and backward of a model; everything is restored afterwards.

    with isolated_run(model, (x,), backward=True) as run:
        run.run(observer)        # any number of times, each from the same state

**What it is.** `tg.summary`, `flops`, `memory`, `profile`, `inspect` and the explorer run the
user's model themselves. They all do it here. `isolated_run` prepares the model once for the block,
and `IsolatedRun.run` runs one step and tells an observer of its stages.

**How an observer is written.** Derive from `RunObserver`. `stage(name)` gives a with-block that
is put around the stage: enter modes and `observe_calls` there. `before_backward(nodes)` gets the
autograd nodes that the backward is about to run. `run` takes several observers, so one run can
answer several questions; they are entered in order, so the last one is nearest to the model.

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

A lazy model is run as a copy, so that it stays lazy. With `fake=True`, parameters, buffers and
inputs are fake tensors during the block, and nothing is computed.

Tracing and the guard, which run the user's forward only once or again, use some of the restoring
blocks directly.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import operator
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

from torchglass.capture.autograd import (
    Reached,
    leaves_among,
    nodes_behind,
    retried_with_gradients,
    sum_of_outputs,
)
from torchglass.capture.fake_tensors import Faking
from torchglass.capture.model.structure import (
    LocatedModule,
    modules_in,
    parameters_of,
    read_model,
    tensors_of,
)
from torchglass.capture.module_calls import CallRecorder, observe_calls
from torchglass.capture.tensor.description import (
    PLAIN_CLASSES,
    Args,
    Kwargs,
    has_memory,
    tensors_of_call,
    version_of,
)
from torchglass.capture.tensor.device_reads import Array, DeviceReads
from torchglass.capture.torch_internals import (
    DisableTorchFunction,
    ShardedParameters,
    accumulated_gradient_hooks,
    flatten_dense_tensors,
    is_sharded,
    replace_flat_weights,
    tree_map_only,
)
from torchglass.capture.torch_modes import (
    TorchRandomState,
    gradients_set,
    has_compiled,
    quietly,
    running_uncompiled,
    without_guards,
)
from torchglass.errors import CaptureError, collector_paused, undo_reliably, uninterruptible, warn
from torchglass.records.model import Model, Module, ModuleId, join_path

if TYPE_CHECKING:
    from torchglass.records.measures import Stage

# As a function that torch passes to modes, it would hide recomputed ops from our mode.
_backward = without_guards(torch.autograd.backward)

NO_BACKWARD = "no output requires a gradient, so there was no backward"
LAZY_IS_NOT_FAKE = "lazy modules take their shapes from real tensors; try fake=False"
_NO_STEP = "hooks on gradients were skipped, such as an optimizer that steps in the backward"

Loss = Callable[[Any], torch.Tensor]
"""Takes what a model returned; returns the scalar that the backward starts from."""

Replace = Callable[[torch.Tensor], torch.Tensor]

_TABLES = ("_parameters", "_buffers", "_modules")
_NOT_RESTORED = frozenset((*vars(nn.Module()), "forward_stats"))
"""Attributes that every module has, and the statistics that we set on modules."""
_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)
_MOST_ITEMS = 1000
"""In larger containers the items are restored, but not their contents."""
_MOST_NAMES = 5
_SAMPLE = 64
"""The number of values that are compared to find writes that the version does not count."""


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

    Each run has the same random state, fresh copies of inputs and buffers, and no gradients.
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
        """The arguments of the forward; fakes, if the run is fake."""
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
            stack.enter_context(collector_paused())
            stack.enter_context(keeping_random_state())
            stack.enter_context(keeping_modules(self.modules, {"_buffers": _Copies().copy}))
            kept = stack.enter_context(KeptGradients())
            kept.keep(parameters_of(self.modules))
            stack.enter_context(gradients_set(self._gradients))
            args, kwargs = _copied(self.arguments)
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

    With `gradients`, a forward without a backward also runs as in training. With `compiled`,
    compiled modules run compiled; otherwise they run as plain Python, which calls their modules.
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
                # It uses its weights through its own list.
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
    """A copy of a lazy model that got its shapes from a forward."""
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


def _copied(arguments: tuple[Args, dict[str, Any]]) -> Any:
    return tree_map_only(torch.Tensor, _Copies().copy, arguments)


class _Copies:
    """Copies of tensors, one each: a model may check whether two arguments are identical."""

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
def keeping_random_state() -> Iterator[None]:
    """Restore the random state of Python, numpy and torch, on every device in use."""
    with random_state():
        yield


def random_state() -> contextlib.ExitStack:
    """The state of all random generators; closing the stack restores it."""
    stack = contextlib.ExitStack()
    stack.callback(random.setstate, random.getstate())
    stack.callback(np.random.set_state, np.random.get_state())
    stack.callback(TorchRandomState().restore)
    return stack


@uninterruptible
def keeping_modules(modules: Iterable[nn.Module], replace: Mapping[str, Replace]) -> Iterator[None]:
    """Run modules on replaced tensors, and restore what they rebind.

    `replace` has functions that replace the tensors of "_parameters" or "_buffers". Batch norm
    writes into its buffers without raising their version counters, so only a replacement
    keeps them as they are.
    """
    modules = list(modules)
    sharded = ShardedParameters(modules)
    held = _HeldState(modules)
    saved: list[tuple[dict[str, Any], dict[str, Any]]] = []
    scripted: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        for module in modules:
            attributes = object.__getattribute__(module, "__dict__")
            saved.append((attributes, dict(attributes)))
            if isinstance(module, torch.jit.ScriptModule):
                # Scripted code uses its tensors in C++: they can only be written back.
                scripted += ((buffer, buffer.clone()) for buffer in module.buffers(recurse=False))
                continue
            for name in _TABLES:
                table = attributes.get(name, {})
                saved.append((table, dict(table)))
                if name in replace:
                    _replace(table, replace[name])
        yield
    finally:
        # FSDP tracks its registered weights, so it must restore them itself.
        undo_reliably(sharded.restore)
        for table, before in reversed(saved):
            undo_reliably(_put_back, table, before)
        for buffer, value in scripted:
            undo_reliably(_write_back, buffer, value)
        undo_reliably(held.restore)


@uninterruptible
def leave_unchanged(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Restore random state, buffers and attributes after a forward.

    A lazy module gets its tensors in its first forward and keeps them: that cannot be undone in
    parts.
    """
    modules = list(modules)
    tables = (table for one in modules for table in (one._parameters, one._buffers))
    tensors = (tensor for table in tables for tensor in table.values() if tensor is not None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(keeping_random_state())
        if not any(map(is_lazy, tensors)):
            stack.enter_context(keeping_modules(modules, {"_buffers": _clone}))
        yield


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


class KeptGradients(contextlib.AbstractContextManager["KeptGradients"]):
    """Removes the gradients of tensors, and restores them at the end."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def keep(self, tensors: Iterable[torch.Tensor]) -> None:
        """Remove the gradients of leaves, so that a backward creates new ones."""
        for tensor in tensors:
            if tensor.requires_grad and tensor.is_leaf and id(tensor) not in self._before:
                self._before[id(tensor)] = tensor, tensor.grad
                tensor.grad = None

    def __exit__(self, *_: object) -> None:
        for tensor, gradient in self._before.values():
            tensor.grad = gradient


class _HeldState:
    """Restores what modules keep in their own attributes: generators, lists and dicts.

    This includes the memory of parameters, which a forward may replace.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []
        self._containers: list[tuple[Any, Any]] = []
        for _, _, value in _own_values(modules):
            if isinstance(value, torch.Generator):
                self._generators.append((value, value.get_state()))
            elif type(value) in _CONTAINERS:
                self._containers.append((value, copy.copy(value)))
        # FSDP moves its weights to other memory and keeps track of them.
        own = () if is_sharded(modules) else (module._parameters.values() for module in modules)
        with DisableTorchFunction():
            self._parameters = [
                (parameter, parameter.data)
                for parameter in itertools.chain.from_iterable(own)
                if type(parameter) is nn.Parameter
            ]

    def restore(self) -> None:
        for generator, state in self._generators:
            generator.set_state(state)
        for container, before in self._containers:
            _refill(container, before)
        with DisableTorchFunction():
            for parameter, data in self._parameters:
                if parameter.data_ptr() != data.data_ptr() or parameter.shape != data.shape:
                    parameter.data = data


def _own_values(modules: Iterable[nn.Module]) -> Iterator[tuple[nn.Module, str, Any]]:
    """The tensors, generators and containers in modules' own attributes, each once."""
    seen: set[int] = set()
    for module in modules:
        attributes = object.__getattribute__(module, "__dict__")
        own = [(name, attributes[name]) for name in attributes if name not in _NOT_RESTORED]
        while own:
            name, value = own.pop()
            is_container = type(value) in _CONTAINERS
            if not is_container and not isinstance(value, (torch.Generator, torch.Tensor)):
                continue
            if id(value) in seen:
                continue
            seen.add(id(value))
            yield module, name, value
            if is_container and len(value) <= _MOST_ITEMS:
                items = value.values() if isinstance(value, dict) else value
                own += ((name, item) for item in items)


def _refill(container: Any, before: Any) -> None:
    """Restore the contents of a container that were changed."""
    if isinstance(container, set):
        is_same = container == before
    else:
        is_same = len(container) == len(before) and all(map(operator.is_, container, before))
        if isinstance(container, dict):
            is_same = is_same and all(map(operator.is_, container.values(), before.values()))
    if not is_same:
        container.clear()
        (container.extend if isinstance(container, (list, deque)) else container.update)(before)


@uninterruptible
def telling_of_changes(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Warn if a run changes parameters or tensors of a model, which are not restored."""
    modules = list(modules)
    # FSDP leaves some weights gathered, in separate memory.
    mark: Callable[[Sequence[torch.Tensor]], list[Any]]
    mark = (lambda each: list(map(version_of, each))) if is_sharded(modules) else _marks
    with collector_paused():
        own = list(_own_tensors(modules))
        before = mark([one for *_, one in own])
    yield
    with collector_paused():
        after = mark([one for *_, one in own])
    both = zip(own, before, after, strict=True)
    changed = [(module, name) for (module, name, _), was, now in both if was != now]
    if changed:
        paths = {id(module): path for path, module in modules[0].named_modules()}
        names = dict.fromkeys(
            join_path(paths.get(id(module), type(module).__name__), name)
            for module, name in changed
        )
        what = "parameters" if any(name in m._parameters for m, name in changed) else "tensors"
        more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
        warn(
            f"the forward changes {what} of the model, which are not restored: "
            f"{', '.join([*names][:_MOST_NAMES])}{more}"
        )


def _own_tensors(modules: Sequence[nn.Module]) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
    for module in modules:
        for name, parameter in module._parameters.items():
            if parameter is not None and not is_lazy(parameter):
                yield module, name, parameter
    for module, name, value in _own_values(modules):
        # Lists of parameters, as in an LSTM, go by the names of the parameters.
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            yield module, name, value


def _marks(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """What a write changes: the version, and a sample of values (`.data` has its own version)."""
    found: list[Any] = [(version_of(tensor), b"") for tensor in tensors]
    remote: list[tuple[torch.Tensor, Callable[[Array], None]]] = []
    with quietly(), torch.no_grad():
        alike: dict[tuple[torch.device, torch.dtype], list[int]] = defaultdict(list)
        for index, tensor in enumerate(tensors):
            if _can_be_sampled(tensor):
                alike[tensor.device, tensor.dtype].append(index)
        for indices in alike.values():
            # Some dtypes torch can only store.
            with contextlib.suppress(RuntimeError):
                samples = [_sample(tensors[index]) for index in indices]
                together = flatten_dense_tensors(samples).view(torch.uint8)
                sizes = [sample.numel() * sample.itemsize for sample in samples]
                put = functools.partial(_put_samples, found, indices, sizes)
                if together.is_cpu:
                    put(together.numpy())
                else:
                    remote.append((together, put))
        if remote:
            # One wait for all that are on a device.
            reads = DeviceReads()
            for sent, use in remote:
                reads.later(sent, use)
            reads.send()
            reads.receive(wait=True)
    return found


def _put_samples(
    found: list[Any], indices: Sequence[int], sizes: Sequence[int], values: Array
) -> None:
    every, start = values.tobytes(), 0
    for index, size in zip(indices, sizes, strict=True):
        found[index] = found[index][0], every[start : start + size]
        start += size


def _can_be_sampled(tensor: torch.Tensor) -> bool:
    is_plain = type(tensor) in PLAIN_CLASSES and tensor.layout is torch.strided
    return is_plain and not tensor.is_meta and tensor.numel() > 0 and has_memory(tensor)


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() <= _SAMPLE:
        return tensor
    if not tensor.is_cpu and tensor.is_contiguous():
        # A regular sample is a view: places would have to go to the device first.
        return tensor.view(-1)[:: tensor.numel() // _SAMPLE]
    return tensor.take(_places(tensor.numel()).to(tensor.device))


@functools.lru_cache(maxsize=1 << 10)
def _places(count: int) -> torch.Tensor:
    return torch.linspace(0, count - 1, min(count, _SAMPLE), dtype=torch.float64).long()


def _replace(table: dict[str, Any], replace: Replace) -> None:
    for name, tensor in table.items():
        if tensor is not None:
            table[name] = replace(tensor)


def _put_back(table: dict[str, Any], before: dict[str, Any]) -> None:
    if table.keys() != before.keys():
        table.clear()
        table.update(before)
        return
    for name, value in before.items():
        if table[name] is not value:
            table[name] = value


def _write_back(buffer: torch.Tensor, value: torch.Tensor) -> None:
    if not torch.equal(buffer, value):
        with torch.no_grad():
            buffer.copy_(value)
