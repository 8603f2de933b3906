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


def warn(message: str) -> None:
    """Say what went wrong without raising, even where warnings are turned into errors."""
    try:
        warnings.warn(message, TorchglassWarning, stacklevel=_level_of_user())
    except TorchglassWarning:
        import logging

        logging.getLogger("torchglass").warning(message)


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
