"""The names of rp's forward statistics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torchglass.api import explore
from torchglass.errors import TargetError
from torchglass.records.calls import ForwardStats
from torchglass.results.statistics import Recording

if TYPE_CHECKING:
    from torch import nn

_ATTRIBUTE = "forward_stats"


@contextlib.contextmanager
def record_torch_module_forward_stats(module: object, *, keep: int = 100) -> Iterator[Recording]:
    """Fill `forward_stats` of every module with its calls in a with-block, latest last.

    The lists stay after the block, until the next one begins. They contain no tensors.

    Args:
        module: A module, an object that contains modules, or a list of models.
        keep: Number of latest calls kept per module.

    Returns:
        A context manager that gives a `Recording`.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
        >>> with record_torch_module_forward_stats(model):
        ...     output = model(torch.ones(3, 4))
        >>> model[1].forward_stats[-1].in_shape
        (3, 2)
    """
    with _filling(module, keep=keep) as recording:
        yield recording


@contextlib.contextmanager
def _filling(module: object, *, keep: int = 100, budget_bytes: int = 0) -> Iterator[Recording]:
    """The same, also keeping copies of tensors up to `budget_bytes`."""
    from torchglass.capture.model.live_modules import modules_in
    from torchglass.capture.observe.recorder import recording_statistics

    lists: dict[str, list[ForwardStats]] = {}
    for path, inner in modules_in(module):
        lists[path] = _attributes(inner)[_ATTRIBUTE] = []

    def fill(calls: list[ForwardStats]) -> None:
        for call in calls:
            # A module that is not in the model has no list.
            if call.path in lists:
                lists[call.path].append(call)
                del lists[call.path][:-keep]

    with recording_statistics(module, keep=keep, budget_bytes=budget_bytes, ended=fill) as recorder:
        yield Recording(recorder, type(module).__name__)


class TimingData(dict[str, list[ForwardStats]]):
    """The recorded calls of modules by path, and their model."""

    def __init__(self, model: object, calls: Iterable[tuple[str, list[ForwardStats]]]) -> None:
        super().__init__(calls)
        self.model = model


def get_forward_stats(model: object) -> TimingData:
    """The recorded calls of a model's modules by path, latest last.

    Args:
        model: A model that ran in `record_torch_module_forward_stats`.

    Returns:
        A dict from module path to calls, for the modules that were called.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.ReLU())
        >>> with record_torch_module_forward_stats(model):
        ...     output = model(torch.ones(3, 4))
        >>> {path: len(calls) for path, calls in get_forward_stats(model).items()}
        {'': 1, '0': 1}
    """
    from torchglass.capture.model.live_modules import modules_in

    found = ((path, _attributes(module).get(_ATTRIBUTE)) for path, module in modules_in(model))
    return TimingData(model, ((path, calls) for path, calls in found if calls))


def display_timing_in_explorer(timing_data: TimingData) -> None:
    """Explore a model with the recorded times of its modules.

    Args:
        timing_data: The result of `get_forward_stats(model)`.

    Raises:
        TargetError: `timing_data` is something else.
    """
    if not isinstance(timing_data, TimingData):
        raise TargetError("timing_data must be the result of get_forward_stats(model)")
    explore.explore(timing_data.model)


def explore_torch_module_with_stats(module: Any, /, *inputs: Any, **kwargs: Any) -> None:
    """Run one forward, record its statistics, and explore the model in the terminal.

    The attributes panel (`a`) shows `forward_stats` and the tensors. Random state and buffers are
    unchanged afterwards. If the forward raises, the explorer opens with an explanation.

    Args:
        module: The model to run.
        *inputs: Positional arguments of the forward.
        **kwargs: Keyword arguments of the forward.

    Raises:
        ViewError: There is no terminal.
    """
    from torchglass.api.explorer_source import TENSORS_BYTES
    from torchglass.capture.model.live_modules import modules_in
    from torchglass.capture.restore_state import leave_unchanged

    inner = [one for _, one in modules_in(module)]
    with _filling(module, budget_bytes=TENSORS_BYTES) as recording, leave_unchanged(inner):
        failed = False
        try:
            module(*inputs, **kwargs)
        except Exception:  # noqa: BLE001 - the explorer runs it again to explain what it raises
            failed = True
    if failed:
        explore.walk_through(module, inputs, kwargs)
    else:
        explore.walk_through(module, (), {}, tensors=recording.tensors)


def _attributes(module: nn.Module) -> dict[str, Any]:
    # Scripted modules refuse new attributes, and others may have a `__setattr__` of their own.
    attributes: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return attributes
