"""How much memory tensors take right now.

On the CPU no allocator can be asked. There a dispatch mode sees every tensor that a forward makes,
and its storage tells when it goes. In a backward no mode is needed: what lives on after a node are
the gradients that the node gives out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch._C import DisableTorchFunction

from torchglass.capture.inspection.clock import StandingClock
from torchglass.capture.memory.storages import Living, plain_tensors, storage_key
from torchglass.capture.quiet import quietly
from torchglass.capture.trace.dispatch import LookingMode, mode_on
from torchglass.capture.trace.functions import tensors_in


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
        self._living: Living[int] = Living(self._gone)

    def meet(self, tensors: Iterable[torch.Tensor | None]) -> None:
        """Count the storages of tensors that are not known yet."""
        # To see the parts of a sparse tensor takes ops.
        with quietly():
            for tensor in tensors:
                if tensor is not None:
                    for storage in _storages(tensor):
                        self._count(storage)

    def watching(self) -> contextlib.AbstractContextManager[object]:
        """Count all that is made inside."""
        return mode_on(_Watching(self, self._clock))

    def meet_made(self, output: Any, known: set[int]) -> None:
        """Count what an op made, and not what it was given: a view of a weight takes nothing."""
        for tensor in tensors_in(output):
            for storage in _storages(tensor):
                if storage_key(storage) not in known:
                    self._count(storage)

    def known(self, arguments: Any) -> set[int]:
        """The storages among the arguments of an op."""
        tensors = tensors_in(arguments)
        return {storage_key(storage) for tensor in tensors for storage in _storages(tensor)}

    def _count(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        if size and self._living.find(storage) is None:
            self._living.know(storage, size)
            self.total_bytes += size

    def _gone(self, size: int) -> None:
        self.total_bytes -= size


class _Watching(LookingMode):  # type: ignore[no-untyped-call]
    """Shows a gauge what every op makes."""

    def __init__(self, gauge: Storages, clock: StandingClock) -> None:
        super().__init__()
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
            # Those of function transforms have none.
            continue
        yield storage
