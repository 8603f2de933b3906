"""Which op made a tensor, and which has written into its memory since."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch

from torchglass.capture.tensor.extents import Extent, extent_of
from torchglass.records.trace import OpId


class Origin(NamedTuple):
    """The op and the number of its output that a tensor is."""

    op: OpId
    output: int


class _Made(NamedTuple):
    tensor: weakref.ref[torch.Tensor]
    origin: Origin


class Origins:
    """Follows tensors through a pass, in order.

    No tensor is held: as the id of a freed one may come back as another's, each is remembered with
    a weak reference that tells the two apart.
    """

    def __init__(self) -> None:
        self._by_id: dict[int, _Made] = {}
        self._by_storage: dict[int, _Made] = {}
        self._writes: dict[int, list[tuple[OpId, Extent]]] = {}

    def made(self, op: OpId, tensors: Sequence[torch.Tensor]) -> None:
        """Note that an op made these tensors."""
        for output, tensor in enumerate(tensors):
            made = _Made(weakref.ref(tensor), Origin(op, output))
            self._by_id[id(tensor)] = made
            extent = extent_of(tensor)
            if extent is not None:
                self._by_storage[extent.storage] = made

    def wrote(self, op: OpId, tensor: torch.Tensor) -> None:
        """Note that an op changed this tensor in place."""
        extent = extent_of(tensor)
        if extent is not None:
            self._writes.setdefault(extent.storage, []).append((op, extent))

    def find(self, tensor: torch.Tensor) -> Origin | None:
        """The op that made a tensor, wrote it last, or made the memory that it is a view of."""
        made = self._by_id.get(id(tensor))
        if made is not None and made.tensor() is tensor:
            return made.origin
        # A view that torch made out of our sight, as `vmap` makes of what it returns.
        extent = extent_of(tensor)
        made = self._by_storage.get(extent.storage) if extent is not None else None
        return made.origin if made is not None and made.tensor() is not None else None

    def writers_since(self, op: OpId, tensor: torch.Tensor) -> tuple[OpId, ...]:
        """The ops after one that wrote, through other tensors, into memory that this one sees."""
        extent = extent_of(tensor) if self._writes else None
        if extent is None:
            return ()
        writers = []
        for writer, written in reversed(self._writes.get(extent.storage, ())):
            if writer <= op:
                break
            if written.meets(extent):
                writers.append(writer)
        return tuple(reversed(writers))
