"""A clock that stands still while we are at work, so that no time of ours is in the user's."""

from __future__ import annotations

import time
from collections.abc import Callable


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
