"""The command that tells how much memory a step of a model takes."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from torchglass.analyse.rows import Sort as MostFirst
from torchglass.cli.options import USUAL, Common, File, Flag, Inputs, Target, app
from torchglass.cli.output import STDOUT, export, stdout_for_results
from torchglass.targets.inputs import make_inputs
from torchglass.targets.names import resolve


@app.command
def memory(
    target: Target,
    /,
    *,
    input: Inputs = (),
    backward: Annotated[bool, Parameter(negative=("--no-backward", "--forward-only"))] = True,
    optimizer: str | None = None,
    fake: Flag = False,
    depth: int | None = None,
    sort: MostFirst | None = None,
    ops: Flag = False,
    peak: Flag = False,
    json: File | None = None,
    csv: File | None = None,
    common: Common = USUAL,
) -> None:
    """Print how much memory each module of a model takes in a step, and who holds the peak.

    ```
    torchglass memory torchvision.models:resnet18 --input 8x3x224x224 --optimizer adamw
    torchglass memory net.py:Net --input 8x16 --no-backward --peak
    torchglass memory net.py:Net --input 4096x16 --fake --json memory.json
    ```

    Parameters
    ----------
    input
        A tensor to run it on, as for `trace`.
    backward
        Take the backward of the sum of the outputs, too.
    optimizer
        Let this one of torch.optim step after the backward: `adam`, `adamw`, `sgd` …
    fake
        Predict it without taking any memory.
    depth
        Show so many levels below the model.
    sort
        Put what holds most of the peak first: of siblings by `total`, of all modules by `self`.
    ops
        Print the ops that hold most, too.
    peak
        Print who holds the peak, too.
    json
        Write JSON to a file, or to the screen for `-`.
    csv
        Write a line for each module to a file, or to the screen for `-`.
    """
    from torchglass.api.memory import memory as measure

    with stdout_for_results():
        model = resolve(target)
        inputs, named = make_inputs(input, model)
        result = measure(
            model, *inputs, backward=backward, optimizer=optimizer, fake=fake, **dict(named)
        )
    for path, to_format in ((json, result.to_json), (csv, result.to_csv)):
        if path is not None:
            export(to_format, path)
    if STDOUT in (json, csv):
        return
    print(result.table(sort=sort, depth=depth))
    if ops:
        print(result.op_table())
    if peak:
        print(result.peak_table())
