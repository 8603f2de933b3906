"""The verbs `record` and `inspect`: statistics of what goes through each module."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, get_args

from torchglass.analyse.module_rows import check_order
from torchglass.api.argument_checks import expect_at_least, expect_one_of
from torchglass.blocks import FencedBlock, unbroken
from torchglass.records.calls import Level

if TYPE_CHECKING:
    from torchglass.capture.isolated_run import Loss
    from torchglass.results.observation import Inspection, Recording


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
    from torchglass.capture.observe.inspection import inspect_run
    from torchglass.results.observation import Inspection

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
    """Take down what goes into and comes out of each module, and how long it takes, in a block.

    Use it in a with-block: called without `with`, it records nothing.

    `model` may also be an object that holds modules, such as a pipeline, or a list of models. At
    the level "cheap" statistics are of at most 4,096 numbers of each tensor, at "shapes" there are
    none. The last `keep` calls of each module are kept, totals are of all. `tensors` keeps copies
    of the tensors, too: the latest ones, up to so many bytes (True: 1 GB).

    Times leave out the work of measuring. At "shapes" nothing waits for a GPU: there they say how
    long it took to hand it the work.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
    >>> with record(model) as recording:
    ...     output = model(torch.ones(3, 4))
    >>> recording["1"][-1].in_shape, recording["1"].totals.calls
    ((3, 2), 1)
    """
    expect_one_of("level", level, get_args(Level))
    expect_at_least(1, "keep", keep)
    expect_at_least(0, "tensors, True or how many bytes to keep,", tensors)
    return FencedBlock(
        _recording(model, level, keep, _BUDGET_BYTES if tensors is True else int(tensors)),
        lambda: _nothing_recorded(type(model).__name__),
        "statistics were not recorded",
    )


def _nothing_recorded(name: str) -> Recording:
    from torchglass.capture.observe.statistics_recorder import StatisticsRecorder
    from torchglass.results.observation import Recording

    return Recording(StatisticsRecorder(()), name)


@unbroken
def _recording(model: object, level: Level, keep: int, budget: int) -> Iterator[Recording]:
    from torchglass.capture.observe.statistics_recorder import recording_statistics
    from torchglass.results.observation import Recording

    with recording_statistics(model, level=level, keep=keep, budget_bytes=budget) as recorder:
        yield Recording(recorder, type(model).__name__)
