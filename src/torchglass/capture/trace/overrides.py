"""Looking must not change what runs: torch's fused kernels stay on while a function mode is active.

`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` leave their fast path when
`torch.overrides.has_torch_function` is true, and any active function mode makes it so.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from torchglass.blocks import surely, unbroken

_lock = threading.Lock()
_blocks: dict[object, int] = {}
"""The blocks that keep them, by thread."""
_original: Callable[[Iterable[Any]], bool] = torch.overrides.has_torch_function
_ours: Counter[int] = Counter()
"""How many modes of ours are active, by thread."""


@unbroken
def fused_paths_kept() -> Iterator[None]:
    """Let this thread take torch's fast paths although one mode of ours is active in it."""
    block = object()
    try:
        _keep(block)
        yield
    finally:
        surely(_let_go, block)


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
    if torch._C._len_torch_function_stack() > _ours[threading.get_ident()]:
        return _original(arguments)
    return any(map(_overrides, arguments))


def _overrides(argument: Any) -> bool:
    cls = type(argument)
    return (
        cls is not torch.Tensor
        and cls is not torch.nn.Parameter
        and hasattr(cls, "__torch_function__")
        and cls.__torch_function__ is not torch._C._disabled_torch_function_impl
    )
