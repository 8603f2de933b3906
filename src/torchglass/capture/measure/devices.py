"""The clocks and the allocators of devices.

On the host a mark is the time itself. On an asynchronous device it is an event in the device's
queue, read after one synchronization at the end, so that measuring never makes the device wait.

Storages show which tensors exist, but not the scratch memory inside kernels: only the allocator
knows that.

The CPU allocator has no statistics. There a dispatch mode sees every tensor that a forward creates,
and a weak reference to its storage shows when it is freed. A backward needs no mode: only the
gradients that a node returns outlive it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from torchglass.capture.measure.memory_recorder import StorageMap, plain_tensors, storage_key
from torchglass.capture.tensor.description import Args, Kwargs, iter_tensors
from torchglass.capture.tensor.device_reads import is_capturing, is_remote, stream_of
from torchglass.capture.torch_internals import (
    DisableTorchFunction,
    start_allocation_reports,
    stop_allocation_reports,
)
from torchglass.capture.torch_modes import LookingMode, mode_on, quietly
from torchglass.errors import CaptureError
from torchglass.records.measures import AllocatorPeak, AllocatorPool

CpuClock = Callable[[], int]
"""Nanoseconds of CPU time so far."""

_NS_PER_MS = 1e6


class Clock(Protocol):
    """Takes marks, and gives their times afterwards."""

    name: str

    def mark(self) -> Any:
        """This moment."""

    def nanoseconds(self, marks: Sequence[Any]) -> list[int]:
        """The times of the marks, relative to any fixed time."""


class HostClock:
    """The clock of the host."""

    name = "host"
    mark = staticmethod(time.perf_counter_ns)

    def nanoseconds(self, marks: Sequence[int]) -> list[int]:
        return list(marks)


class DeviceQueue(NamedTuple):
    """What a clock asks of one device."""

    name: str
    new_event: Callable[[], Any]
    synchronize: Callable[[], object]
    stream: Callable[[], Any] = lambda: None
    """Gives the stream that the program uses; None is the only one."""

    def record(self) -> Any:
        """An event that the device reaches when it has done all earlier work of the stream."""
        event, stream = self.new_event(), self.stream()
        event.record() if stream is None else event.record(stream)
        return event


class Zero(NamedTuple):
    """An event on an idle device, which reaches it at once, and the host's time of it."""

    event: Any
    host_ns: int


class EventMark(NamedTuple):
    """A moment in the queues of all devices of a model."""

    number: int
    zeros: tuple[Zero, ...]
    """One for each device; empty for a single device."""
    events: tuple[Any, ...]


class EventClock:
    """The clock of a model's devices, read through events in their queues.

    A mark has the time at which everything that was queued before it is done, on all devices and
    streams. So spans nest, and what runs at the same time counts once, for what was queued first.

    Events of two devices cannot be compared. So each has an event at a moment when all were idle,
    and the host says how far these are apart.
    """

    def __init__(self, queues: Sequence[DeviceQueue]) -> None:
        self.name = " and ".join(queue.name for queue in queues)
        self._queues = queues
        self._numbers = itertools.count()
        self._zeros: tuple[Zero, ...] = ()

    def mark(self) -> EventMark:
        """This moment; the first mark on several devices waits for them."""
        if len(self._queues) > 1 and not self._zeros:
            self._synchronize()
            self._zeros = tuple(
                Zero(queue.record(), time.perf_counter_ns()) for queue in self._queues
            )
        return EventMark(next(self._numbers), self._zeros, self._recorded())

    def nanoseconds(self, marks: Sequence[EventMark]) -> list[int]:
        """The times of the marks, relative to the first one or to a common zero before it."""
        if not marks:
            return []
        self._synchronize()
        self._zeros = ()
        ordered = sorted(marks)
        zeros = ordered[0].zeros or tuple(Zero(event, 0) for event in ordered[0].events)
        times: dict[int, int] = {}
        latest = 0
        for mark in ordered:
            for zero, event in zip(zeros, mark.events, strict=True):
                passed = round(zero.event.elapsed_time(event) * _NS_PER_MS)
                latest = max(latest, zero.host_ns - zeros[0].host_ns + passed)
            times[mark.number] = latest
        return [times[mark.number] for mark in marks]

    def _recorded(self) -> tuple[Any, ...]:
        return tuple(queue.record() for queue in self._queues)

    def _synchronize(self) -> None:
        for queue in self._queues:
            queue.synchronize()


def clock_for(tensors: Iterable[torch.Tensor]) -> Clock:
    """The clock of the devices that a model and its inputs are on."""
    devices = sorted({str(tensor.device) for tensor in tensors} - {"cpu"})
    if not devices:
        return HostClock()
    if "meta" in devices:
        raise CaptureError("a model on the meta device cannot be timed: it computes nothing")
    return EventClock([_queue_of(torch.device(name)) for name in devices])


def _queue_of(device: torch.device) -> DeviceQueue:
    synchronize = torch.get_device_module(device).synchronize
    # MPS has one device, and its function takes none.
    wait = synchronize if device.type == "mps" else partial(synchronize, device)
    return DeviceQueue(str(device), partial(_new_event, device), wait, partial(stream_of, device))


def cpu_clock(clock: Clock) -> CpuClock:
    """CPU time of all participating threads, which may be this one alone."""
    if isinstance(clock, HostClock) and torch.get_num_threads() == 1:
        return time.thread_time_ns
    return time.process_time_ns


class StandingClock:
    """A clock that is paused in its with-blocks, which may be nested."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.raw = clock
        """The clock that is never paused."""
        self.lost_ns = 0
        """The time that passed in with-blocks."""
        self.depth = 0
        """How many with-blocks are open."""
        self._stood_still_ns = 0

    def now(self) -> int:
        return self.raw() - self.lost_ns

    def __enter__(self) -> None:
        if not self.depth:
            self._stood_still_ns = self.raw()
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if not self.depth:
            self.lost_ns += self.raw() - self._stood_still_ns


DeviceMark = tuple[Any, ...]
"""An event on each device of a model; empty while a CUDA graph is captured."""


class HostTimer:
    """Times what runs on the host."""

    def __init__(self, clock: StandingClock) -> None:
        self.mark = clock.now

    def between(self, start: int, end: int, use: Callable[[int], None]) -> None:
        """Hand over the nanoseconds between two marks."""
        use(end - start)

    def settle(self) -> None:
        """Hand over what has not been handed over: nothing."""


class DeviceTimer:
    """Times what a program queues on devices, from events that are read when all of it is over."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._queues = [_queue_of(device) for device in sorted(devices, key=str)]
        self._pending: list[tuple[DeviceMark, DeviceMark, Callable[[list[int]], None]]] = []
        self._lock = threading.Lock()

    def mark(self) -> DeviceMark:
        """This moment in the queue of each device."""
        if is_capturing():
            return ()
        return tuple(queue.record() for queue in self._queues)

    def between(self, start: DeviceMark, end: DeviceMark, use: Callable[[int], None]) -> None:
        """Hand over the nanoseconds between two marks later; the longest of all devices."""
        self.between_each(start, end, lambda each: use(max(each, default=0)))

    def between_each(
        self, start: DeviceMark, end: DeviceMark, use: Callable[[list[int]], None]
    ) -> None:
        """The same for each device."""
        with self._lock:
            self._pending.append((start, end, use))

    def settle(self) -> None:
        """Hand over all durations in order; this waits for the devices if they are not done."""
        with self._lock:
            pending, self._pending = self._pending, []
        for event in next((end for _, end, _ in reversed(pending) if end), ()):
            if not event.query():
                event.synchronize()
        for start, end, use in pending:
            passed = (one.elapsed_time(other) for one, other in zip(start, end, strict=False))
            use([round(milliseconds * _NS_PER_MS) for milliseconds in passed])


Timer = HostTimer | DeviceTimer


def timer_for(tensors: Iterable[torch.Tensor], clock: StandingClock) -> Timer:
    """The timer of a model that these tensors belong to; its own devices, not the current one."""
    devices = {tensor.device for tensor in tensors if is_remote(tensor)}
    return DeviceTimer(devices) if devices else HostTimer(clock)


def _new_event(device: torch.device) -> Any:
    return torch.get_device_module(device).Event(enable_timing=True)


_CPU = "cpu"


class CpuMeter:
    """The reports of torch's CPU allocator to a profiler."""

    def __init__(self) -> None:
        self._on = False

    def start(self) -> None:
        """Start the reports of all blocks, unless the user's profiler is running."""
        self._on = start_allocation_reports()

    def stop(self) -> AllocatorPeak | None:
        """The peak of the reports, and the op at the peak."""
        if not self._on:
            return None
        self._on = False
        return _peak(stop_allocation_reports())


class DeviceMeter:
    """The statistics of a device's caching allocator.

    The allocator has one peak, and the user may be reading it, too. It is reset for the step. If
    the earlier peak was higher, a block that is freed at once brings it back.
    """

    def __init__(self, device: str, statistics: Any) -> None:
        self._device = device
        self._statistics = statistics
        self._before = self._users_peak = 0
        self._counts: Mapping[str, Any] = {}

    def start(self) -> None:
        self._users_peak = self._statistics.max_memory_allocated(self._device)
        self._statistics.reset_peak_memory_stats(self._device)
        self._before = self._statistics.memory_allocated(self._device)
        self._counts = self._statistics.memory_stats(self._device)

    def stop(self) -> AllocatorPeak | None:
        found = self._statistics.memory_stats(self._device)
        peak = self._statistics.max_memory_allocated(self._device)
        missing = self._users_peak - self._statistics.memory_allocated(self._device)
        if peak < self._users_peak and missing > 0:
            # Without room for it, the user's peak stays that of this step.
            with contextlib.suppress(RuntimeError):
                torch.empty(missing, dtype=torch.uint8, device=self._device)
        return AllocatorPeak(
            device=self._device,
            peak_bytes=peak - self._before,
            pools=_pools(found),
            retries=self._since_start("num_alloc_retries", found),
            ooms=self._since_start("num_ooms", found),
        )

    def _since_start(self, name: str, found: Mapping[str, Any]) -> int:
        return int(found.get(name, 0)) - int(self._counts.get(name, 0))


def _pools(found: Mapping[str, Any]) -> tuple[AllocatorPool, ...]:
    """The pools in `memory_stats`; none if they are not told apart."""
    if "reserved_bytes.small_pool.current" not in found:
        return ()

    def pool(name: str, key: str) -> AllocatorPool:
        def amount(of: str, when: str = "current") -> int:
            return int(found.get(f"{of}.{key}.{when}", 0))

        allocated = amount("allocated_bytes")
        return AllocatorPool(
            pool=name,
            segments=amount("segment"),
            reserved_bytes=amount("reserved_bytes"),
            peak_reserved_bytes=amount("reserved_bytes", "peak"),
            allocated_bytes=allocated,
            peak_allocated_bytes=amount("allocated_bytes", "peak"),
            requested_bytes=amount("requested_bytes"),
            pending_bytes=max(amount("active_bytes") - allocated, 0),
            split_bytes=amount("inactive_split_bytes"),
            peak_split_bytes=amount("inactive_split_bytes", "peak"),
        )

    return (pool("all", "all"), pool("small", "small_pool"), pool("large", "large_pool"))


Meter = CpuMeter | DeviceMeter
"""Reads one allocator, from `start` to `stop`."""


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


def _peak(events: Iterable[Any]) -> AllocatorPeak:
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
    return AllocatorPeak(device=_CPU, peak_bytes=peak, op=op)


def _kernel(running: Sequence[str]) -> str:
    """The outermost running kernel: the others are parts of it."""
    kernels = (name for name in running if name.startswith("aten::"))
    return next(kernels, running[-1]).removeprefix("aten::")


class Allocator:
    """Asks the allocator of CUDA."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._devices = tuple(devices)

    @property
    def total_bytes(self) -> int:
        return sum(map(torch.cuda.memory_allocated, self._devices))

    def meet(self, tensors: Iterable[torch.Tensor | None]) -> None:
        """Does nothing: the allocator already knows them."""

    def watching(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()


class Storages:
    """Counts storages when they are created, and forgets them when they are freed."""

    def __init__(self, clock: StandingClock) -> None:
        self.total_bytes = 0
        self._clock = clock
        self._living: StorageMap[int] = StorageMap(self._gone)

    def meet(self, tensors: Iterable[torch.Tensor | None]) -> None:
        # Reading the parts of a sparse tensor runs ops.
        with quietly():
            for tensor in tensors:
                if tensor is not None:
                    for storage in _storages(tensor):
                        self._count(storage)

    def watching(self) -> contextlib.AbstractContextManager[object]:
        """Count all storages that are created inside."""
        return mode_on(_Watching(self, self._clock))

    def meet_made(self, output: Any, known: set[int]) -> None:
        """Count the storages that an op created, not those of its arguments."""
        for tensor in iter_tensors(output):
            for storage in _storages(tensor):
                if storage_key(storage) not in known:
                    self._count(storage)

    def known(self, arguments: Any) -> set[int]:
        tensors = iter_tensors(arguments)
        return {storage_key(storage) for tensor in tensors for storage in _storages(tensor)}

    def _count(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        if size and self._living.find(storage) is None:
            self._living.know(storage, size)
            self.total_bytes += size

    def _gone(self, size: int) -> None:
        self.total_bytes -= size


Gauge = Allocator | Storages
"""Measures how much memory tensors take, relative to a starting point."""


def gauge_for(tensors: Iterable[torch.Tensor], clock: StandingClock) -> Gauge:
    """The gauge for the devices that a model is on."""
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    return Allocator(devices) if devices else Storages(clock)


class _Watching(LookingMode):  # type: ignore[no-untyped-call]
    """Shows a gauge the results of every op."""

    def __init__(self, gauge: Storages, clock: StandingClock) -> None:
        super().__init__()
        self._gauge = gauge
        self._clock = clock

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        known: set[int] = set()
        # A count that fails must not stop the user's forward.
        with contextlib.suppress(Exception), self._clock, DisableTorchFunction():
            known = self._gauge.known((args, kwargs))
        output = func(*args, **kwargs)
        with contextlib.suppress(Exception), self._clock, DisableTorchFunction():
            self._gauge.meet_made(output, known)
        return output


def _storages(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    for part in plain_tensors(tensor):
        try:
            storage = part.untyped_storage()
        except (NotImplementedError, RuntimeError):
            # Tensors of function transforms have none.
            continue
        yield storage
