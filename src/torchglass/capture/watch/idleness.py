"""What is to be done once nothing has happened for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable

SECONDS = 0.5


class Idleness:
    """Calls a function in a thread of its own, unless it is stopped or begun anew before."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._timer: threading.Timer | None = None

    def start(self, then: Callable[[], None]) -> None:
        """From now on nothing is happening."""
        self.stop()
        self._timer = threading.Timer(self._seconds, then)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        """Something is happening."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
