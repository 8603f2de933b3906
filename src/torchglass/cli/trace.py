"""The commands that run a model: `trace`, `explain`, `profile` and `replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from torchglass.analyse.module_rows import Sort as SlowestFirst
from torchglass.cli.measure import NO_FILES, Depth, Files, export_all
from torchglass.cli.options import Debug, Flag, Inputs, Model, app
from torchglass.cli.output import (
    float_indices,
    missing_input,
    stdout_for_results,
    tell,
    terminal_width,
)
from torchglass.tables.text import broken
from torchglass.targets.inputs import ready_to_run


@app.command
def trace(
    target: Model,
    /,
    *,
    input: Inputs = (),
    op: str | None = None,
    draw: Path | None = None,
    depth: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    level: Literal["torch", "aten"] = "torch",
    out: Path | None = None,
    debug: Debug = False,
) -> None:
    """Print every operation of one forward: name, shape and module.

    ```
    torchglass trace net.py:Net --input 1x3x32x32
    torchglass trace net.py:Net --input 1x3x32x32 --op relu_1 --draw net.svg
    torchglass trace net.py:Net --input 1x3x32x32 --out pass.glass
    ```

    Parameters
    ----------
    op
        Print this operation alone, with its values, parents and source line.
    draw
        Write a drawing: `.svg`, `.png` or `.pdf`.
    depth
        Close modules this many levels down in the drawing; 99 opens all. By default all are open
        up to about 300 nodes.
    level
        Record `torch` functions or `aten` kernels.
    out
        Save the trace to a file and its tensors beside it.
    """
    from torchglass.api.trace import trace_forward

    model, inputs, named = _ready(target, input)
    with stdout_for_results():
        traced = trace_forward(model, inputs, named, level=level)
    if draw:
        traced.draw(draw, depth=depth or "auto")
        tell(f"wrote {draw}")
    if out:
        tell(f"wrote {traced.save(out)}")
    print(broken(str(traced[op] if op else traced), terminal_width()))


@app.command
def explain(target: Model, /, *, input: Inputs = (), debug: Debug = False) -> None:
    """Run one forward and explain its error: the tensors involved, where they come from, what fits.

    ```
    torchglass explain net.py:Net --input 1x4x32x32
    ```
    """
    from torchglass.api import trace

    model, inputs, named = _ready(target, input)
    with stdout_for_results():
        story = trace.explain(model, *inputs, **named)
    print(broken(str(story), terminal_width()))
    words = [word for text in input for word in ("--input", text)]
    if advice := missing_input(story.error) or float_indices(story.error, words):
        tell(advice)


@app.command
def profile(
    target: Model,
    /,
    *,
    input: Inputs = (),
    backward: Annotated[bool, Parameter(negative=("--no-backward", "--forward-only"))] = True,
    warmup: Annotated[int, Parameter(validator=Number(gte=0))] = 3,
    repeats: Annotated[int, Parameter(validator=Number(gte=1))] = 10,
    depth: Depth = None,
    sort: SlowestFirst | None = None,
    ops: Flag = False,
    layers: Flag = False,
    files: Files = NO_FILES,
    trace: Path | None = None,
    debug: Debug = False,
) -> None:
    """Print how long each module of a model takes, forward and backward.

    ```
    torchglass profile torchvision.models:resnet18 --input 1x3x224x224
    torchglass profile net.py:Net --input 8x16 --sort self --ops
    torchglass profile net.py:Net --input 8x16 --forward-only --trace run.json
    torchglass profile net.py:Net --input 8x16 --csv times.csv
    ```

    Parameters
    ----------
    backward
        Also run backward (on the sum of the outputs).
    warmup
        Untimed runs before the timed ones.
    repeats
        Timed runs; the fastest is shown.
    sort
        Sort by time: `total` (within each parent) or `self` (all modules).
    ops
        Also time each op, with more overhead, and print the slowest.
    layers
        Print each layer with its parameters, shapes, times and memory instead of a table.
    trace
        Write the fastest run as a trace for chrome://tracing or ui.perfetto.dev.
    """
    from torchglass.api import measure

    files.check()
    model, inputs, named = _ready(target, input)
    with stdout_for_results():
        result = measure.profile(
            model,
            *inputs,
            backward=backward,
            warmup=warmup,
            repeats=repeats,
            ops=ops or bool(trace or files.json),
            **named,
        )
    if trace:
        tell(f"wrote {result.to_chrome_trace(trace)}")
    if export_all(result, files):
        return
    width = terminal_width()
    if layers:
        print(result.overlay(width=width))
    else:
        print(result.table(sort=sort, depth=depth, width=width))
    if ops:
        print(result.op_table(width=width))


@app.command
def replay(file: Path, /, *, debug: Debug = False) -> None:
    """Rerun the operation that produced a NaN or Inf, from a guard's dump.

    ```
    torchglass replay dumps/001-attention-sqrt.safetensors
    ```

    Parameters
    ----------
    file
        A file written by `guard(model, dump=FOLDER)`.
    """
    from torchglass.api import guard

    print(broken(str(guard.replay(file)), terminal_width()))


def _ready(target: Path, texts: tuple[str, ...]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A live model, and the arguments of its forward."""
    with stdout_for_results():
        model, inputs, named = ready_to_run(target, texts)
    return model, tuple(inputs), dict(named)
