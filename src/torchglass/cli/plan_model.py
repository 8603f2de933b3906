"""The commands that plan a training, and that try changes on a copy of a model."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torchglass.cli.options import (
    EXPLORABLE,
    Debug,
    ExplorableOptions,
    Flag,
    Inputs,
    Model,
    app,
    stdout_for_results,
    tell,
)
from torchglass.cli.run_model import DEFAULTS, Backward, ReportOptions
from torchglass.errors import TargetError
from torchglass.targets.inputs import ready_to_run

if TYPE_CHECKING:
    from torchglass.records.measures import BatchTrial


@app.command
def estimate(
    target: Model,
    /,
    *,
    input: Inputs = (),
    fake: Flag = False,
    device: str = "a100",
    precision: str | None = None,
    backward: Backward = True,
    optimizer: str | None = "adamw",
    checkpoint: Flag = False,
    world_size: tuple[int, ...] = (),
    ops: Flag = False,
    report: ReportOptions = DEFAULTS,
) -> None:
    """Estimate the time and memory of a training step on an accelerator, without running it.

    ```
    torchglass estimate torchvision.models:resnet50 --input 64x3x224x224 --device h100
    torchglass estimate llama.py:Llama70B --fake --input 1x4096:long --precision bf16
    ```

    Times are lower bounds from the data sheet of the device. Nothing is run.

    Parameters
    ----------
    fake
        Create the model without values, so that one of any size needs no memory.
    device
        t4, v100, a10, a100-40, a100, l4, l40s, h100, h200, rtx3090, rtx4090, mi250x or mi300x.
    precision
        fp32, tf32, bf16, fp16, bf16-mixed or fp16-mixed. Default: the dtype of the model.
    optimizer
        An optimizer of torch.optim.
    checkpoint
        Checkpoint the repeated blocks: less memory, more FLOPs.
    world_size
        Also show the memory per rank on this many devices. Repeat it for several.
    ops
        Also print the ops that take longest.
    """
    from torchglass.api import plan

    options: dict[str, Any] = {"device": device, "precision": precision, "backward": backward}
    options |= {"optimizer": optimizer, "checkpoint": checkpoint, "world_size": world_size}
    report.check()
    with stdout_for_results():
        model, inputs, named = ready_to_run(target, input, fake=True, without_values=fake)
        result = plan.estimate(model, *inputs, **options, **named)
    report.show_modules(result, ops=ops)


@app.command(name="batch-size")
def batch_size(
    target: Model,
    /,
    *,
    input: Inputs = (),
    memory: str | None = None,
    optimizer: str | None = "adamw",
    precision: str | None = None,
    margin: float = 0.1,
    check: bool = True,
    output: ExplorableOptions = EXPLORABLE,
    debug: Debug = False,
) -> None:
    """Find the largest batch size whose training step fits into memory.

    ```
    torchglass batch-size torchvision.models:resnet50 --input 8x3x224x224 --memory 24GB
    torchglass batch-size net.py:Net --input 8x16 --memory a100 --precision bf16-mixed
    ```

    Parameters
    ----------
    memory
        24GB, a number of bytes, or an accelerator such as a100. Default: the model's device.
    optimizer
        An optimizer of torch.optim.
    precision
        fp32, tf32, bf16, fp16, bf16-mixed or fp16-mixed. Default: the dtype of the model.
    margin
        Share of the memory to keep free.
    check
        Run one real step to check the prediction, where that is affordable.
    """
    from torchglass.api import plan

    output.check()
    with stdout_for_results():
        model, inputs, named = ready_to_run(target, input)
        if inputs and named:
            raise TargetError("--input: pass all inputs by name, or none of them")
        found = plan.batch_size(
            model,
            named or tuple(inputs),
            memory=memory,
            optimizer=optimizer,
            precision=precision,
            margin=margin,
            check=check,
            progress=_tell_trial if sys.stderr.isatty() else None,
        )
    output.show(found)


def _tell_trial(trial: BatchTrial) -> None:
    tell(f"batch size {trial.batch:,} {'fits' if trial.fits else 'does not fit'}")


@app.command
def quantization(
    target: Model,
    /,
    *,
    input: Inputs = (),
    dtypes: tuple[str, ...] = ("int8", "int4", "fp8"),
    size: str | None = None,
    quality: float | None = None,
    output: ExplorableOptions = EXPLORABLE,
    debug: Debug = False,
) -> None:
    """Find out which weights can be stored in low precision, and suggest a mix of formats.

    ```
    torchglass quantization net.py:trained --input 64x3x32x32
    torchglass quantization net.py:trained --input 64x3x32x32 --size 30% --csv layers.csv
    ```

    Inputs are random: name a function of your file that loads weights, and use tg.quantization
    with real samples and your metric for a decision.

    Parameters
    ----------
    dtypes
        The formats to try. Repeat it for several.
    size
        The maximum size of all weights: 50% of the original, 12MB.
    quality
        The minimum signal-to-noise ratio of the outputs, in dB. Default: 20.
    """
    from torchglass.api import experiment

    output.check()
    with stdout_for_results():
        model, inputs, named = ready_to_run(target, input)
        options: dict[str, Any] = {"dtypes": dtypes, "size": size, "quality": quality}
        found = experiment.quantization(model, *inputs, **options, **named)
    output.show(found)


@app.command
def pruning(
    target: Model,
    /,
    *,
    input: Inputs = (),
    amount: float = 0.3,
    timed: bool = True,
    output: ExplorableOptions = EXPLORABLE,
    debug: Debug = False,
) -> None:
    """Find out which channels can be removed, and what that saves.

    ```
    torchglass pruning net.py:trained --input 16x3x32x32
    torchglass pruning net.py:trained --input 16x3x32x32 --amount 0.5 --csv channels.csv
    ```

    Inputs are random: use tg.pruning with real samples and your metric for a decision.

    Parameters
    ----------
    amount
        The share of the FLOPs to save.
    timed
        Also measure the time of a forward with the channels cut out.
    """
    from torchglass.api import experiment

    output.check()
    with stdout_for_results():
        model, inputs, named = ready_to_run(target, input)
        found = experiment.pruning(model, *inputs, amount=amount, timed=timed, **named)
    output.show(found)
