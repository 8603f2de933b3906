"""The verbs `estimate` and `batch_size`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torchglass.errors import CaptureError

if TYPE_CHECKING:
    from torchglass.analyse.accelerators import Accelerator
    from torchglass.capture.isolated_run import Loss
    from torchglass.capture.measure.memory import OptimizerChoice
    from torchglass.records.measures import BatchTrial
    from torchglass.results.plans import BatchSize, Estimate

_LARGEST_MARGIN = 0.9


def estimate(
    model: Any,
    *inputs: Any,
    device: str | Accelerator = "a100",
    precision: str | None = None,
    backward: bool = True,
    optimizer: OptimizerChoice | None = "adamw",
    loss: Loss | None = None,
    checkpoint: bool = False,
    world_size: int | Sequence[int] = (),
    **kwargs: Any,
) -> Estimate:
    """Estimate what a training step takes on an accelerator: FLOPs, memory and a bound in time.

    Nothing is run or allocated, so a model of any size can be estimated on a laptop. Times are
    lower bounds (a roofline) from the data sheet of the device.

    Args:
        model: A module; it may be on "meta".
        *inputs: Positional arguments of the forward. Only their shapes matter.
        device: The name of an accelerator such as "a100", "h100" or "rtx4090", or an `Accelerator`.
        precision: "fp32", "tf32", "bf16" or "fp16" for the whole step, "bf16-mixed" or
            "fp16-mixed" as with `torch.autocast`. None: the dtype of the model.
        backward: Also estimate the backward and the update. False estimates inference.
        optimizer: A name such as "adamw", a class, or a function that takes parameters; None for
            no update.
        loss: Called with the output; backward starts from its result. None: the sum of the outputs.
        checkpoint: Run the repeated blocks, such as the layers of a transformer, under
            `torch.utils.checkpoint`: less memory, more FLOPs.
        world_size: Also estimate the memory per rank on this many devices, or on each of several
            numbers, with DDP, FSDP and tensor parallelism.
        **kwargs: Keyword arguments of the forward.

    Returns:
        An `Estimate`: print it, index it by module path, or export it.

    Raises:
        TargetError: The device is not known, or has no rate for the precision.
        CaptureError: The model cannot be run without values, or an argument is wrong.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU())
        >>> planned = estimate(model, torch.empty(64, 4096), device="a100", precision="bf16")
        >>> planned.fits, planned.total_flops, planned.memory.sizes["parameter"]
        (True, 4294967296, 33562624)
    """
    from torchglass.analyse.accelerators import accelerator_named
    from torchglass.results.plans import Estimate
    from torchglass.whatif.plan import predict_step
    from torchglass.whatif.valueless_copy import check_precision, product_precision

    _expect_module(model, "estimate")
    check_precision(precision)
    chosen = accelerator_named(device)
    sizes = (world_size,) if isinstance(world_size, int) else tuple(world_size)
    if any(size < 1 for size in sizes):
        raise CaptureError(f"world_size must be 1 or more, not {min(sizes)}")
    run_in = product_precision(model, precision)
    chosen.rate(run_in)
    step: Any = {"precision": precision, "backward": backward, "loss": loss}
    step |= {"optimizer": optimizer, "checkpoint": checkpoint}
    found = predict_step(model, inputs, kwargs, **step)
    return Estimate(
        found.counted.model,
        found.counted.work,
        found.memory.footprint,
        device=chosen,
        precision=run_in,
        blocks=found.blocks,
        world_sizes=sizes,
    )


def batch_size(
    model: Any,
    sample: Any,
    *,
    memory: int | str | None = None,
    optimizer: OptimizerChoice | None = "adamw",
    precision: str | None = None,
    loss: Loss | None = None,
    margin: float = 0.1,
    check: bool = True,
    progress: Callable[[BatchTrial], None] | None = None,
) -> BatchSize:
    """Find the largest batch size whose training step fits into memory.

    Steps are predicted from shapes. Where it is affordable, two smaller real steps tell what
    kernels take inside, which is in no tensor, and one real step checks the prediction.

    Args:
        model: A module; it may be on "meta".
        sample: One batch: a tensor, a tuple of positional arguments, or a dict of keyword
            arguments. The first dimension of its first tensor is the batch; tensors with the same
            first dimension grow with it.
        memory: What is there: "24GB", a number of bytes, or the name of an accelerator such as
            "a100". None: the memory of the model's device.
        optimizer: A name such as "adamw", a class, or a function that takes parameters; None for
            no update.
        precision: As for `estimate`. None: the dtype of the model.
        loss: Called with the output; backward starts from its result. None: the sum of the outputs.
        margin: The share of the memory that is kept free, for what is not predicted.
        check: Run real steps, if the model has values and they are affordable.
        progress: Called with each batch size that was tried, since a large model takes a while.

    Returns:
        A `BatchSize`: `batch` is the answer; print it for the trials and the alternatives.

    Raises:
        TargetError: `memory` is not a size.
        CaptureError: The model cannot be run without values, or an argument is wrong.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU())
        >>> found = batch_size(model, torch.randn(8, 256), memory="8MB", optimizer="sgd", margin=0)
        >>> found.batch, found.check.batch
        (2544, 2544)
    """
    from torchglass.analyse.accelerators import ACCELERATORS, memory_size
    from torchglass.capture.model.structure import read_model
    from torchglass.capture.model_inputs import arguments_from_data
    from torchglass.results.plans import BatchSize
    from torchglass.whatif.plan import BatchSearch, available_memory
    from torchglass.whatif.valueless_copy import check_precision, product_precision

    _expect_module(model, "batch_size")
    check_precision(precision)
    if not 0 <= margin <= _LARGEST_MARGIN:
        raise CaptureError(f"margin must be between 0 and {_LARGEST_MARGIN}, not {margin}")
    whole = available_memory(model) if memory is None else memory_size(memory)
    on_gpu = next((one.is_cuda for one in model.parameters()), False)
    search = BatchSearch(
        model,
        tuple(arguments_from_data(sample)),  # type: ignore[arg-type]
        limit=int(whole * (1 - margin)),
        on_gpu=on_gpu or (isinstance(memory, str) and memory.lower() in ACCELERATORS),
        precision=precision,
        optimizer=optimizer,
        loss=loss,
        progress=progress,
    )
    trials = search.search()
    largest = max((one.batch for one in trials if one.fits), default=0)
    if check and search.learn_scratch(largest):
        trials = search.search()
    again = search.search(checkpoint=True)
    found = BatchSize(
        read_model(model),
        trials,
        memory_bytes=whole,
        margin=margin,
        checkpointed=again,
        recompute_cost=search.recompute_cost() if again else 1.0,
        optimizer=optimizer if isinstance(optimizer, str) else "",
        precision=precision or product_precision(model, None),
        real_batches=[batch for batch, _ in search.scratch],
    )
    if check and found.batch:
        found.check = search.check(found.batch)
    return found


def _expect_module(model: Any, verb: str) -> None:
    from torch import nn

    if not isinstance(model, nn.Module):
        raise CaptureError(f"{verb} needs a module, not {type(model).__name__}")
