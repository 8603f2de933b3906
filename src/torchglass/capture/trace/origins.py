"""Which op made a tensor, and which has written into its memory since."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import torch

from torchglass.capture.tensor.extents import ByMemory, extent_of, storage_of
from torchglass.records.tensors import TensorSpec
from torchglass.records.trace import OpId


class Origin(weakref.ref[torch.Tensor]):
    """A tensor, what it is, and the op and the number of its output that it came from."""

    __slots__ = ("op", "output", "spec")

    op: OpId
    output: int
    spec: TensorSpec


class Origins:
    """Follows tensors through a pass, in order.

    No tensor is held: as the id of a freed one may come back as another's, each is remembered with
    a weak reference that tells the two apart.
    """

    def __init__(self) -> None:
        self._by_id: dict[int, Origin] = {}
        self._by_storage: dict[int, Origin] = {}
        self._not_by_storage: list[Origin] = []
        self._writes: dict[int, ByMemory[OpId]] = {}

    def made(self, op: OpId, tensors: Sequence[torch.Tensor], specs: Iterable[TensorSpec]) -> None:
        """Note that an op made these tensors."""
        for output, (tensor, spec) in enumerate(zip(tensors, specs, strict=True)):
            origin = Origin(tensor)
            origin.op, origin.output, origin.spec = op, output, spec
            self._by_id[id(tensor)] = origin
            self._not_by_storage.append(origin)

    def wrote(self, op: OpId, tensor: torch.Tensor) -> None:
        """Note that an op changed this tensor in place."""
        extent = extent_of(tensor)
        if extent is not None:
            writes = self._writes.setdefault(extent.storage, ByMemory())
            # What it wrote over it has read, or can no longer be seen.
            writes.take(extent, extent.covers)
            writes.add(extent, op)

    def find(self, tensor: torch.Tensor) -> Origin | None:
        """The op that made a tensor, wrote it last, or made the memory that it is a view of."""
        origin = self._by_id.get(id(tensor))
        if origin is not None and origin() is tensor:
            return origin
        # A view that torch made out of our sight, as `vmap` makes of what it returns.
        origin = self._of_storage(tensor)
        return origin if origin is not None and origin() is not None else None

    def writers_since(
        self, op: OpId, tensor: torch.Tensor, views: Sequence[torch.Tensor] = ()
    ) -> tuple[OpId, ...]:
        """The ops after one that wrote, through other tensors, into memory that this one sees.

        Of a tensor that is only looked at through views of it, what they see counts.
        """
        storage = storage_of(tensor) if self._writes else None
        writes = self._writes.get(storage) if storage is not None else None
        if writes is None:
            return ()
        if not views or any(storage_of(view) != storage for view in views):
            views = (tensor,)
        extents = filter(None, map(extent_of, views))
        writers = {writer for extent in extents for writer in writes.meeting(extent)}
        return tuple(sorted(writer for writer in writers if writer > op))

    def _of_storage(self, tensor: torch.Tensor) -> Origin | None:
        """What was last made in a tensor's storage. Few passes ask, so the index waits for one."""
        for origin in self._not_by_storage:
            made = origin()
            storage = storage_of(made) if made is not None else None
            if storage is not None:
                self._by_storage[storage] = origin
        self._not_by_storage.clear()
        storage = storage_of(tensor)
        return self._by_storage.get(storage) if storage is not None else None
