"""What is to be done once nothing has happened for a while."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from torchglass.errors import Fence

SECONDS = 0.5
_MOST_FAILURES = 8
"""After so many errors of ours nothing more is done."""


class Idleness:
    """Calls a function in a thread of its own, unless it is stopped or begun anew before.

    The thread sleeps until the time is up, however often that is put off meanwhile: beginning anew
    costs next to nothing.
    """

    def __init__(self, then: Callable[[], None], seconds: float = SECONDS) -> None:
        self._then = then
        self._seconds = seconds
        self._deadline = math.inf
        self._thread: threading.Thread | None = None
        self._change = threading.Condition()
        self._waits_for_start = False
        self._is_closed = False
        self._fence = Fence("steps are shown later than they could be")

    def start(self) -> None:
        """From now on nothing is happening."""
        with self._change:
            self._deadline = time.monotonic() + self._seconds
            if self._waits_for_start:
                self._change.notify()
            elif self._thread is None and not self._is_closed:
                self._thread = threading.Thread(
                    target=self._work, name="torchglass idleness", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Something is happening."""
        self._deadline = math.inf

    def close(self) -> None:
        """Call nothing any more, and let go of the thread."""
        with self._change:
            self._is_closed = True
            self._change.notify()

    def _work(self) -> None:
        for _ in range(_MOST_FAILURES):
            with self._fence:
                while self._is_time_up():
                    self._then()
                return

    def _is_time_up(self) -> bool:
        """Wait for it; False if it will never be."""
        with self._change:
            while not self._is_closed:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    self._deadline = math.inf
                    return True
                self._waits_for_start = left == math.inf
                self._change.wait(None if self._waits_for_start else left)
                self._waits_for_start = False
        return False
