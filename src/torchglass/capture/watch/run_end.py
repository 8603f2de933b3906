"""How a training ended, what is written when it is idle, and the fence around errors of ours."""

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
"""What leaves a block without anything being wrong."""

Line = tuple[CodeType, int]


def ending_of(error: BaseException | None, step: int) -> Ending:
    """What is kept of the exception that ended a training; None for one that ended by itself."""
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
    """The exceptions that were there before a training began, which did not end it."""

    def __init__(self) -> None:
        self._before = {id(_handled()), id(_unhandled())}

    def current(self) -> BaseException | None:
        """The exception that is being handled, or that has ended the program, if it is a new one.

        Python leaves one that nobody caught in `sys` before it calls what is to run at exit. At a
        prompt it may be that of any command since.
        """
        found = _handled() or (None if is_interactive() else _unhandled())
        return None if found is None or id(found) in self._before else found


class LastUpdate:
    """Where in the program the latest step came to its end.

    An exception that comes from a later line of the loop is of the same step; one from an earlier
    line is of the next, which nothing else has told of yet.
    """

    def __init__(self) -> None:
        self._lines: Sequence[Line] = ()

    def note(self) -> None:
        """A step has come to its end here."""
        lines: list[Line] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            lines.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        self._lines = lines[::-1]

    def is_before(self, traceback: TracebackType | None) -> bool:
        """Whether an exception is of the step after it."""
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
"""After so many errors of ours nothing more is done."""


class IdleFlush:
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
        self._fence = Fence("steps are shown late")

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


class LockedFence:
    """A with-block of one thread at a time, in which an error of ours becomes a warning."""

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
