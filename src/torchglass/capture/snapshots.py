"""The results of a pass as they were when they were made, at the price of references.

A tensor is copied only when an op is about to write into memory that it spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from torchglass.capture.extents import Extent, extent_of

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

    The index by memory is made when the first write asks for it.
    """

    def __init__(self, events: Sequence[Makes]) -> None:
        self._events = events
        self._indexed = 0
        self._by_storage: dict[int, list[_Kept]] = {}
        self._copies: dict[Key, torch.Tensor] = {}
        self._foreign: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def before_write(self, written: Sequence[torch.Tensor]) -> None:
        """Copy the results that a write into these tensors would change."""
        self._index()
        for tensor in written:
            extent = extent_of(tensor)
            if extent is None:
                continue
            if extent.storage not in self._by_storage:
                self._foreign.setdefault(id(tensor), (tensor, tensor.detach().clone()))
            untouched = []
            for kept in self._by_storage.get(extent.storage, ()):
                if kept.extent.meets(extent):
                    self._copies[kept.key] = kept.tensor.detach().clone()
                else:
                    untouched.append(kept)
            if untouched or extent.storage in self._by_storage:
                self._by_storage[extent.storage] = untouched

    def tensor(self, key: Key, result: torch.Tensor) -> torch.Tensor:
        """A result as it was when it was made."""
        return self._copies.get(key, result)

    def before_writes(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that was not made in the pass, as it was before the pass wrote into it."""
        _, copy = self._foreign.get(id(tensor), (tensor, None))
        return tensor if copy is None else copy.clone()

    def _index(self) -> None:
        for event in range(self._indexed, len(self._events)):
            for number, tensor in enumerate(self._events[event].results):
                extent = extent_of(tensor)
                if extent is not None:
                    kept = _Kept((event, number), extent, tensor)
                    self._by_storage.setdefault(extent.storage, []).append(kept)
        self._indexed = len(self._events)
