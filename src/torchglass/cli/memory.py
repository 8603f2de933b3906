"""The command that tells how much memory a step of a model takes."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from torchglass.analyse.rows import Sort as MostFirst
from torchglass.cli.measuring import NO_FILES, Depth, Files, export_all
from torchglass.cli.options import Debug, Flag, Inputs, Model, app
from torchglass.cli.output import stdout_for_results
from torchglass.cli.terminal import terminal_width
from torchglass.errors import TargetError
from torchglass.targets.inputs import ready_to_run


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
    from torchglass.api.memory import memory as measure

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
