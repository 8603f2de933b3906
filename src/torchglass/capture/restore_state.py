"""Context managers that restore the user's state: modules, gradients, random state."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import operator
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchglass.blocks import undo_reliably, uninterruptible
from torchglass.capture.tensor.description import PLAIN_CLASSES, has_memory, version_of
from torchglass.capture.torch_internals import (
    DisableTorchFunction,
    ShardedParameters,
    is_dynamo_loaded,
    set_grad_enabled,
)
from torchglass.capture.torch_modes import quietly
from torchglass.errors import warn
from torchglass.records.model import join_path

Result = TypeVar("Result")
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
    stack.callback(torch.set_rng_state, torch.get_rng_state())
    for device in (torch.cuda, torch.xpu):
        if device.is_initialized():
            stack.callback(device.set_rng_state_all, device.get_rng_state_all())
    if torch.backends.mps.is_available():
        stack.callback(torch.mps.set_rng_state, torch.mps.get_rng_state())
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

    A lazy module gets its tensors from its first forward, and keeps them: that cannot be undone in
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


def retried_with_gradients(run: Callable[..., Result]) -> Callable[..., Result]:
    """Call a function that runs a model without gradients once more with `gradients=True`.

    A forward may take gradients itself, as a force field does of its energy. Others run without,
    as they do for inference: some modules then have faster ways.
    """

    @functools.wraps(run)
    def called(*args: Any, **kwargs: Any) -> Result:
        try:
            return run(*args, **kwargs)
        except (RuntimeError, AttributeError) as error:
            if not torch.is_grad_enabled() or not _misses_gradients(error):
                raise
        return run(*args, **kwargs, gradients=True)

    return called


def _misses_gradients(error: Exception) -> bool:
    return any(words in str(error) for words in _MISSES_GRADIENTS)


_MISSES_GRADIENTS = (
    "does not require grad",
    "doesn't require grad",
    "requires_grad=False",
    "'NoneType' object has no attribute 'next_functions'",
)
"""The messages of torch if a forward takes a gradient without a graph."""


class KeptGradients(contextlib.AbstractContextManager["KeptGradients"]):
    """Removes the gradients of tensors, and restores them at the end."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def keep(self, tensors: Iterable[torch.Tensor]) -> None:
        """Remove the gradients of leaves, so that a backward makes new ones."""
        for tensor in tensors:
            if tensor.requires_grad and tensor.is_leaf and id(tensor) not in self._before:
                self._before[id(tensor)] = tensor, tensor.grad
                tensor.grad = None

    def __exit__(self, *_: object) -> None:
        for tensor, gradient in self._before.values():
            tensor.grad = gradient


class _HeldState:
    """Restores what modules keep in attributes of their own: generators, lists and dicts.

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
        # FSDP moves its weights to other memory, and knows where they are.
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
        own = [item for item in attributes.items() if item[0] not in _NOT_RESTORED]
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
    """Warn if a run changes parameters or tensors of a model, which nothing restores."""
    modules = list(modules)
    # FSDP leaves some weights gathered, in memory of their own.
    mark: Callable[[torch.Tensor], object] = version_of if is_sharded(modules) else _mark
    marks = [(module, name, one, mark(one)) for module, name, one in _own_tensors(modules)]
    yield
    changed = [(module, name) for module, name, one, before in marks if mark(one) != before]
    if changed:
        paths = {id(module): path for path, module in modules[0].named_modules()}
        names = dict.fromkeys(
            join_path(paths.get(id(module), type(module).__name__), name)
            for module, name in changed
        )
        what = "parameters" if any(name in m._parameters for m, name in changed) else "tensors"
        more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
        warn(
            f"the forward changes {what} of the model, and these stay changed: "
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


def _mark(tensor: torch.Tensor) -> tuple[int, bytes]:
    """What a write changes: the version, and a sample, as `.data` has a version of its own."""
    version = version_of(tensor)
    is_plain = type(tensor) in PLAIN_CLASSES and tensor.layout is torch.strided
    if not is_plain or tensor.is_meta or not tensor.numel() or not has_memory(tensor):
        return version, b""
    try:
        with quietly():
            places = _places(tensor.numel()).to(tensor.device)
            sample = tensor.detach().take(places).cpu()
            return version, sample.view(torch.uint8).numpy().tobytes()
    except RuntimeError:
        # A dtype that torch can only store.
        return version, b""


@functools.lru_cache(maxsize=1 << 10)
def _places(count: int) -> torch.Tensor:
    return torch.linspace(0, count - 1, min(count, _SAMPLE), dtype=torch.float64).long()


def is_sharded(modules: Iterable[nn.Module]) -> bool:
    """Whether FSDP, of either version, gathers the weights of some of the modules."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return False
    kinds = tuple(
        kind
        for name in ("FSDPModule", "FullyShardedDataParallel")
        if (kind := getattr(fsdp, name, None)) is not None
    )
    return any(isinstance(module, kinds) for module in modules)


@uninterruptible
def gradients_set(enabled: bool) -> Iterator[None]:
    """`torch.set_grad_enabled`, always restored."""
    before = torch.is_grad_enabled()
    try:
        set_grad_enabled(enabled)
        yield
    finally:
        set_grad_enabled(before)


@uninterruptible
def running_uncompiled() -> Iterator[None]:
    """Run compiled models as plain Python, which calls their modules."""
    if not is_dynamo_loaded():
        yield
        return
    with torch.compiler.set_stance("force_eager"), _compiling_parts_of_torch():
        yield


@uninterruptible
def _compiling_parts_of_torch() -> Iterator[None]:
    """Let torch compile its own functions: uncompiled, `torch.cond` loses its gradients."""
    original = torch.compile

    def compile_with_stance(*args: Any, **kwargs: Any) -> Any:
        compiled: Any = original(*args, **kwargs)
        if not args or not getattr(args[0], "__module__", "").startswith("torch."):
            return compiled

        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.compiler.set_stance("default"):
                return compiled(*args, **kwargs)

        return run

    torch.compile = compile_with_stance
    try:
        yield
    finally:
        torch.compile = original


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
