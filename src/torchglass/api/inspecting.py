"""The verb that inspects a model: what each module does, forward and backward, in one run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchglass.analyse.rows import check_order

if TYPE_CHECKING:
    from torchglass.capture.timing.steps import Loss
    from torchglass.results.inspection import Inspection


def inspect(
    model: Any,
    *inputs: Any,
    backward: bool = False,
    save: str | os.PathLike[str] | None = None,
    loss: Loss | None = None,
    depth: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **kwargs: Any,
) -> Inspection:
    """Tell shapes, gradients, NaN and Inf, time and memory of each module.

    The model runs three times from the same state: to warm up, for the time alone, and for all
    else. Gradients, buffers and random state are afterwards what they were. The backward starts
    from `loss(output)`, or from the sum of the outputs. `save` writes Inspector Gadgets' JSON;
    `depth` is how many levels below the model are looked at. `progress` is told how many of how
    many module calls are done.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
    >>> found = inspect(model, torch.ones(3, 4), backward=True)
    >>> found["0"].info["output_shapes"], found["0"].info["gradient_memory_usage"]
    ([[3, 2]], 4e-05)
    """
    from torchglass.capture.inspection.inspecting import inspect_run
    from torchglass.results.inspection import Inspection

    check_order(None, depth)
    result = Inspection(
        inspect_run(
            model, inputs, kwargs, backward=backward, loss=loss, depth=depth, progress=progress
        )
    )
    if save is not None:
        result.save(save)
    return result
