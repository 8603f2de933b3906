"""What the allocators themselves tell of a run: how much they had given out at the most.

Storages tell who holds what, but not what a kernel takes and frees inside of itself: only the
allocator knows of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

from torchglass.records.memory import Allocation

_autograd: Any = torch._C._autograd
_CPU = "cpu"


class Meter(Protocol):
    """Reads one allocator."""

    def start(self) -> None:
        """The run begins."""

    def stop(self) -> Allocation | None:
        """The run ended; None where the allocator could not be asked."""


class CpuMeter:
    """The reports that torch's allocator for the CPU makes to a profiler."""

    def __init__(self) -> None:
        self._on = False

    def start(self) -> None:
        """Have every block reported, unless a profiler of the user's is at work already."""
        if not hasattr(_autograd, "_enable_profiler_legacy") or _autograd._profiler_enabled():
            return
        config = ProfilerConfig(
            ProfilerState.CPU,
            False,  # shapes
            True,  # memory
            False,  # stacks
            False,  # FLOPs
            False,  # modules
            _ExperimentalConfig(),
        )
        _autograd._enable_profiler_legacy(config)
        self._on = True

    def stop(self) -> Allocation | None:
        """The peak over all reports of this thread, and the op that it was in."""
        if not self._on:
            return None
        self._on = False
        threads = _autograd._disable_profiler_legacy()
        return _peak(event for events in threads for event in events)


class DeviceMeter:
    """The statistics of a device's caching allocator, whose peak starts anew."""

    def __init__(self, device: str, statistics: Any) -> None:
        self._device = device
        self._statistics = statistics
        self._before = 0

    def start(self) -> None:
        """Forget the peak so far."""
        self._statistics.reset_peak_memory_stats(self._device)
        self._before = self._statistics.memory_allocated(self._device)

    def stop(self) -> Allocation | None:
        """The peak since."""
        peak = self._statistics.max_memory_allocated(self._device)
        return Allocation(device=self._device, peak_bytes=peak - self._before)


def meters_for(devices: Iterable[str]) -> list[Meter]:
    """A meter for each device whose allocator can be asked."""
    meters: list[Meter] = []
    for name in sorted(set(devices)):
        if name == _CPU:
            meters.append(CpuMeter())
        elif name != "meta":
            statistics = torch.get_device_module(torch.device(name))
            if hasattr(statistics, "reset_peak_memory_stats"):
                meters.append(DeviceMeter(name, statistics))
    return meters


def _peak(events: Iterable[Any]) -> Allocation:
    live = peak = 0
    op, running = "", [""]
    for event in events:
        kind = event.kind()
        if kind == "push":
            running.append(event.name())
        elif kind == "pop":
            running.pop()
        elif kind == "memory_alloc":
            live += event.cpu_memory_usage()
            if live > peak:
                peak, op = live, _kernel(running)
    return Allocation(device=_CPU, peak_bytes=peak, op=op)


def _kernel(running: Sequence[str]) -> str:
    """The outermost kernel at work: inside of it are but its own parts."""
    kernels = (name for name in running if name.startswith("aten::"))
    return next(kernels, running[-1]).removeprefix("aten::")
