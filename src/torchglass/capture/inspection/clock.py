"""A clock that stands still while we are at work, so that no time of ours is in the user's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import torch


class StandingClock:
    """Tells the time without what passed in its with-blocks, which may be nested."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._lost_ns = 0
        self._depth = 0
        self._stood_still_ns = 0

    def now(self) -> int:
        """Nanoseconds from some moment on."""
        return self._clock() - self._lost_ns

    def __enter__(self) -> None:
        if not self._depth:
            self._stood_still_ns = self._clock()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._lost_ns += self._clock() - self._stood_still_ns


def waiting() -> Callable[[], None]:
    """What waits for the device where there is one: only then has a module done its work."""
    return _wait if torch.accelerator.is_available() else _no_wait


def _no_wait() -> None:
    return None


def _wait() -> None:
    # What went wrong on the device is for the user's own next operation to say.
    with contextlib.suppress(Exception):
        if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            torch.accelerator.synchronize()
