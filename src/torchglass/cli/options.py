"""The command line's one application, the options that its commands share, and what they print.

Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard, cast

import cyclopts
from cyclopts import App, CycloptsError, Group, Parameter

from torchglass import __version__
from torchglass.analyse.sibling_order import Sort
from torchglass.errors import TargetError, TorchglassError, TorchglassWarning
from torchglass.host_program import has_terminal
from torchglass.tables.export import json_text, written
from torchglass.tables.text import BRIEF_LINES, shortened_lines

if TYPE_CHECKING:
    from torchglass.results.report import Report
    from torchglass.results.result import Result

LOOKING = Group("Show a model or a run", sort_key=1)
RUNNING = Group("Run a model", sort_key=2)
PROGRAMS = Group("For programs, agents and editors", sort_key=3)
STARTING = Group("Get started", sort_key=4)

app = App(
    name="torchglass",
    version=__version__,
    group_commands=RUNNING,
    group_parameters="Options",
    help="""Turn a PyTorch model into a glass box.

A TARGET is one of:

- a model in a file or module: `net.py:Net`, `torchvision.models:resnet18` (a class, an instance,
  or a function that returns one)
- a checkpoint: `weights.safetensors`, `model.pt`, or a folder of shards
- a recorded run: `runs/mnist.glass`, or `s3://bucket/mnist` in an object store

Start with `torchglass demo`. Run `torchglass COMMAND --help` for examples.
""",
    help_format="markdown",
    suppress_keyboard_interrupt=False,
)

for _flag in ("--help", "--version"):
    app[_flag].group = STARTING

# A path, so that the shells complete the names of files.
Target = Annotated[
    Path, Parameter(help="`net.py:Net`, `package.module:name`, a checkpoint or a run.")
]
Model = Annotated[Path, Parameter(help="`net.py:Net` or `package.module:name`.")]
File = Annotated[Path, Parameter(allow_leading_hyphen=True)]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
Inputs = Annotated[
    tuple[str, ...],
    Parameter(
        negative="",
        show_default=False,
        help="Run one forward on a tensor of this shape: `1x3x224x224`, `2x16:long` (indices), "
        "`mask=2x16:bool` (by name). Repeat the option for each argument of forward.",
    ),
]


Debug = Annotated[Flag, Parameter(help="Show the traceback of an error.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """The options of every command that takes any target."""

    unsafe: Flag = False
    """Allow the checkpoint to run the code it contains (pickle). Only for files you trust."""
    debug: Debug = False


@Parameter(name="*")
@dataclass(frozen=True)
class DisplayOptions:
    """What to show of a model, and in which order."""

    input: Inputs = ()
    fake: Flag = False
    """Run that forward on fake tensors: no memory, no arithmetic."""
    depth: int | None = None
    """Levels below the model to show."""
    sort: Sort | None = None
    """Sort the modules of each parent by this."""
    fold: Flag = False
    """Show repeated modules as one row."""


STDOUT = Path("-")


@Parameter(name="*")
@dataclass(frozen=True)
class ResultOptions:
    """How every command gives its result: all of it, in brief, or as JSON."""

    json: File | None = None
    """Print JSON; with a file that ends in .json, write it there. `torchglass schema` says what
    it contains."""
    brief: Flag = False
    """Print at most 40 lines, and how many were left out."""

    def show(
        self,
        result: Result,
        *,
        text: str | None = None,
        more: Sequence[str] = (),
        document: dict[str, Any] | None = None,
    ) -> None:
        """Write the requested files, and print the text unless one of them was printed.

        Args:
            result: What the verb returned.
            text: What to print instead of its own text.
            more: Further texts to print.
            document: The JSON, if it is not all of the result.
        """
        self._export(result, document)
        if STDOUT in self._files().values():
            return
        width = terminal_width()
        if not self.brief:
            text = result.text(width=width) if text is None else text
            print("\n".join([text, *more]))
        elif text is None and not more:
            print(result.brief(width=width))
        else:
            text = result.brief(width=width) if text is None else text
            print(shortened_lines("\n".join([text, *more]), BRIEF_LINES))

    def check(self) -> None:
        """Raise if several results would be printed to stdout."""
        expect_one_printed(**self._files())

    def _files(self) -> dict[str, Path | None]:
        return {"json": self.json}

    def _export(self, result: Result, document: dict[str, Any] | None) -> None:
        def to_json(file: Path | None) -> str:
            return written(json_text(document or result.document()), file)

        if self.json is not None:
            export(to_json, self.json)


@Parameter(name="*")
@dataclass(frozen=True)
class TableOptions(ResultOptions):
    """How a command gives a table: also as CSV or HTML."""

    csv: File | None = None
    """Write a CSV file; `-` prints it."""
    html: File | None = None
    """Write a self-contained HTML file; `-` prints it."""

    def _files(self) -> dict[str, Path | None]:
        return {**super()._files(), "html": self.html, "csv": self.csv}

    def _export(self, result: Result, document: dict[str, Any] | None) -> None:
        report = cast("Report", result)
        for path, to_format in ((self.html, report.to_html), (self.csv, report.to_csv)):
            if path is not None:
                export(to_format, path)
        super()._export(result, document)


@Parameter(name="*")
@dataclass(frozen=True)
class ExplorableOptions(TableOptions):
    """How a command gives a table that can be laid over the tree of modules."""

    explore: Flag = False
    """Open the result in the explorer instead of printing it."""

    def show(self, result: Result, **texts: Any) -> None:
        """Write the requested files, then open the explorer, or print the text."""
        if not self.explore or STDOUT in self._files().values():
            super().show(result, **texts)
        elif not has_terminal():
            tell("the explorer needs a terminal, so the result is printed.")
            super().show(result, **texts)
        else:
            from torchglass.api.explore import walk_through
            from torchglass.targets.result_readers import reader_of_result

            if reader_of_result(result) is None:
                raise TargetError("--explore is for a model, not for a recorded file")
            self._export(result, texts.get("document"))
            walk_through(result, (), {})


USUAL = Common()
EVERYTHING = DisplayOptions()
PRINTED = ResultOptions()
AS_TABLE = TableOptions()
EXPLORABLE = ExplorableOptions()

_OURS = Path(__file__).parents[1]
_CYCLOPTS = Path(cyclopts.__file__).parent
_STDLIB = Path(os.__file__).parent
_MODULE_CALL = "_call_impl"
"""The function of torch that calls the forward of a module."""
_NEEDS_INDICES = re.compile(r"scalar types: Long|used as ind(ices|exes) must be|dtype to be Long")


def stdout_for_results() -> contextlib.AbstractContextManager[object]:
    """Send what the user's code prints to stderr, so that a pipe gets only the result."""
    return contextlib.redirect_stdout(sys.stderr)


def export(to_format: Callable[[Path | None], str], path: Path) -> None:
    """Write a result to a file, or print it if the file is "-"."""
    if path == STDOUT:
        print(to_format(None).rstrip("\n"))
        return
    to_format(path)
    tell(f"wrote {path}")


def expect_one_printed(**files: Path | None) -> None:
    """Raise if several results would be printed to stdout."""
    printed = [f"--{name}" for name, file in files.items() if file == STDOUT]
    if len(printed) > 1:
        raise TargetError(
            f"only one result can go to stdout, not {' and '.join(printed)}. "
            "Write the others to a file."
        )


def tell(message: str) -> None:
    """Print a message that is not a result."""
    print(f"torchglass: {message}", file=sys.stderr)


@contextlib.contextmanager
def quiet_fakes() -> Iterator[None]:
    """Keep torch from logging the traceback of an op that fails on fake tensors."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


@contextlib.contextmanager
def telling_warnings() -> Iterator[None]:
    """Print our own warnings in one line; others look as usual."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def tell_ours(
            message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any
        ) -> None:
            if issubclass(category, TorchglassWarning):
                tell(" ".join(str(message).split()))
            else:
                show(message, category, *args, **kwargs)

        warnings.showwarning = tell_ours
        yield


def explain_error(error: Exception, words: Sequence[str]) -> None:
    """Print an error in one line, with --debug below its traceback."""
    debug = "--debug" in words
    if debug:
        traceback.print_exception(error)
    told = isinstance(error, (CycloptsError, TorchglassError))
    message = str(error) if told else _describe(error)
    tell(" ".join(f"{message}{_advice(error, words, debug=debug)}".split()))


def _advice(error: Exception, words: Sequence[str], *, debug: bool) -> str:
    """What to do next, if the error does not say it."""
    if isinstance(error, CycloptsError):
        return f" See torchglass {' '.join([*(error.command_chain or ()), '--help'])}."
    if debug or isinstance(error, TorchglassError) or _is_about_a_file(error):
        return ""
    ways = [missing_input(error) or float_indices(error, words), "--debug shows the traceback"]
    if not ways[0] and _came_out_of_a_forward(error):
        ways[0] = "torchglass explain shows why"
    return f" ({', '.join(filter(None, ways))})"


def missing_input(error: BaseException | None) -> str:
    """What to do if a forward got too few arguments; "" for other errors."""
    if "forward() missing" not in str(error):
        return ""
    return "pass one with --input 1x3x224x224"


def float_indices(error: BaseException | None, words: Sequence[str]) -> str:
    """What to do if indices were created as floats, the default dtype of --input; else ""."""
    if error is None or not _NEEDS_INDICES.search(str(error)):
        return ""
    options = pairwise(["", *(part for word in words for part in _option(word))])
    shapes = [shape for option, shape in options if option == "--input" and ":" not in shape]
    return f"for indices use --input {shapes[0]}:long" if shapes else ""


def _option(word: str) -> list[str]:
    name, equals, value = word.partition("=")
    return [name, value] if equals and name.startswith("--") else [word]


def _came_out_of_a_forward(error: Exception) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name == _MODULE_CALL for frame in frames)


def _describe(error: Exception) -> str:
    """An exception of the user's code with its line, or of ours with a request to report it."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} at {error.filename}:{error.lineno}"
    if _is_about_a_file(error):
        return f"{error.filename}: {error.strerror}"
    text = ": ".join(filter(None, (type(error).__name__, str(error))))
    frames = traceback.extract_tb(error.__traceback__)
    # We call the ops that we observe, on behalf of the model. An error is ours only if no other
    # code is on the stack.
    is_ours = all(_is_library(Path(frame.filename), torch=False) for frame in frames)
    if is_ours and not isinstance(error, OSError):
        return f"{text}. This is a bug in Torchglass: please report it."
    theirs = _users_frames(error)
    place = f" at {os.path.relpath(theirs[-1].filename)}:{theirs[-1].lineno}" if theirs else ""
    notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()) if "\n" not in note)
    return f"{text}{place}{notes}"


def _is_about_a_file(error: Exception) -> TypeGuard[OSError]:
    """Whether a file named on the command line could not be read or written."""
    return isinstance(error, OSError) and bool(error.filename) and not _users_frames(error)


def _users_frames(error: Exception) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not _is_library(Path(frame.filename))]


def _is_library(file: Path, *, torch: bool = True) -> bool:
    """Whether a frame in this file is ours, Python's or torch's, and so not the user's."""
    init = getattr(sys.modules.get("torch"), "__file__", None) if torch else None
    libraries = [_OURS, _CYCLOPTS, *([Path(init).parent] if init else [])]
    if any(library in file.parents for library in libraries) or file.name.startswith("<"):
        return True
    return _STDLIB in file.parents and "site-packages" not in file.parts


def terminal_width() -> int | None:
    """The width of the terminal, or `COLUMNS` if that is set; None for a file or pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
