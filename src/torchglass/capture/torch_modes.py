"""Torch function and dispatch modes of ours, which leave what torch runs and compiles unchanged.

`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` leave their fast path when
`torch.overrides.has_torch_function` is true, and any active function mode makes it so.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from torchglass.blocks import undo_reliably, uninterruptible
from torchglass.capture.torch_internals import (
    DISABLED_TORCH_FUNCTION,
    TorchDispatchMode,
    dispatch_modes,
    function_mode_at,
    function_mode_count,
    let_modes_see_higher_order_ops,
    pop_dispatch_mode,
    pop_function_mode,
    push_dispatch_mode,
    push_function_mode,
)

Mode = TypeVar("Mode", TorchFunctionMode, TorchDispatchMode)


@uninterruptible
def mode_on(mode: Mode) -> Iterator[Mode]:
    """Have a mode on until the block ends, and nowhere on the stack after that.

    torch's own blocks take off whatever is on top, and an interrupt keeps them from it.
    """
    is_for_functions = TorchFunctionMode in type(mode).__mro__
    take_off = _take_off_function_mode if is_for_functions else _take_off_dispatch_mode
    begin: Callable[[], object] = mode.__enter__
    try:
        begin()
        yield mode
    finally:
        undo_reliably(take_off, mode)


def run_below(mode: TorchFunctionMode, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a function with a mode on that is handling another one and therefore off."""
    push_function_mode(mode)
    try:
        return run(*args, **kwargs)
    finally:
        # torch has not put it back if Ctrl-C came while another op was handled.
        depth = function_mode_count()
        if depth and function_mode_at(depth - 1) is mode:
            pop_function_mode()


def _take_off_function_mode(mode: TorchFunctionMode) -> None:
    others = []
    for _ in range(function_mode_count()):
        top = pop_function_mode()
        if top is not mode:
            others.append(top)
    for other in reversed(others):
        push_function_mode(other)


def _take_off_dispatch_mode(mode: TorchDispatchMode) -> None:
    while any(one is mode for one in dispatch_modes()):
        above = []
        while dispatch_modes()[-1] is not mode:
            above.append(pop_dispatch_mode())
        mode.__exit__(None, None, None)
        for other in reversed(above):
            push_dispatch_mode(other)


class LookingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that looks at kernels, of whatever kind, and changes nothing about them."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would import dynamo to keep it out of a mode's method: seconds at the first kernel.
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        # Else nothing is compiled below the mode: `torch.cond` loses its gradients, and functions
        # first called here stay uncompiled for good.
        return True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        let_modes_see_higher_order_ops(type(self))


_lock = threading.Lock()
_blocks: dict[object, int] = {}
"""The blocks that keep them, by thread."""
_original: Callable[[Iterable[Any]], bool] = torch.overrides.has_torch_function
_ours: Counter[int] = Counter()
"""How many modes of ours are active, by thread."""


@uninterruptible
def fused_paths_kept() -> Iterator[None]:
    """Let this thread take torch's fast paths although one mode of ours is active in it."""
    block = object()
    try:
        _keep(block)
        yield
    finally:
        undo_reliably(_let_go, block)


def _keep(block: object) -> None:
    global _original  # noqa: PLW0603 - torch has one such function for all threads
    with _lock:
        if not _blocks:
            _original = torch.overrides.has_torch_function
        _blocks[block] = threading.get_ident()
        _count()
        _stand_in(_of_arguments)


def _let_go(block: object) -> None:
    with _lock:
        _blocks.pop(block, None)
        _count()
        if not _blocks and torch.overrides.has_torch_function is _of_arguments:
            _stand_in(_original)


def _count() -> None:
    global _ours  # noqa: PLW0603 - see _keep
    _ours = Counter(_blocks.values())


def _stand_in(function: Callable[[Iterable[Any]], bool]) -> None:
    vars(torch.overrides)["has_torch_function"] = function


def _of_arguments(arguments: Iterable[Any]) -> bool:
    """Whether the arguments, or a mode that is not ours, want to see the call."""
    arguments = tuple(arguments)
    if function_mode_count() > _ours[threading.get_ident()]:
        return _original(arguments)
    return any(map(_overrides, arguments))


def _overrides(argument: Any) -> bool:
    cls = type(argument)
    return (
        cls is not torch.Tensor
        and cls is not torch.nn.Parameter
        and hasattr(cls, "__torch_function__")
        and cls.__torch_function__ is not DISABLED_TORCH_FUNCTION
    )
