"""The verbs `record` and `inspect`: statistics of what goes through each module."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, get_args

from torchglass.api.argument_checks import expect_at_least, expect_one_of
from torchglass.blocks import FencedBlock, uninterruptible
from torchglass.records.calls import Level
from torchglass.results.report import check_order

if TYPE_CHECKING:
    from torchglass.capture.isolated_run import Loss
    from torchglass.results.inspection import Inspection
    from torchglass.results.statistics import Recording


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
    """Inspect each module in one call: shapes, gradients, NaN and Inf, time and memory.

    The model runs three times from the same state: warm-up, time, everything else. Gradients,
    buffers and random state are unchanged afterwards.

    Args:
        model: A module, or an object that contains modules.
        *inputs: Positional arguments of the forward.
        backward: Also run the backward.
        save: Write the result as Inspector Gadgets' JSON to this file.
        loss: Called with the output; backward starts from its result. None: the sum of the outputs.
        depth: Number of levels inspected below the model. None: all.
        progress: Called with the number of module calls done and the total.
        **kwargs: Keyword arguments of the forward.

    Returns:
        An `Inspection`: print it, index it by module path, or save it.

    Raises:
        ViewError: `depth` is negative.
        CaptureError: The model cannot be run this way.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
        >>> found = inspect(model, torch.ones(3, 4), backward=True)
        >>> found["0"].info["output_shapes"], found["0"].info["gradient_memory_usage"]
        ([[3, 2]], 4e-05)
    """
    from torchglass.capture.observe.inspection import inspect_run
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


_BUDGET_BYTES = 1 << 30


def record(
    model: object, *, level: Level = "full", keep: int = 100, tensors: bool | int = False
) -> contextlib.AbstractContextManager[Recording]:
    """Record the inputs, outputs and time of every module call in a with-block.

    Without `with`, nothing is recorded. Times exclude our own measuring. At level "shapes" nothing
    waits for a GPU, so times there are launch times.

    Args:
        model: A module, an object that contains modules (a pipeline), or a list of models.
        level: "full" reads all values of each tensor, "cheap" at most 4,096 of them, "shapes" none.
        keep: Number of latest calls kept per module. Totals cover all calls.
        tensors: Also keep copies of the latest tensors, up to this many bytes. True: 1 GB.

    Returns:
        A context manager that gives a `Recording`: index it by module path.

    Raises:
        CaptureError: An argument is out of range.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
        >>> with record(model) as recording:
        ...     output = model(torch.ones(3, 4))
        >>> recording["1"][-1].in_shape, recording["1"].totals.calls
        ((3, 2), 1)
    """
    expect_one_of("level", level, get_args(Level))
    expect_at_least(1, "keep", keep)
    expect_at_least(0, "tensors", tensors)
    from torchglass.capture.observe.recorder import recording_statistics, statistics_recorder
    from torchglass.results.statistics import Recording

    name, budget = type(model).__name__, _BUDGET_BYTES if tensors is True else int(tensors)

    @uninterruptible
    def recording() -> Iterator[Recording]:
        with recording_statistics(model, level=level, keep=keep, budget_bytes=budget) as recorder:
            yield Recording(recorder, name)

    return FencedBlock(
        recording(),
        lambda: Recording(statistics_recorder(()), name),
        "statistics were not recorded",
    )
