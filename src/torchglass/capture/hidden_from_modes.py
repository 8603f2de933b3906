"""Runs our own tensor reads hidden from other torch modes and hooks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torchglass.blocks import deferred_signals
from torchglass.capture.torch_internals import (
    DisableTorchFunction,
    disable_current_modes,
    dispatch_mode_count,
    function_mode_count,
    peek_interpreter_stack,
    temporarily_clear_interpreter_stack,
)


def is_overheard() -> bool:
    """Whether anyone but us would see what we do with a plain tensor."""
    return (
        function_mode_count() > 0
        or dispatch_mode_count() > 0
        or peek_interpreter_stack() is not None
    )


def quietly() -> contextlib.AbstractContextManager[Any]:
    """Keep what we do from the user's modes, tensor classes and function transforms."""
    if not dispatch_mode_count() and peek_interpreter_stack() is None:
        return DisableTorchFunction()
    return _without_modes()


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    with (
        # Modes must be back before anyone ends theirs. Python looks for signals when `__exit__`
        # begins, so one that came there would leave the modes off.
        deferred_signals(),
        DisableTorchFunction(),
        disable_current_modes(),
        temporarily_clear_interpreter_stack(),
    ):
        yield
