"""The command `torchglass`: one function per subcommand, each calling the verb of that name."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import cyclopts
from cyclopts import App, CycloptsError, Parameter

from torchglass import __version__
from torchglass.analyse.model.summary import Sort
from torchglass.api import models
from torchglass.errors import TorchglassError
from torchglass.targets.inputs import make_inputs
from torchglass.targets.names import resolve
from torchglass.targets.reading import open_reader

if TYPE_CHECKING:
    from torchglass.results.summary import Summary

FAILED = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
STDOUT = Path("-")

_OURS = Path(__file__).parent
_CYCLOPTS = Path(cyclopts.__file__).parent
_STDLIB = Path(os.__file__).parent

app = App(
    name="torchglass",
    version=__version__,
    help="""Turn a PyTorch model into a glass box.

A TARGET is a model in a file, `net.py:Net`, or in a module, `torchvision.models:resnet18`: a
class, an instance, or a function that gives one. It is also a checkpoint, `weights.safetensors`,
`model.pt` or a folder of shards, or a recorded run, `runs/mnist.glass`.
""",
    help_format="markdown",
    suppress_keyboard_interrupt=False,
)

# A path, so that the shells complete the names of files.
Target = Annotated[
    Path,
    Parameter(help="`net.py:Net`, `package.module:name`, a checkpoint or a run.", metavar="TARGET"),
]
File = Annotated[Path, Parameter(allow_leading_hyphen=True)]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """What every command that takes a target understands."""

    unsafe: Flag = False
    """Let a checkpoint run the code it carries: only for files that you trust."""
    debug: Flag = False
    """Show the traceback of an error."""


@Parameter(name="*")
@dataclass(frozen=True)
class Shown:
    """What of a model is shown, and in which order."""

    input: Annotated[
        tuple[str, ...], Parameter(negative="", show_default=False, metavar="SPEC")
    ] = ()
    """Run one forward on such a tensor and show shapes: `1x3x224x224`, `2x16:long`,
    `mask=2x16:bool`. Give it once for each argument."""
    fake: Flag = False
    """Run that forward without memory or arithmetic."""
    depth: int | None = None
    """Show so many levels below the model."""
    sort: Sort | None = None
    """Order neighbours by this."""
    fold: Flag = False
    """Show identical neighbours once."""


USUAL = Common()
EVERYTHING = Shown()


@app.command
def summary(
    target: Target,
    /,
    *,
    shown: Shown = EVERYTHING,
    json: Flag = False,
    html: File | None = None,
    csv: File | None = None,
    common: Common = USUAL,
) -> None:
    """Print what a model is made of: modules, shapes, parameters, memory.

    ```
    torchglass summary torchvision.models:resnet18 --input 1x3x224x224
    torchglass summary net.py:Net --depth 2 --sort params
    torchglass summary weights.safetensors --json | jq .
    ```

    Parameters
    ----------
    json
        Print JSON.
    html
        Write one HTML file that needs nothing else; `-` prints it.
    csv
        Write a CSV file; `-` prints it.
    """
    result = _summary(target, shown, common)
    if html:
        _export(result.to_html, html)
    if csv:
        _export(result.to_csv, csv)
    if json:
        print(result.to_json())
    elif not (html or csv):
        print(result)


@app.command
def tree(target: Target, /, *, shown: Shown = EVERYTHING, common: Common = USUAL) -> None:
    """Print a model as a tree: each module, what it does, how many parameters it has.

    torchglass tree net.py:Net
    torchglass tree torchvision.models:resnet50 --depth 2 --fold
    """
    print(_summary(target, shown, common).tree())


@app.command
def explore(target: Target, /, *, common: Common = USUAL) -> None:
    """Walk through a model or a run in the terminal; `?` shows the keys, `q` leaves.

    torchglass explore net.py:Net
    torchglass explore runs/mnist.glass
    """
    with _stdout_for_results():
        reader = open_reader(target, unsafe=common.unsafe)
    models.explore(reader)


@app.command(alias="serve")
def view(
    target: Target,
    /,
    *,
    port: int = 5000,
    open: Flag = False,
    common: Common = USUAL,
) -> None:
    """Show a model or a run in the browser, until Ctrl-C.

    ```
    torchglass view runs/mnist.glass
    torchglass view net.py:Net --port 8080 --open
    ```

    Parameters
    ----------
    port
        Where to listen, on this machine only.
    open
        Open the page in the browser.
    """
    with _stdout_for_results():
        server = models.view(target, port=port, open_browser=open, unsafe=common.unsafe)
    with contextlib.suppress(KeyboardInterrupt):
        print(f"{server.url}\nCtrl-C ends it.", flush=True)
        server.wait()


@app.command
def report(target: Target, /, *, out: Path, common: Common = USUAL) -> None:
    """Write the page of a model or a run as one HTML file that needs no server.

    ```
    torchglass report runs/mnist.glass --out mnist.html
    ```

    Parameters
    ----------
    out
        The file to write.
    """
    with _stdout_for_results():
        models.view(target, save=out, unsafe=common.unsafe)
    _tell(f"wrote {out}")


@app.command
def demo(folder: Path | None = None, /, *, steps: int = 300, debug: Flag = False) -> None:
    """Train a small model while it is watched, then look inside.

    ```
    torchglass demo
    torchglass demo somewhere --steps 100
    ```

    Parameters
    ----------
    folder
        Where the run and its page are written; `torchglass-demo` if none is named.
    steps
        How long to train.
    debug
        Show the traceback of an error.
    """
    from torchglass.demo import run

    run(folder, steps=steps)


@app.command(group="Set up")
def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the script that lets a shell complete commands, options and files with Tab.

    ```
    torchglass completion bash >> ~/.bashrc
    torchglass completion zsh > ~/.zfunc/_torchglass
    torchglass completion fish > ~/.config/fish/completions/torchglass.fish
    ```
    """
    print(app.generate_completion(shell=shell))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code; an error is one line on stderr."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    _prepare()
    try:
        app(words, print_error=False, exit_on_error=False, result_action="return_value")
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes once more on its way out; into nothing it can do so quietly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the user's own code may raise anything
        _explain(error, debug="--debug" in words)
    else:
        return 0
    return FAILED


def _prepare() -> None:
    # An installed script starts with its own folder on the path, not with the current one.
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.insert(0, here)
    # Not every terminal or pipe can write "├──"; a question mark is better than an error.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _summary(target: Path, shown: Shown, common: Common) -> Summary:
    with _stdout_for_results():
        model = resolve(target)
        inputs, named = make_inputs(shown.input, model)
        return models.summary(
            model,
            *inputs,
            fake=shown.fake,
            depth=shown.depth,
            sort=shown.sort,
            fold=shown.fold,
            unsafe=common.unsafe,
            **named,
        )


def _stdout_for_results() -> contextlib.AbstractContextManager[object]:
    """What the user's code prints goes to stderr, so that a pipe gets the result alone."""
    return contextlib.redirect_stdout(sys.stderr)


def _export(to_format: Callable[[Path | None], str], path: Path) -> None:
    if path == STDOUT:
        print(to_format(None).rstrip("\n"))
        return
    to_format(path)
    _tell(f"wrote {path}")


def _tell(message: str) -> None:
    print(f"torchglass: {message}", file=sys.stderr)


def _explain(error: Exception, *, debug: bool) -> None:
    """One line for an error, below its traceback where that is wanted."""
    ours = isinstance(error, (CycloptsError, TorchglassError))
    message = str(error) if ours else _describe(error)
    if debug:
        traceback.print_exception(error)
    if isinstance(error, CycloptsError):
        message += f" See torchglass {' '.join([*(error.command_chain or ()), '--help'])}."
    elif not (ours or debug):
        message += " (--debug shows the traceback)"
    _tell(" ".join(message.split()))


def _describe(error: Exception) -> str:
    """An exception of the user's code with its place in that code; or a confession."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} at {error.filename}:{error.lineno}"
    text = ": ".join(filter(None, (type(error).__name__, str(error))))
    frames = traceback.extract_tb(error.__traceback__)
    if _OURS in Path(frames[-1].filename).parents and not isinstance(error, OSError):
        return f"{text}: a bug in Torchglass, please report it"
    theirs = [frame for frame in frames if not _is_library(Path(frame.filename))]
    place = f" at {os.path.relpath(theirs[-1].filename)}:{theirs[-1].lineno}" if theirs else ""
    notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
    return f"{text}{place}{notes}"


def _is_library(file: Path) -> bool:
    """Whether a frame in this file is ours, Python's or torch's, and so not the user's."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    libraries = [_OURS, _CYCLOPTS, *([Path(torch).parent] if torch else [])]
    if any(library in file.parents for library in libraries) or file.name.startswith("<"):
        return True
    return _STDLIB in file.parents and "site-packages" not in file.parts
