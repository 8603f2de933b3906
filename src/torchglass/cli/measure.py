"""The commands `flops`, `memory` and `inspect`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

from cyclopts import Parameter

from torchglass.analyse.module_rows import Sort
from torchglass.analyse.module_rows import Sort as MostFirst
from torchglass.cli.options import Debug, File, Flag, Inputs, Model, app
from torchglass.cli.output import (
    STDOUT,
    expect_one_printed,
    export,
    stdout_for_results,
    terminal_width,
)
from torchglass.errors import TargetError
from torchglass.targets.inputs import ready_to_run

if TYPE_CHECKING:
    from torchglass.results.inspection import Inspection

Depth = Annotated[
    int | None,
    Parameter(help="Levels to show; by default as many as about 100 rows allow."),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Files:
    """Files to write the results to."""

    json: File | None = None
    """Write JSON to a file; `-` prints it."""
    csv: File | None = None
    """Write CSV, a line per module, to a file; `-` prints it."""

    def check(self) -> None:
        """Refuse both on stdout."""
        expect_one_printed(json=self.json, csv=self.csv)


NO_FILES = Files()


class Exportable(Protocol):
    """A result that can be written down."""

    @property
    def to_json(self) -> Callable[[Path | None], str]:
        """Its JSON, and a file of it if there is a path."""

    @property
    def to_csv(self) -> Callable[[Path | None], str]:
        """A line for each module, and a file of them if there is a path."""


def export_all(result: Exportable, files: Files) -> bool:
    """Write what is wanted of a result; whether it was printed, so that nothing else is to be."""
    for path, to_format in ((files.json, result.to_json), (files.csv, result.to_csv)):
        if path is not None:
            export(to_format, path)
    return STDOUT in (files.json, files.csv)


@app.command
def flops(
    target: Model,
    /,
    *,
    input: Inputs = (),
    backward: Flag = False,
    fake: Flag = False,
    timed: Flag = False,
    depth: Depth = None,
    sort: Sort | None = None,
    ops: Flag = False,
    files: Files = NO_FILES,
    debug: Debug = False,
) -> None:
    """Print how many floating-point operations each module of a model takes.

    ```
    torchglass flops torchvision.models:resnet18 --input 1x3x224x224
    torchglass flops net.py:Net --input 8x16 --backward --ops
    torchglass flops net.py:Net --input 8x16 --fake --json flops.json
    ```

    Parameters
    ----------
    backward
        Also count backward (of the sum of the outputs).
    fake
        Run on fake tensors: no memory, no arithmetic.
    timed
        Also measure FLOP/s.
    sort
        Sort by FLOPs: `total` (within each parent) or `self` (all modules).
    ops
        Also print the largest ops.
    """
    from torchglass.api import measure as counting

    files.check()
    with stdout_for_results():
        model, inputs, named = ready_to_run(target, input, fake=fake)
        counted = counting.flops(
            model, *inputs, backward=backward, fake=fake, timed=timed, **dict(named)
        )
    if export_all(counted, files):
        return
    width = terminal_width()
    print(counted.table(sort=sort, depth=depth, width=width))
    if ops:
        print(counted.op_table(width=width))


@app.command
def memory(
    target: Model,
    /,
    *,
    input: Inputs = (),
    backward: Annotated[bool, Parameter(negative=("--no-backward", "--forward-only"))] = True,
    optimizer: str | None = None,
    fake: Flag = False,
    depth: Depth = None,
    sort: MostFirst | None = None,
    ops: Flag = False,
    peak: Flag = False,
    files: Files = NO_FILES,
    debug: Debug = False,
) -> None:
    """Print the memory that each module takes in a training step, and what the peak consists of.

    ```
    torchglass memory torchvision.models:resnet18 --input 8x3x224x224 --optimizer adamw
    torchglass memory net.py:Net --input 8x16 --no-backward --peak
    torchglass memory net.py:Net --input 4096x16 --fake --json memory.json
    ```

    Parameters
    ----------
    backward
        Also run backward (on the sum of the outputs).
    optimizer
        Also step this optimizer of torch.optim: `adam`, `adamw`, `sgd` …
    fake
        Predict from fake tensors, without taking memory.
    sort
        Sort by share of the peak: `total` (within each parent) or `self` (all modules).
    ops
        Also print the ops that take most.
    peak
        Also print what the peak consists of.
    """
    from torchglass.api.measure import memory as measure

    if optimizer is not None and not backward:
        raise TargetError("--optimizer needs the backward: leave --no-backward out")
    files.check()
    with stdout_for_results():
        model, inputs, named = ready_to_run(target, input, fake=fake)
        result = measure(
            model, *inputs, backward=backward, optimizer=optimizer, fake=fake, **dict(named)
        )
    if export_all(result, files):
        return
    width = terminal_width()
    print(result.table(sort=sort, depth=depth, width=width))
    if ops:
        print(result.op_table(width=width))
    if peak:
        print(result.peak_table(width=width))


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
    from torchglass.api import observe

    with stdout_for_results():
        model, inputs, named = ready_to_run(target, input)
        with _progress() as tell_progress:
            result = observe.inspect(
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
