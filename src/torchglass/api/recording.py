"""The verb for statistics: what goes through each module while a with-block lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from torchglass.api.expecting import expect_at_least, expect_one_of
from torchglass.blocks import FencedBlock, unbroken
from torchglass.records.statistics import Level

if TYPE_CHECKING:
    from torchglass.results.recording import Recording

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
    from torchglass.capture.statistics.recording import StatisticsRecorder
    from torchglass.results.recording import Recording

    return Recording(StatisticsRecorder(()), name)


@unbroken
def _recording(model: object, level: Level, keep: int, budget: int) -> Iterator[Recording]:
    from torchglass.capture.statistics.recording import recording_statistics
    from torchglass.results.recording import Recording

    with recording_statistics(model, level=level, keep=keep, budget_bytes=budget) as recorder:
        yield Recording(recorder, type(model).__name__)
