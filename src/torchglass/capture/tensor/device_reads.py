"""Reads tensors on accelerators without making the program wait for the device.

    reads = DeviceReads()
    reads.later(loss, print)      # `print` gets the values as a NumPy array once they are here
    reads.send()                  # one copy into pinned memory for each device and stream
    reads.receive()               # hands over what has arrived; `wait=True` waits for the rest

Everything between two `send` goes over in one non-blocking copy with an event behind it. Work of
ours is queued on the stream that the program uses, so it needs no order with other streams. While a
CUDA graph is captured there must be no call at all: ask `is_capturing` first.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]
Use = Callable[[Array], None]
"""Gets the values of a tensor once they are on the host."""

_MOST_SENT = 8
"""If this many copies have not arrived, the host waits for the oldest one."""
_SENT_DTYPES = {
    *(torch.float64, torch.float32, torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint8, torch.bool),
}
"""The dtypes that NumPy has, too; others are sent as float32."""


def is_capturing() -> bool:
    """Whether a CUDA graph is captured: any other use of the device would break it."""
    return _has_cuda() and torch.cuda.is_current_stream_capturing()


@functools.cache
def _has_cuda() -> bool:
    return torch.cuda.is_available()


def is_remote(tensor: torch.Tensor) -> bool:
    """Whether reading a tensor waits for a device."""
    return not tensor.is_cpu and not tensor.is_meta


@functools.lru_cache(maxsize=64)
def wide_dtype(device: torch.device) -> torch.dtype:
    """The widest float dtype of a device: MPS has no float64."""
    try:
        torch.zeros(1, device=device, dtype=torch.float64)
    except (TypeError, RuntimeError):
        return torch.float32
    return torch.float64


def stream_of(device: torch.device) -> Any:
    """The stream that the program uses on a device; None if it has only one."""
    world = torch.get_device_module(device)
    return world.current_stream(device) if hasattr(world, "current_stream") else None


@contextlib.contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """Queue the work of a block on a stream."""
    if stream is None or stream == stream_of(stream.device):
        yield
    else:
        with torch.get_device_module(stream.device).stream(stream):
            yield


class LateNumber:
    """A number that is not known before it has arrived."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1.0

    def __float__(self) -> float:
        return self.value

    def take(self, array: Array) -> None:
        """It has arrived."""
        self.value = float(array.reshape(-1)[0])


class _Read(NamedTuple):
    tensor: torch.Tensor | None
    """None for a function that only has to run in order."""
    stream: Any
    use: Use


class _Copy(NamedTuple):
    """Values on their way to the host."""

    host: torch.Tensor
    event: Any
    """None if they have arrived."""
    places: dict[int, int]
    """Where each item begins, in bytes."""


class _Shipment(NamedTuple):
    items: list[_Read]
    copies: list[_Copy]

    def has_arrived(self) -> bool:
        return all(copy.event is None or copy.event.query() for copy in self.copies)


_NOTHING: Final[Array] = np.empty(0)


class DeviceReads:
    """Collects tensors to read, and hands their values over in the same order."""

    def __init__(self) -> None:
        self._waiting: list[_Read] = []
        self._sent: deque[_Shipment] = deque()
        self.sent = 0
        """How many copies were started."""
        self.received = 0
        """How many copies have arrived and were handed over."""
        # The idle thread of a watcher may receive.
        self._lock = threading.RLock()

    def later(self, tensor: torch.Tensor, use: Use) -> None:
        """Hand over the values of a tensor that nobody changes; at once if they are on the host."""
        tensor = tensor.detach()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        if tensor.dtype not in _SENT_DTYPES:
            tensor = tensor.float()
        if not is_remote(tensor):
            use(tensor.numpy())
        elif not is_capturing():
            with self._lock:
                self._waiting.append(_Read(tensor.contiguous(), stream_of(tensor.device), use))

    def number(self, tensor: torch.Tensor) -> float | LateNumber:
        """The value of a tensor with one element, as it is now."""
        if not is_remote(tensor):
            return float(tensor)
        late = LateNumber()
        self.later(tensor.detach().clone(), late.take)
        return late

    def then(self, do: Callable[[], object]) -> None:
        """Run a function once all earlier tensors have been handed over."""
        with self._lock:
            if self._waiting or self._sent:
                self._waiting.append(_Read(None, None, lambda _: _run(do)))
                return
        do()

    def send(self) -> None:
        """Start to copy what was collected."""
        with self._lock:
            items, self._waiting = self._waiting, []
            if not items:
                return
            by_stream: dict[tuple[torch.device, Any], list[int]] = {}
            for index, item in enumerate(items):
                if item.tensor is not None:
                    key = item.tensor.device, item.stream
                    by_stream.setdefault(key, []).append(index)
            copies = [_start_copy(items, which) for which in by_stream.values()]
            # What was copied is not needed any more; only its shape and dtype are.
            items = [
                item if item.tensor is None else item._replace(tensor=item.tensor.to("meta"))
                for item in items
            ]
            self._sent.append(_Shipment(items, copies))
            self.sent += 1

    def receive(self, *, wait: bool = False) -> None:
        """Hand over what has arrived, in order; with `wait`, everything that was sent."""
        with self._lock:
            while self._sent:
                must = wait or len(self._sent) > _MOST_SENT
                shipment = self._sent[0]
                if must:
                    for copy in shipment.copies:
                        if copy.event is not None:
                            copy.event.synchronize()
                elif not shipment.has_arrived():
                    return
                self._sent.popleft()
                self.received += 1
                _hand_over(shipment)


class HostCopies:
    """Copies of whole tensors on the host; devices copy while the program continues."""

    def __init__(self) -> None:
        self._events: dict[tuple[torch.device, Any], Any] = {}

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor, which has its values after `wait`."""
        tensor = tensor.detach()
        if not is_remote(tensor) or tensor.layout is not torch.strided:
            return tensor.to("cpu", copy=True)
        stream = stream_of(tensor.device)
        try:
            host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            host.copy_(tensor, non_blocking=True)
            if stream is not None:
                # Its memory may have been allocated on another stream, and is freed now.
                tensor.record_stream(stream)
            event = torch.Event(tensor.device)
            event.record(stream)
        except (RuntimeError, NotImplementedError):
            return tensor.cpu()
        self._events[tensor.device, stream] = event
        return host

    def wait(self) -> None:
        """Wait until all copies have arrived."""
        for event in self._events.values():
            event.synchronize()
        self._events.clear()


def _run(do: Callable[[], object]) -> None:
    do()


def _start_copy(items: Sequence[_Read], which: Sequence[int]) -> _Copy:
    """Copy the tensors of one stream; the widest dtypes first, so that all are aligned."""
    stream = items[which[0]].stream
    ordered = sorted(which, key=lambda index: -_tensor(items[index]).element_size())
    places, end = {}, 0
    for index in ordered:
        places[index] = end
        end += _tensor(items[index]).nbytes
    with on_stream(stream):
        parts = [_tensor(items[index]).reshape(-1).view(torch.uint8) for index in ordered]
        flat = parts[0] if len(parts) == 1 else torch.cat(parts)
        try:
            host = torch.empty(flat.shape, dtype=torch.uint8, device="cpu", pin_memory=True)
            host.copy_(flat, non_blocking=True)
            event = torch.Event(flat.device)
            event.record(stream)
        except (RuntimeError, NotImplementedError):
            # A device without pinned memory: one copy that waits.
            return _Copy(flat.cpu(), None, places)
    return _Copy(host, event, places)


def _tensor(item: _Read) -> torch.Tensor:
    assert item.tensor is not None
    return item.tensor


def _hand_over(shipment: _Shipment) -> None:
    arrays: dict[int, Array] = {}
    for copy in shipment.copies:
        whole = copy.host.numpy()
        for index, start in copy.places.items():
            tensor = _tensor(shipment.items[index])
            part = whole[start : start + tensor.nbytes]
            arrays[index] = part.view(_numpy_dtype(tensor.dtype)).reshape(tuple(tensor.shape))
    problem: Exception | None = None
    for index, item in enumerate(shipment.items):
        try:
            item.use(arrays.get(index, _NOTHING))
        except Exception as error:  # noqa: BLE001, PERF203 - the others are handed over first
            problem = problem or error
    if problem is not None:
        raise problem


@functools.cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
