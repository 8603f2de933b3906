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
    """Print how much memory each module of a model takes in a step, and who holds the peak.

    ```
    torchglass memory torchvision.models:resnet18 --input 8x3x224x224 --optimizer adamw
    torchglass memory net.py:Net --input 8x16 --no-backward --peak
    torchglass memory net.py:Net --input 4096x16 --fake --json memory.json
    ```

    Parameters
    ----------
    backward
        Take the backward of the sum of the outputs, too.
    optimizer
        Let this one of torch.optim step after the backward: `adam`, `adamw`, `sgd` …
    fake
        Predict it without taking any memory.
    sort
        Put what holds most of the peak first: of siblings by `total`, of all modules by `self`.
    ops
        Print the ops that hold most, too.
    peak
        Print who holds the peak, too.
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
