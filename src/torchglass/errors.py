"""Every error that Torchglass raises on purpose.

* TorchglassError
  x TargetError        what was asked for is not there, or is nothing we can read
    + UnsafeFileError  reading it would run code that came with the file
  x CaptureError       the model could not be observed
  x StoreError         a run could not be written or read
    + SchemaError      it was written by another version
  x ViewError          a view was asked for something it cannot show
  x LookupFailedError  no op, or more than one, has the name that was asked for
  x NonFiniteError     an op made a NaN or an Inf, and a guard was asked to stop there

An exception of the user's own code is never wrapped in one of these: it passes through as it is.
What goes wrong on our side inside the user's run is a TorchglassWarning, and stops nothing.
"""

import sys
import warnings
from types import TracebackType

_ON_THE_WAY = ("torchglass", "torch", "contextlib")
"""The packages that stand between the user's line and a warning about it."""


class TorchglassError(Exception):
    """The base of all errors that Torchglass raises on purpose."""


class TargetError(TorchglassError, ValueError):
    """What was asked for is not there, or is nothing we can read."""


class UnsafeFileError(TargetError):
    """Reading the file would run code that came with it."""


class CaptureError(TorchglassError):
    """The model could not be observed."""


class StoreError(TorchglassError):
    """A run could not be written or read."""


class SchemaError(StoreError):
    """The run was written by another version of Torchglass."""


class ViewError(TorchglassError, ValueError):
    """A view was asked for something it cannot show."""


class TorchglassWarning(RuntimeWarning):
    """Something of ours went wrong inside the user's run, which goes on."""


def warn(message: str, at: tuple[str, int] | None = None) -> None:
    """Say what went wrong without raising, even where warnings are turned into errors.

    `at` is the file and line that it is about; by default the user's line that is running.
    """
    try:
        if at is not None:
            warnings.warn_explicit(message, TorchglassWarning, *at)
        else:
            warnings.warn(message, TorchglassWarning, stacklevel=_level_of_user())
    except TorchglassWarning:
        import logging

        logging.getLogger("torchglass").warning(message)


class Fence:
    """Keeps an error of ours out of the user's run: it becomes a warning, each one once.

    with fence:
        measure(tensor)             # an error in here is a warning

    except Exception as problem:    # the same, where a with-block costs too much
        fence.caught(problem)
    """

    __slots__ = ("_lost", "_told")

    def __init__(self, lost: str) -> None:
        """`lost` says what the user goes without: "some statistics were not recorded"."""
        self._lost = lost
        self._told: set[str] = set()

    def caught(self, problem: BaseException) -> None:
        """Warn of an error, if it is new; this never raises."""
        try:
            message = f"{type(problem).__name__}: {problem}"
            if message in self._told or len(self._told) >= _MOST_WARNINGS:
                return
            self._told.add(message)
            where = _where_ours(problem)
            hint = f" This is a bug in Torchglass ({where}): please report it." if where else ""
            warn(f"{self._lost}; the training continues: {message}.{hint}")
        except Exception:  # noqa: BLE001 - at the end of the stack even a warning is a call too many
            return

    def __enter__(self) -> None:
        """Errors are kept in from here on."""

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.caught(error)
        return True


_MOST_WARNINGS = 5
"""Of so many different errors of one fence the user is told."""


def _where_ours(problem: BaseException) -> str:
    """The module and line of ours that an error came from; "" for what is not a bug of ours."""
    if isinstance(problem, TorchglassError):
        return ""
    found, name = "", ""
    traceback = problem.__traceback__
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if name == "torchglass":
            found = f"{traceback.tb_frame.f_globals['__name__']}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    # What was raised in other code, such as a function that we were given, is not ours.
    return found if name in _ON_THE_WAY else ""


def _level_of_user() -> int:
    """The stack level of the innermost line of the user's; of `warn` where there is none."""
    frame, level = sys._getframe(1), 1
    while str(frame.f_globals.get("__name__")).partition(".")[0] in _ON_THE_WAY:
        if frame.f_back is None:
            return 1
        frame, level = frame.f_back, level + 1
    return level


class LookupFailedError(TorchglassError, KeyError):
    """No op, or more than one, has the name that was asked for."""

    # KeyError shows its message quoted, as if it were the key.
    __str__ = Exception.__str__
