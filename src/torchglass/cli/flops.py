"""The command that counts what a model computes."""

from __future__ import annotations

from torchglass.analyse.rows import Sort
from torchglass.cli.options import USUAL, Common, File, Flag, Inputs, Target, app
from torchglass.cli.output import export, stdout_for_results
from torchglass.targets.inputs import make_inputs
from torchglass.targets.names import resolve


@app.command
def flops(
    target: Target,
    /,
    *,
    input: Inputs = (),
    backward: Flag = False,
    fake: Flag = False,
    timed: Flag = False,
    depth: int | None = None,
    sort: Sort | None = None,
    ops: Flag = False,
    json: File | None = None,
    csv: File | None = None,
    common: Common = USUAL,
) -> None:
    """Print how many floating-point operations each module of a model takes.

    ```
    torchglass flops torchvision.models:resnet18 --input 1x3x224x224
    torchglass flops net.py:Net --input 8x16 --backward --ops
    torchglass flops net.py:Net --input 8x16 --fake --json flops.json
    ```

    Parameters
    ----------
    input
        A tensor to run it on, as for `trace`.
    backward
        Count the backward of the sum of the outputs, too.
    fake
        Run without memory or arithmetic.
    timed
        Measure how many operations a second it does, too.
    depth
        Show so many levels below the model.
    sort
        Put the largest first: of siblings by `total`, of all modules by `self`.
    ops
        Print the largest ops, too.
    json
        Write JSON there instead, `-` prints it.
    csv
        Write a line for each module there instead, `-` prints it.
    """
    from torchglass.api import flops as counting

    with stdout_for_results():
        model = resolve(target)
        inputs, named = make_inputs(input, model)
        counted = counting.flops(
            model, *inputs, backward=backward, fake=fake, timed=timed, **dict(named)
        )
    if json:
        export(counted.to_json, json)
    if csv:
        export(counted.to_csv, csv)
    if json or csv:
        return
    print(counted.table(sort=sort, depth=depth))
    if ops:
        print(counted.op_table())
