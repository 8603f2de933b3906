"""The command that counts what a model computes."""

from __future__ import annotations

from torchglass.analyse.rows import Sort
from torchglass.cli.measuring import NO_FILES, Depth, Files, export_all
from torchglass.cli.options import Debug, Flag, Inputs, Model, app
from torchglass.cli.output import stdout_for_results
from torchglass.cli.terminal import terminal_width
from torchglass.targets.inputs import ready_to_run


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
    from torchglass.api import flops as counting

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
