"""The commands that run a model: what it does, why it fails, where the time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from torchglass.analyse.rows import Sort as SlowestFirst
from torchglass.cli.measuring import NO_FILES, Depth, Files, export_all
from torchglass.cli.options import Debug, Flag, Inputs, Model, app
from torchglass.cli.output import missing_input, stdout_for_results, tell
from torchglass.cli.terminal import terminal_width
from torchglass.targets.inputs import ready_to_run
from torchglass.views.text.fitting import broken


@app.command
def trace(
    target: Model,
    /,
    *,
    input: Inputs = (),
    op: str | None = None,
    draw: Path | None = None,
    level: Literal["torch", "aten"] = "torch",
    out: Path | None = None,
    debug: Debug = False,
) -> None:
    """Print every operation of one forward, by name.

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
        Write a picture: `.svg`, `.png` or `.pdf`.
    level
        The functions of torch, or the kernels that they come down to.
    out
        Keep the trace in a file, with its tensors beside it.
    """
    from torchglass.api.passes import trace_forward

    model, inputs, named = _ready(target, input)
    with stdout_for_results():
        traced = trace_forward(model, inputs, named, level=level)
    if draw:
        traced.draw(draw)
        tell(f"wrote {draw}")
    if out:
        tell(f"wrote {traced.save(out)}")
    print(broken(str(traced[op] if op else traced), terminal_width()))


@app.command
def explain(target: Model, /, *, input: Inputs = (), debug: Debug = False) -> None:
    """Run one forward and tell what went wrong: which shapes met, where they came from, what fits.

    ```
    torchglass explain net.py:Net --input 1x4x32x32
    ```
    """
    from torchglass.api import passes

    model, inputs, named = _ready(target, input)
    with stdout_for_results():
        story = passes.explain(model, *inputs, **named)
    print(broken(str(story), terminal_width()))
    if advice := missing_input(story.error):
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
        Time the backward of the sum of the outputs, too.
    warmup
        Run so many times before.
    repeats
        Run so many times with the clock.
    sort
        Put the slowest first: of siblings by `total`, of all modules by `self`.
    ops
        Measure each op, too, which disturbs the model more, and print the slowest.
    layers
        Print each layer with its parameters, shapes, times and memory instead of a table.
    trace
        Write the fastest run as a trace for chrome://tracing or ui.perfetto.dev.
    """
    from torchglass.api import timing

    files.check()
    model, inputs, named = _ready(target, input)
    with stdout_for_results():
        result = timing.profile(
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
    """Run the operation that made a NaN or an Inf again, alone, from a guard's dump.

    ```
    torchglass replay dumps/001-attention-sqrt.safetensors
    ```

    Parameters
    ----------
    file
        What `guard(model, dump=FOLDER)` wrote.
    """
    from torchglass.api import guarding

    print(broken(str(guarding.replay(file)), terminal_width()))


def _ready(target: Path, texts: tuple[str, ...]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A live model, and the arguments of its forward."""
    with stdout_for_results():
        model, inputs, named = ready_to_run(target, texts)
    return model, tuple(inputs), dict(named)
