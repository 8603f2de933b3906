"""Runs our own tensor reads hidden from other torch modes and hooks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._C._functorch import peek_interpreter_stack
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from torchglass.blocks import uninterrupted


def is_overheard() -> bool:
    """Whether anyone but us would see what we do with a plain tensor."""
    return (
        torch._C._len_torch_function_stack() > 0
        or torch._C._len_torch_dispatch_stack() > 0
        or peek_interpreter_stack() is not None
    )


def quietly() -> contextlib.AbstractContextManager[Any]:
    """Keep what we do from the user's modes, tensor classes and function transforms."""
    if not torch._C._len_torch_dispatch_stack() and peek_interpreter_stack() is None:
        return torch._C.DisableTorchFunction()
    return _without_modes()


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    with (
        # Modes must be back before anyone ends theirs. Python looks for signals when `__exit__`
        # begins, so one that came there would leave the modes off.
        uninterrupted(),
        torch._C.DisableTorchFunction(),
        _disable_current_modes(),
        temporarily_clear_interpreter_stack(),
    ):
        yield
