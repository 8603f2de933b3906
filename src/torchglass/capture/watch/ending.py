"""How a training ended, as seen by whoever is told to close its run."""

from __future__ import annotations

import bdb
import sys
from collections.abc import Sequence
from types import CodeType, FrameType, TracebackType

from torchglass.records.run import Ending, State

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


class Errors:
    """The exceptions that were there before a training began, which did not end it."""

    def __init__(self) -> None:
        self._before = {id(_handled()), id(_unhandled())}

    def current(self) -> BaseException | None:
        """The exception that is being handled, or that has ended the program, if it is a new one.

        Python leaves one that nobody caught in `sys` before it calls what is to run at exit. At a
        prompt it may be that of any command since.
        """
        is_prompt = hasattr(sys, "ps1") or sys.flags.interactive or "ipykernel" in sys.modules
        found = _handled() or (None if is_prompt else _unhandled())
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
