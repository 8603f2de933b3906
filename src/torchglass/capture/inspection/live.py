"""How much memory tensors take right now.

On the CPU no allocator can be asked. There a dispatch mode sees every tensor that a forward makes,
and its storage tells when it goes. In a backward no mode is needed: what lives on after a node are
the gradients that the node gives out.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch._C import DisableTorchFunction
from torch.utils._python_dispatch import TorchDispatchMode

from torchglass.capture.inspection.clock import StandingClock
from torchglass.capture.tensor.describing import inner_tensors
from torchglass.capture.trace.ops import tensors_in


class Gauge(Protocol):
    """Knows how much memory tensors take."""

    @property
    def total_bytes(self) -> int:
        """What they take right now, from some amount on."""

    def meet(self, tensors: Iterable[torch.Tensor | None]) -> None:
        """Count tensors in that were made while nobody was watching."""

    def watching(self) -> contextlib.AbstractContextManager[object]:
        """A block of the model's forward."""


def gauge_for(tensors: Iterable[torch.Tensor], clock: StandingClock) -> Gauge:
    """The gauge for the devices that a model is on."""
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    return Allocator(devices) if devices else Storages(clock)


class Allocator:
    """Asks the allocator of CUDA."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._devices = tuple(devices)

    @property
    def total_bytes(self) -> int:
        """What is allocated on all devices of the model."""
        return sum(map(torch.cuda.memory_allocated, self._devices))

    def meet(self, tensors: Iterable[torch.Tensor | None]) -> None:
        """The allocator knows them already."""

    def watching(self) -> contextlib.AbstractContextManager[object]:
        """The allocator needs no watching."""
        return contextlib.nullcontext()


class Storages:
    """Counts the storages that came into being, and forgets them when they go."""

    def __init__(self, clock: StandingClock) -> None:
        self.total_bytes = 0
        self._clock = clock
        self._live: dict[int, _Storage] = {}

    def meet(self, tensors: Iterable[torch.Tensor | None]) -> None:
        """Count the storages of tensors that are not known yet."""
        for tensor in tensors:
            if tensor is not None:
                for storage in _storages(tensor):
                    self._count(storage)

    def watching(self) -> contextlib.AbstractContextManager[object]:
        """Count all that is made inside."""
        return _Watching(self, self._clock)

    def meet_made(self, output: Any, known: set[int]) -> None:
        """Count what an op made, and not what it was given: a view of a weight takes nothing."""
        for tensor in tensors_in(output):
            for storage in _storages(tensor):
                if storage._cdata not in known:
                    self._count(storage)

    def known(self, arguments: Any) -> set[int]:
        """The storages among the arguments of an op."""
        return {storage._cdata for tensor in tensors_in(arguments) for storage in _storages(tensor)}

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if size and key not in self._live:
            self._live[key] = known = _Storage(storage, self._gone)
            known.key, known.size = key, size
            self.total_bytes += size

    def _gone(self, storage: weakref.ref[torch.UntypedStorage]) -> None:
        if isinstance(storage, _Storage) and self._live.pop(storage.key, None) is not None:
            self.total_bytes -= storage.size


class _Storage(weakref.ref[torch.UntypedStorage]):
    """A storage that is not held."""

    __slots__ = ("key", "size")
    key: int
    size: int


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Shows a gauge what every op makes."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would import dynamo to keep it out of the method below: seconds at the first op.
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        # Else functions that are first called here stay uncompiled for good.
        return True

    def __init__(self, gauge: Storages, clock: StandingClock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._gauge = gauge
        self._clock = clock

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        known: set[int] = set()
        # A count that fails must not stop the user's forward.
        with self._clock, contextlib.suppress(Exception), DisableTorchFunction():
            known = self._gauge.known((args, kwargs))
        output = func(*args, **kwargs)
        with self._clock, contextlib.suppress(Exception), DisableTorchFunction():
            self._gauge.meet_made(output, known)
        return output


def _storages(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    for part in inner_tensors(tensor) or (tensor,):
        try:
            storage = part.untyped_storage()
        except (NotImplementedError, RuntimeError):
            # Sparse tensors and those of function transforms have none.
            continue
        yield storage
