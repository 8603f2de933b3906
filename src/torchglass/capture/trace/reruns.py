"""What is kept of an operation so that it can be run again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from torchglass.capture.trace.ops import OpEvent, UnwrappedEvent, results_of
from torchglass.errors import CaptureError


class Rerun(NamedTuple):
    """An event without the call that it was in and the code that led there, which hold much."""

    function: Callable[..., Any]
    """What ran; where autocast was on, that under the same autocast."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any
    written: tuple[torch.Tensor, ...]

    @property
    def results(self) -> tuple[torch.Tensor, ...]:
        """Those of the event."""
        return results_of(self.output, self.written)


class Reruns:
    """Makes them of events. What many say, such as `inplace=False`, is kept once."""

    def __init__(self) -> None:
        self._said: dict[str, Mapping[str, Any]] = {}

    def of(self, event: OpEvent) -> Rerun:
        """What an event needs to be run again."""
        function = event.function
        if isinstance(event, UnwrappedEvent):
            function = _not_by_itself
        elif event.autocast:
            function = partial(_under, event.autocast, function)
        kwargs = self._once(event.kwargs) if event.kwargs else event.kwargs
        return Rerun(function, event.args, kwargs, event.output, event.written)

    def _once(self, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        if not all(type(value) in _TOLD_BY_REPR for value in kwargs.values()):
            return kwargs
        return self._said.setdefault(repr(kwargs), kwargs)


_TOLD_BY_REPR = (bool, int, float, str, type(None))


def _not_by_itself(*args: Any, **kwargs: Any) -> Any:
    raise CaptureError("it ran under vmap, grad or the like, which tell how to take its arguments")


def _under(
    autocast: tuple[tuple[str, torch.dtype], ...],
    function: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    with contextlib.ExitStack() as stack:
        for device, dtype in autocast:
            stack.enter_context(torch.autocast(device, dtype, cache_enabled=False))
        return function(*args, **kwargs)
