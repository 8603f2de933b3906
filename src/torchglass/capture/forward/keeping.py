"""With-blocks after which the user's world is what it was before."""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from torchglass.blocks import surely, unbroken

Result = TypeVar("Result")
Replace = Callable[[torch.Tensor], torch.Tensor]

_TABLES = ("_parameters", "_buffers", "_modules")


@unbroken
def keeping_random_state() -> Iterator[None]:
    """Put the random generators of Python, numpy and torch back, on every device in use."""
    with random_state():
        yield


def random_state() -> contextlib.ExitStack:
    """The state of all random generators, which closing it puts back; it need not be closed."""
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


@unbroken
def keeping_modules(modules: Iterable[nn.Module], replace: Mapping[str, Replace]) -> Iterator[None]:
    """Let modules run on replaced tensors, and put back what they rebind meanwhile.

    `replace` says what stands in for the tensors of "_parameters" or of "_buffers". Batch norm
    writes into its buffers without a trace in their version counters, so nothing but a stand-in
    keeps them as they are.
    """
    modules = list(modules)
    sharded = _ShardedParameters(modules)
    saved: list[tuple[dict[str, Any], dict[str, Any]]] = []
    scripted: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        for module in modules:
            attributes = object.__getattribute__(module, "__dict__")
            saved.append((attributes, dict(attributes)))
            if isinstance(module, torch.jit.ScriptModule):
                # Scripted code reaches its tensors past Python: they can only be written back.
                scripted += ((buffer, buffer.clone()) for buffer in module.buffers(recurse=False))
                continue
            for name in _TABLES:
                table = attributes.get(name, {})
                saved.append((table, dict(table)))
                if name in replace:
                    _replace(table, replace[name])
        yield
    finally:
        # FSDP knows which weights it has registered, so it has to put them back itself.
        surely(sharded.restore)
        for table, before in reversed(saved):
            surely(_put_back, table, before)
        for buffer, value in scripted:
            surely(_write_back, buffer, value)


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
"""What torch says where a forward takes a gradient and there is no graph to take it of."""


class KeptGradients(contextlib.AbstractContextManager["KeptGradients"]):
    """Takes the gradients off tensors, and puts them back at the end."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def keep(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take the gradients of leaves off, so that a backward makes new ones."""
        for tensor in tensors:
            if tensor.requires_grad and tensor.is_leaf and id(tensor) not in self._before:
                self._before[id(tensor)] = tensor, tensor.grad
                tensor.grad = None

    def __exit__(self, *_: object) -> None:
        for tensor, gradient in self._before.values():
            tensor.grad = gradient


class _ShardedParameters:
    """Whether the weights of modules under `fully_shard` are sharded or gathered, to restore it.

    A forward without a backward leaves the weights of the root gathered, and one that raises leaves
    FSDP in the middle of a pass.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        states = {id(state): state for state in map(_sharding_of, modules) if state is not None}
        self._states = [
            (state, state._training_state, state._state_ctx.iter_forward_root)
            for state in states.values()
        ]
        self._groups = [
            (group, group._training_state, group._sharded_state)
            for state in states.values()
            for group in _groups_of(state)
        ]

    def restore(self) -> None:
        """Shard or gather the weights as before."""
        for state, training_state, root in self._states:
            state._training_state = training_state
            state._state_ctx.iter_forward_root = root
        for group, training_state, sharded_state in self._groups:
            group._training_state = training_state
            if group._all_gather_result is not None:
                group.wait_for_unshard()
            if group._sharded_state is not sharded_state:
                group.unshard() if sharded_state.name == "UNSHARDED" else group._to_sharded()
                group.wait_for_unshard()


def _sharding_of(module: nn.Module) -> Any:
    """The state that `fully_shard` keeps of a module; None of one that is not sharded."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not isinstance(module, getattr(fsdp, "FSDPModule", ())):
        return None
    return module._get_fsdp_state()  # type: ignore[operator]


def _groups_of(state: Any) -> list[Any]:
    """The groups of weights that are gathered together; earlier versions of torch have one."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    return list(groups)


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


@unbroken
def gradients_set(enabled: bool) -> Iterator[None]:
    """`torch.set_grad_enabled`, put back for certain."""
    before = torch.is_grad_enabled()
    try:
        torch._C._set_grad_enabled(enabled)
        yield
    finally:
        torch._C._set_grad_enabled(before)


@unbroken
def running_uncompiled() -> Iterator[None]:
    """Run compiled models as the Python that they were made of, which calls their modules."""
    # Without dynamo nothing is compiled yet, and importing it takes a second.
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"), _compiling_parts_of_torch():
        yield


@unbroken
def _compiling_parts_of_torch() -> Iterator[None]:
    """Let torch compile its own: `torch.cond` loses its gradients where it is not compiled."""
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


def has_compiled(modules: Iterable[nn.Module]) -> bool:
    """Whether one of the modules was compiled."""
    if "torch._dynamo" not in sys.modules:
        return False
    from torch._dynamo import OptimizedModule

    return any(
        isinstance(module, OptimizedModule) or module._compiled_call_impl is not None
        for module in modules
    )


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
