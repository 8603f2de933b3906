"""What the command line writes: results to stdout, all else to stderr, an error in one line."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import cyclopts
from cyclopts import CycloptsError

from torchglass.errors import TorchglassError

STDOUT = Path("-")

_OURS = Path(__file__).parents[1]
_CYCLOPTS = Path(cyclopts.__file__).parent
_STDLIB = Path(os.__file__).parent


def stdout_for_results() -> contextlib.AbstractContextManager[object]:
    """What the user's code prints goes to stderr, so that a pipe gets the result alone."""
    return contextlib.redirect_stdout(sys.stderr)


def export(to_format: Callable[[Path | None], str], path: Path) -> None:
    """Write a result to a file, or print it where the file is "-"."""
    if path == STDOUT:
        print(to_format(None).rstrip("\n"))
        return
    to_format(path)
    tell(f"wrote {path}")


def tell(message: str) -> None:
    """Say something that is no result."""
    print(f"torchglass: {message}", file=sys.stderr)


def explain_error(error: Exception, *, debug: bool) -> None:
    """One line for an error, below its traceback where that is wanted."""
    ours = isinstance(error, (CycloptsError, TorchglassError))
    message = str(error) if ours else _describe(error)
    if debug:
        traceback.print_exception(error)
    if isinstance(error, CycloptsError):
        message += f" See torchglass {' '.join([*(error.command_chain or ()), '--help'])}."
    elif not (ours or debug):
        # An exception that a traced forward raised carries the trace.
        story = "torchglass explain tells why, " if hasattr(error, "trace") else ""
        message += f" ({story}--debug shows the traceback)"
    tell(" ".join(message.split()))


def _describe(error: Exception) -> str:
    """An exception of the user's code with its place in that code; or a confession."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} at {error.filename}:{error.lineno}"
    text = ": ".join(filter(None, (type(error).__name__, str(error))))
    frames = traceback.extract_tb(error.__traceback__)
    # An op that we look at is called by us, for a model that called it: ours is only what nobody
    # else has a part in.
    is_ours = all(_is_library(Path(frame.filename), torch=False) for frame in frames)
    if is_ours and not isinstance(error, OSError):
        return f"{text}: a bug in Torchglass, please report it"
    theirs = [frame for frame in frames if not _is_library(Path(frame.filename))]
    place = f" at {os.path.relpath(theirs[-1].filename)}:{theirs[-1].lineno}" if theirs else ""
    notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()) if "\n" not in note)
    return f"{text}{place}{notes}"


def _is_library(file: Path, *, torch: bool = True) -> bool:
    """Whether a frame in this file is ours, Python's or torch's, and so not the user's."""
    init = getattr(sys.modules.get("torch"), "__file__", None) if torch else None
    libraries = [_OURS, _CYCLOPTS, *([Path(init).parent] if init else [])]
    if any(library in file.parents for library in libraries) or file.name.startswith("<"):
        return True
    return _STDLIB in file.parents and "site-packages" not in file.parts
