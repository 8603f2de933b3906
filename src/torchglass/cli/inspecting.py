"""The command that inspects a model: shapes, gradients, NaN and Inf, time and memory at once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from torchglass.cli.options import USUAL, Common, File, Flag, Inputs, Target, app
from torchglass.cli.output import export, stdout_for_results
from torchglass.results.inspection import Inspection
from torchglass.targets.inputs import make_inputs
from torchglass.targets.names import resolve


@app.command
def inspect(
    target: Target,
    /,
    *,
    input: Inputs = (),
    backward: Flag = False,
    depth: int | None = None,
    out: File | None = None,
    common: Common = USUAL,
) -> None:
    """Print what each module of a model does: shapes, time, memory, NaN and Inf.

    ```
    torchglass inspect torchvision.models:resnet18 --input 1x3x224x224
    torchglass inspect net.py:Net --input 8x16 --backward --out insight.json
    ```

    Parameters
    ----------
    input
        A tensor to run it on, as for `trace`.
    backward
        Run the backward of the sum of the outputs, too.
    depth
        Look at so many levels below the model.
    out
        Write Inspector Gadgets' JSON to this file, `-` for stdout.
    """
    from torchglass.api import inspecting

    with stdout_for_results():
        model = resolve(target)
        inputs, named = make_inputs(input, model)
        with _progress() as tell_progress:
            result = inspecting.inspect(
                model, *inputs, backward=backward, depth=depth, progress=tell_progress, **named
            )
    if out is not None:
        export(lambda path: _written(result, path), out)
    if out is None or str(out) != "-":
        print(result)


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
