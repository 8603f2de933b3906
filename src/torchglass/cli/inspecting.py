"""The command that inspects a model: shapes, gradients, NaN and Inf, time and memory at once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from torchglass.cli.options import Debug, File, Flag, Inputs, Model, app
from torchglass.cli.output import export, stdout_for_results
from torchglass.cli.terminal import terminal_width
from torchglass.targets.inputs import ready_to_run

if TYPE_CHECKING:
    from torchglass.results.inspection import Inspection


@app.command
def inspect(
    target: Model,
    /,
    *,
    input: Inputs = (),
    backward: Flag = False,
    depth: int | None = None,
    out: File | None = None,
    debug: Debug = False,
) -> None:
    """Print what each module does: shapes, time, memory, gradients, NaN and Inf.

    ```
    torchglass inspect torchvision.models:resnet18 --input 1x3x224x224
    torchglass inspect net.py:Net --input 8x16 --backward --out insight.json
    ```

    Parameters
    ----------
    backward
        Also run backward (on the sum of the outputs).
    depth
        Inspect only this many levels below the model.
    out
        Write Inspector Gadgets' JSON to this file, `-` for stdout.
    """
    from torchglass.api import inspecting

    with stdout_for_results():
        model, inputs, named = ready_to_run(target, input)
        with _progress() as tell_progress:
            result = inspecting.inspect(
                model, *inputs, backward=backward, depth=depth, progress=tell_progress, **named
            )
    if out is not None:
        export(lambda path: _written(result, path), out)
    if out is None or str(out) != "-":
        print(result.table(width=terminal_width()))


def _written(result: Inspection, path: Path | None) -> str:
    if path is not None:
        result.save(path)
    return result.to_json()


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr that goes when all is done; none where nobody is looking."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("inspecting module calls", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
