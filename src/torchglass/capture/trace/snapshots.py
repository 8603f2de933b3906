"""The results of a pass as they were when they were made, at the price of references.

A tensor is copied only when an op is about to write into memory that it spans, and only if it
cannot be made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import NamedTuple, Protocol

import torch
from torch.nn.parameter import is_lazy

from torchglass.capture.quiet import is_overheard, quietly
from torchglass.capture.tensor.extents import ByMemory, Extent, copy_of, extent_of, storage_of
from torchglass.capture.trace.functions import tensors_in
from torchglass.capture.trace.ops import OpEvent
from torchglass.capture.trace.remaking import (
    Ingredient,
    Key,
    Overwritten,
    recipe_for,
)


class _Kept(NamedTuple):
    key: Key
    tensor: torch.Tensor


class Makes(Protocol):
    """An event that made tensors."""

    @property
    def results(self) -> Sequence[torch.Tensor]:
        """The tensors."""


class Originals(dict[int, tuple[torch.Tensor, torch.Tensor]]):
    """Tensors that were there before the pass, by id, each with a copy from before its writes."""

    def before_writes(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that was there before the pass, as it was then."""
        _, copy = self.get(id(tensor), (tensor, None))
        return tensor if copy is None else copy_of(copy)


class Snapshots:
    """The results of a growing list of events, which hold the tensors themselves.

    The index by memory is made when the first write asks for it. `held` gives the tensors that were
    there before the pass: the model's own. With `remake` all events are known to be kept, as they
    were: results may be made again of others.
    """

    def __init__(
        self,
        events: Sequence[Makes],
        held: Callable[[], Iterable[torch.Tensor]] = tuple,
        *,
        remake: bool = False,
    ) -> None:
        self._events = events
        self._held = held
        self._indexed = 0
        self._unwritten: dict[int, list[_Kept]] = {}
        self._written: dict[int, ByMemory[_Kept]] = {}
        self._remake = remake
        self._first: dict[int, int] = {}
        """The first event that had a result in a storage."""
        self._before: dict[tuple[int, int], Key] = {}
        """What a tensor was the result of before an event wrote into it, by event and its id."""
        self._writes: Counter[int] = Counter()
        """How often each storage was written to, as far as that was seen."""
        self.overwritten = Overwritten()
        self.originals = Originals()
        self.lazy: dict[int, torch.Tensor] = {}
        """Tensors that had no shape before the pass gave them one, by id."""

    def note_lazy(self, tensors: Iterable[torch.Tensor]) -> None:
        """Remember those of some tensors that have no shape yet."""
        self.lazy.update((id(tensor), tensor) for tensor in tensors if is_lazy(tensor))

    def before_write(self, written: Sequence[torch.Tensor]) -> None:
        """Copy the results that a write into these tensors would change."""
        if is_overheard():
            with quietly():
                self._save(written)
        else:
            self._save(written)

    def _save(self, written: Sequence[torch.Tensor]) -> None:
        self._index()
        for tensor in written:
            storage = storage_of(tensor)
            if storage is not None:
                self._copy_originals(tensor, storage)
                if storage in self._unwritten and _fills_its_storage(tensor):
                    self._copy_all(storage, tensor)
                elif (extent := extent_of(tensor)) is not None:
                    self._copy_results(extent)
                self._writes[storage] += 1
            else:
                self.note_lazy((tensor,))

    def _copy_all(self, storage: int, written: torch.Tensor) -> None:
        for key, tensor in self._unwritten[storage]:
            recipe = None
            if self._remake:
                recipe = recipe_for(self._events[key[0]], partial(self._known, key[0]))
            self.overwritten.keep(key, tensor, recipe)
            if tensor is written:
                self._before[len(self._events), id(tensor)] = key
        self._unwritten[storage] = []

    def _copy_results(self, extent: Extent) -> None:
        if extent.storage in self._unwritten:
            results = self._written[extent.storage] = ByMemory()
            for kept in self._unwritten.pop(extent.storage):
                _add(results, kept)
        if extent.storage in self._written:
            for kept in self._written[extent.storage].take(extent, extent.meets):
                self.overwritten.keep(kept.key, kept.tensor)

    def _copy_originals(self, tensor: torch.Tensor, storage: int) -> None:
        owners = self._held_by_storage.get(storage, ())
        if not owners and storage not in self._unwritten and storage not in self._written:
            owners = (tensor,)
        for owner in owners:
            if id(owner) not in self.originals and not is_lazy(owner):
                self.originals[id(owner)] = owner, copy_of(owner)

    def _known(self, event: int, tensor: torch.Tensor) -> Ingredient | torch.Tensor | None:
        """What `recipe_for` asks: a tensor as an event was given it."""
        key = self._before.get((event, id(tensor)))
        if key is None:
            storage = storage_of(tensor)
            if storage is None:
                return None
            if storage not in self._first:
                return None if id(tensor) in self.originals else tensor
            if storage in self._written or not _fills_its_storage(tensor):
                return None
            there = self._unwritten[storage]
            keys = [kept.key for kept in there if kept.tensor is tensor and kept.key[0] < event]
            if not keys or not self._is_made_here(storage):
                return None
            key = keys[-1]
        if tensor.is_inference() or tensor._version != self._writes[storage_of(tensor) or 0]:
            # Nobody counts the writes into it, or there was one that nobody showed us.
            return None
        return Ingredient(key, tensor, tensor._version, self.overwritten.length(key))

    def _is_made_here(self, storage: int) -> bool:
        """Whether memory came with the pass; into any other the caller may write afterwards."""
        maker = self._events[self._first[storage]]
        if not isinstance(maker, OpEvent):
            return False
        return all(storage_of(given) != storage for given in tensors_in((maker.args, maker.kwargs)))

    @cached_property
    def _held_by_storage(self) -> dict[int, tuple[torch.Tensor, ...]]:
        held: dict[int, tuple[torch.Tensor, ...]] = {}
        for tensor in self._held():
            storage = storage_of(tensor)
            if storage is not None:
                held[storage] = (*held.get(storage, ()), tensor)
        return held

    def _index(self) -> None:
        for event in range(self._indexed, len(self._events)):
            for number, tensor in enumerate(self._events[event].results):
                storage = storage_of(tensor)
                if storage is None:
                    continue
                kept = _Kept((event, number), tensor)
                if storage not in self._first:
                    self._first[storage] = event
                    self._unwritten[storage] = [kept]
                elif storage in self._written:
                    _add(self._written[storage], kept)
                else:
                    self._unwritten[storage].append(kept)
        self._indexed = len(self._events)


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    """Whether what is written into a tensor leaves nothing of its storage as it was."""
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        return False
    return tensor.nbytes == tensor.untyped_storage().nbytes()


def _add(memory: ByMemory[_Kept], kept: _Kept) -> None:
    extent = extent_of(kept.tensor)
    if extent is not None:
        memory.add(extent, kept)
