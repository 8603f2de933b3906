"""The results of a pass as they were when they were made, at the price of references.

A tensor is copied only when an op is about to write into memory that it spans.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchglass.capture.tensor.extents import Extent, extent_of

Key = tuple[int, int]
"""The number of an event, and which of its results."""


class _Kept(NamedTuple):
    key: Key
    extent: Extent
    tensor: torch.Tensor


class Makes(Protocol):
    """An event that made tensors."""

    @property
    def results(self) -> Sequence[torch.Tensor]:
        """The tensors."""


class Snapshots:
    """The results of a growing list of events, which hold the tensors themselves.

    The index by memory is made when the first write asks for it. `held` gives the tensors that were
    there before the pass: the model's own.
    """

    def __init__(
        self, events: Sequence[Makes], held: Callable[[], Iterable[torch.Tensor]] = tuple
    ) -> None:
        self._events = events
        self._held = held
        self._indexed = 0
        self._by_storage: dict[int, list[_Kept]] = {}
        self._copies: dict[Key, torch.Tensor] = {}
        self._from_before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def before_write(self, written: Sequence[torch.Tensor]) -> None:
        """Copy the results that a write into these tensors would change."""
        with _unseen():
            self._index()
            for tensor in written:
                extent = extent_of(tensor)
                if extent is not None:
                    self._copy_from_before(tensor, extent.storage)
                    self._copy_results(extent)

    def tensor(self, key: Key, result: torch.Tensor) -> torch.Tensor:
        """A result as it was when it was made."""
        return self._copies.get(key, result)

    def before_writes(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that was there before the pass, as it was then."""
        _, copy = self._from_before.get(id(tensor), (tensor, None))
        return tensor if copy is None else copy.clone()

    def _copy_results(self, extent: Extent) -> None:
        untouched = []
        for kept in self._by_storage.get(extent.storage, ()):
            if kept.extent.meets(extent):
                self._copies[kept.key] = kept.tensor.detach().clone()
            else:
                untouched.append(kept)
        if extent.storage in self._by_storage:
            self._by_storage[extent.storage] = untouched

    def _copy_from_before(self, tensor: torch.Tensor, storage: int) -> None:
        owners = self._held_by_storage.get(storage, ())
        if not owners and storage not in self._by_storage:
            owners = (tensor,)
        for owner in owners:
            if id(owner) not in self._from_before:
                self._from_before[id(owner)] = owner, owner.detach().clone()

    @cached_property
    def _held_by_storage(self) -> dict[int, tuple[torch.Tensor, ...]]:
        held: dict[int, tuple[torch.Tensor, ...]] = {}
        for tensor in self._held():
            extent = extent_of(tensor)
            if extent is not None:
                held[extent.storage] = (*held.get(extent.storage, ()), tensor)
        return held

    def _index(self) -> None:
        for event in range(self._indexed, len(self._events)):
            for number, tensor in enumerate(self._events[event].results):
                extent = extent_of(tensor)
                if extent is not None:
                    kept = _Kept((event, number), extent, tensor)
                    self._by_storage.setdefault(extent.storage, []).append(kept)
        self._indexed = len(self._events)


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """Keep our copies from the user's own dispatch modes, where there are any."""
    if torch._C._len_torch_dispatch_stack() == 0:
        yield
    else:
        with _disable_current_modes():
            yield
