"""Clocks that take marks while a model runs.

On the host a mark is the time itself. On a device that works behind the host's back it is an event
in the device's own queue: it is read after one synchronisation at the end, so that measuring never
makes the device wait.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch

from torchglass.errors import CaptureError

CpuClock = Callable[[], int]
"""Nanoseconds of CPU time so far."""

_NS_PER_MS = 1e6


class Clock(Protocol):
    """Takes marks of moments, and tells afterwards when they were."""

    name: str

    def mark(self) -> Any:
        """This moment."""

    def nanoseconds(self, marks: Sequence[Any]) -> list[int]:
        """When the marks were taken, from a moment of the clock's choice on."""


class HostClock:
    """The clock of the machine."""

    name = "host"
    mark = staticmethod(time.perf_counter_ns)

    def nanoseconds(self, marks: Sequence[int]) -> list[int]:
        """The marks, which are nanoseconds already."""
        return list(marks)


class EventClock:
    """A device's own clock, read through events that wait in its queue with the work."""

    def __init__(
        self, name: str, new_event: Callable[[], Any], synchronize: Callable[[], object]
    ) -> None:
        self.name = name
        self._new_event = new_event
        self._synchronize = synchronize

    def mark(self) -> Any:
        """An event that the device passes when it has done all that was asked before."""
        event = self._new_event()
        event.record()
        return event

    def nanoseconds(self, marks: Sequence[Any]) -> list[int]:
        """When the device passed the events, from the first of them on."""
        if not marks:
            return []
        self._synchronize()
        first = marks[0]
        return [round(first.elapsed_time(mark) * _NS_PER_MS) for mark in marks]


def clock_for(tensors: Iterable[torch.Tensor]) -> Clock:
    """The clock of the device that a model and its inputs are on."""
    devices = sorted({str(tensor.device) for tensor in tensors} - {"cpu"})
    if not devices:
        return HostClock()
    if "meta" in devices:
        raise CaptureError("a model on the meta device computes nothing, so it cannot be timed")
    if len(devices) > 1:
        raise CaptureError(
            f"the model is on {' and '.join(devices)}, which have no common clock: profile its "
            f"parts separately"
        )
    device = torch.device(devices[0])
    world = torch.get_device_module(device)

    def new_event() -> Any:
        return world.Event(enable_timing=True)

    return EventClock(devices[0], new_event, world.synchronize)


def cpu_clock(clock: Clock) -> CpuClock:
    """CPU time of all threads that take part, which may be this one alone."""
    if isinstance(clock, HostClock) and torch.get_num_threads() == 1:
        return time.thread_time_ns
    return time.process_time_ns


def waiting() -> Callable[[], None] | None:
    """What waits until a device has done all that was asked of it; None where there is none."""
    return _wait if torch.accelerator.is_available() else None


def _wait() -> None:
    # What went wrong on the device is for the user's own next operation to say.
    with contextlib.suppress(Exception):
        if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            torch.accelerator.synchronize()


class StandingClock:
    """Tells the time without what passed in its with-blocks, which may be nested."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.raw = clock
        """The clock that never stands still."""
        self.lost_ns = 0
        """The time that passed in with-blocks."""
        self.depth = 0
        """How many with-blocks are open."""
        self._stood_still_ns = 0

    def now(self) -> int:
        """Nanoseconds from some moment on."""
        return self.raw() - self.lost_ns

    def __enter__(self) -> None:
        if not self.depth:
            self._stood_still_ns = self.raw()
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if not self.depth:
            self.lost_ns += self.raw() - self._stood_still_ns
