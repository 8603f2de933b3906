"""How a training ended, what is written when it is idle, and the fence around our own errors."""

from __future__ import annotations

import bdb
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING

from torchglass.errors import Fence
from torchglass.host_program import is_interactive
from torchglass.records.run import Ending, State

if TYPE_CHECKING:
    from torchglass.capture.watch.watcher import Watcher

_NORMAL = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Exceptions that end a block normally."""

Line = tuple[CodeType, int]


def ending_of(error: BaseException | None, step: int) -> Ending:
    """What is recorded about the exception that ended a training; None if it ended normally."""
    if error is None or isinstance(error, _NORMAL) or _is_plain_exit(error):
        return Ending(step=step)
    is_users = isinstance(error, (KeyboardInterrupt, bdb.BdbQuit))
    state: State = "interrupted" if is_users else "stopped"
    try:
        message = str(error).strip().partition("\n")[0]
    except Exception:  # noqa: BLE001 - an exception of the user's may not know how to say itself
        message = ""
    return Ending(state=state, step=step, error=type(error).__name__, message=message)


class ErrorsSinceStart:
    """The exceptions that existed before a training began, and so did not end it."""

    def __init__(self) -> None:
        self._before = {id(_handled()), id(_unhandled())}

    def current(self) -> BaseException | None:
        """The exception that is being handled, or that ended the program, if it is new.

        Python stores an uncaught exception in `sys` before it runs exit handlers. At a prompt it
        may come from any earlier command.
        """
        found = _handled() or (None if is_interactive() else _unhandled())
        return None if found is None or id(found) in self._before else found


class LastUpdate:
    """Where in the program the latest step ended.

    An exception from a later line of the loop belongs to the same step; one from an earlier line
    belongs to the next step.
    """

    def __init__(self) -> None:
        self._lines: Sequence[Line] = ()

    def note(self) -> None:
        """A step ended here."""
        lines: list[Line] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            lines.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        self._lines = lines[::-1]

    def is_before(self, traceback: TracebackType | None) -> bool:
        """Whether an exception belongs to the next step."""
        raised: list[Line] = []
        while traceback is not None:
            raised.append((traceback.tb_frame.f_code, traceback.tb_lineno))
            traceback = traceback.tb_next
        codes = [code for code, _ in self._lines]
        if not raised or raised[0][0] not in codes:
            return False
        ours = self._lines[codes.index(raised[0][0]) :]
        for (code, line), (other, error_line) in zip(ours, raised, strict=False):
            if code is not other:
                return False
            if line != error_line:
                return error_line < line
        return False


def _is_plain_exit(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and error.code in (None, 0)


def _handled() -> BaseException | None:
    return sys.exc_info()[1]


def _unhandled() -> BaseException | None:
    found: BaseException | None = getattr(sys, "last_value", None)
    return found


SECONDS = 0.5
_MOST_FAILURES = 8
"""After this many of our own errors, recording stops."""


class IdleFlush:
    """Calls a function in its own thread after a while, unless it is stopped or restarted.

    The thread sleeps until the time is up, however often it is postponed meanwhile, so a restart
    costs next to nothing.
    """

    def __init__(self, then: Callable[[], bool | None], seconds: float = SECONDS) -> None:
        """`then` returns whether it must be called again, unless the training continues."""
        self._then = then
        self._seconds = seconds
        self._deadline = math.inf
        self._stops = 0
        self._thread: threading.Thread | None = None
        self._change = threading.Condition()
        self._waits_for_start = False
        self._is_closed = False
        self._fence = Fence("steps are shown late")

    def start(self) -> None:
        """The training is idle from now on."""
        with self._change:
            self._deadline = time.monotonic() + self._seconds
            if self._waits_for_start:
                self._change.notify()
            elif self._thread is None and not self._is_closed:
                self._thread = threading.Thread(
                    target=self._work, name="torchglass idle flush", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """The training is active."""
        self._stops += 1
        self._deadline = math.inf

    def close(self) -> None:
        """Make no more calls, and release the thread."""
        with self._change:
            self._is_closed = True
            self._change.notify()

    def _work(self) -> None:
        for _ in range(_MOST_FAILURES):
            with self._fence:
                while self._is_time_up():
                    stops = self._stops
                    if self._then() and self._stops == stops:
                        self._deadline = time.monotonic() + self._seconds
                        if self._stops != stops:
                            self._deadline = math.inf
                return

    def _is_time_up(self) -> bool:
        """Wait until the time is up; False if it was cancelled."""
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


class LockedFence:
    """A with-block for one thread at a time, in which our own errors become warnings."""

    __slots__ = ("_watcher", "lock")

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self.lock.release()
        if not isinstance(error, Exception):
            return False
        self._watcher.miss(error)
        return True
