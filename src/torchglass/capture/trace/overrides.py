"""Looking must not change what runs: torch's fused kernels stay on while a function mode is active.

`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` leave their fast path when
`torch.overrides.has_torch_function` is true, and any active function mode makes it so.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

_lock = threading.Lock()
_users = 0
_original: Callable[[Iterable[Any]], bool] = torch.overrides.has_torch_function
_ours = threading.local()


@contextlib.contextmanager
def fused_paths_kept() -> Iterator[None]:
    """Let this thread take torch's fast paths although one mode of ours is active in it."""
    _count_users(+1)
    _ours.modes = getattr(_ours, "modes", 0) + 1
    try:
        yield
    finally:
        _ours.modes -= 1
        _count_users(-1)


def _count_users(change: int) -> None:
    global _users, _original  # noqa: PLW0603 - torch has one such function for all threads
    with _lock:
        if _users == 0:
            _original = torch.overrides.has_torch_function
            _stand_in(_of_arguments)
        _users += change
        if _users == 0:
            _stand_in(_original)


def _stand_in(function: Callable[[Iterable[Any]], bool]) -> None:
    vars(torch.overrides)["has_torch_function"] = function


def _of_arguments(arguments: Iterable[Any]) -> bool:
    """Whether the arguments, or a mode that is not ours, want to see the call."""
    arguments = tuple(arguments)
    if torch._C._len_torch_function_stack() > getattr(_ours, "modes", 0):
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
