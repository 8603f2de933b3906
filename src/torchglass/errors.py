"""Every error that Torchglass raises on purpose.

* TorchglassError
  x TargetError        the target does not exist or cannot be read
    + UnsafeFileError  reading it would run code from the file
  x CaptureError       the model could not be observed
  x StoreError         a run could not be written or read
    + SchemaError      it was written by another version
  x ViewError          a view cannot show what was requested
  x LookupFailedError  no op, or more than one, has the requested name
  x NonFiniteError     an op produced NaN or Inf under `guard(on="raise")`

Exceptions of the user's own code are never wrapped. An error of ours inside the user's run becomes
a TorchglassWarning and stops nothing.
"""

import sys
import warnings
from types import TracebackType

_ON_THE_WAY = ("torchglass", "torch", "contextlib")
"""Packages that are skipped to find the user's line for a warning."""


class TorchglassError(Exception):
    """The base of all errors that Torchglass raises on purpose."""


class TargetError(TorchglassError, ValueError):
    """The target does not exist or cannot be read."""


class UnsafeFileError(TargetError):
    """Reading the file would run code from it."""


class CaptureError(TorchglassError):
    """The model could not be observed."""


class StoreError(TorchglassError):
    """A run could not be written or read."""


class SchemaError(StoreError):
    """The run was written by another version of Torchglass."""


class ViewError(TorchglassError, ValueError):
    """A view cannot show what was requested."""


class TrainingStoppedError(TorchglassError):
    """The training is broken, and `watch` was told to stop it."""


class TorchglassWarning(RuntimeWarning):
    """An error of ours inside the user's run, which continues."""


def warn(message: str, at: tuple[str, int] | None = None) -> None:
    """Warn without raising, even where warnings are errors.

    `at` is the file and line of the warning; by default the user's current line.
    """
    try:
        if at is not None:
            warnings.warn_explicit(message, TorchglassWarning, *at)
        else:
            warnings.warn(message, TorchglassWarning, stacklevel=_level_of_user())
    except TorchglassWarning:
        import logging

        logging.getLogger("torchglass").warning(message)


def error_line(error: BaseException) -> str:
    """An exception in one line, whatever its own text does."""
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an error whose text raises is still an error with a type
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


class Fence:
    """Turns errors of ours into warnings, each one once, so that they never stop the user's run.

    with fence:
        measure(tensor)             # an error in here is a warning

    except Exception as problem:    # the same, if a with-block costs too much
        fence.caught(problem)
    """

    __slots__ = ("_lost", "_told")

    def __init__(self, lost: str) -> None:
        """`lost` says what is missing: "some statistics were not recorded"."""
        self._lost = lost
        self._told: set[str] = set()

    def caught(self, problem: BaseException) -> None:
        """Warn of an error if it is new. Never raises."""
        try:
            message = f"{type(problem).__name__}: {problem}"
            if message in self._told or len(self._told) >= _MOST_WARNINGS:
                return
            self._told.add(message)
            where = _where_ours(problem)
            hint = f" This is a bug in Torchglass ({where}): please report it." if where else ""
            warn(f"{self._lost}; the training continues: {message}.{hint}")
        except Exception:  # noqa: BLE001 - at the end of the stack even a warning can overflow it
            return

    def __enter__(self) -> None:
        """Nothing to do: `__exit__` catches."""

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.caught(error)
        return True


_MOST_WARNINGS = 5
"""Different errors that one fence warns of."""


def _where_ours(problem: BaseException) -> str:
    """Our module and line that an error came from; "" if it is not a bug of ours."""
    if isinstance(problem, TorchglassError):
        return ""
    found, name = "", ""
    traceback = problem.__traceback__
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if name == "torchglass":
            found = f"{traceback.tb_frame.f_globals['__name__']}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    # An error raised in other code, such as a function of the user's, is not ours.
    return found if name in _ON_THE_WAY else ""


def _level_of_user() -> int:
    """The stack level of the user's innermost line; that of `warn` if there is none."""
    frame, level = sys._getframe(1), 1
    while str(frame.f_globals.get("__name__")).partition(".")[0] in _ON_THE_WAY:
        if frame.f_back is None:
            return 1
        frame, level = frame.f_back, level + 1
    return level


class LookupFailedError(TorchglassError, KeyError):
    """No op, or more than one, has the requested name."""

    # KeyError would quote its message like a key.
    __str__ = Exception.__str__
