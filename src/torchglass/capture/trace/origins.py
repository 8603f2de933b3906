"""Which op made a tensor, and which has written into its memory since."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchglass.capture.tensor.extents import (
    ByMemory,
    Extent,
    View,
    extent_of,
    extent_of_view,
    storage_of,
    view_of,
)
from torchglass.capture.trace.saved import Output
from torchglass.records.trace import OpId

_Made = tuple[OpId, int, torch.Tensor | View]
"""An op, the number of an output, and the output, or what it showed."""


class Origins:
    """Follows tensors through a pass, in order."""

    def __init__(self, *, hold: bool) -> None:
        """`hold` the tensors, where something else does for as long.

        The id of one that is freed may come back as another's, so where none is held, each is
        remembered with what it showed, which tells the two apart.
        """
        self._makers: dict[int, OpId] = {}
        self._outputs: dict[int, int] = {}
        """The numbers of those outputs that are not an op's first."""
        self._views: dict[int, View] | None = None if hold else {}
        self._by_storage: dict[int, list[_Made]] = {}
        self._not_by_storage: list[_Made] = []
        self._writes: dict[int, ByMemory[OpId]] = {}

    def made(self, op: OpId, tensors: Sequence[torch.Tensor]) -> None:
        """Note that an op made these tensors."""
        for output, tensor in enumerate(tensors):
            key = id(tensor)
            self._makers[key] = op
            if output or key in self._outputs:
                self._outputs[key] = output
            shown: torch.Tensor | View = tensor
            if self._views is not None:
                shown = self._views[key] = view_of(tensor)
            self._not_by_storage.append((op, output, shown))

    def wrote(self, op: OpId, tensor: torch.Tensor) -> None:
        """Note that an op changed this tensor in place."""
        extent = extent_of(tensor)
        if extent is not None:
            writes = self._writes.setdefault(extent.storage, ByMemory())
            # What it wrote over it has read, or can no longer be seen.
            writes.take(extent, extent.covers)
            writes.add(extent, op)

    def find(self, tensor: torch.Tensor) -> Output | None:
        """The op that made a tensor, wrote it last, or made the memory that it is a view of."""
        # By its memory, if it is a view made out of our sight, as `vmap` makes of what it returns.
        return self.own(tensor) or self._of_storage(tensor)

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

    def own(self, tensor: torch.Tensor) -> Output | None:
        """The op that made this very tensor, not one that shares its memory."""
        key = id(tensor)
        maker = self._makers.get(key)
        if maker is None or (self._views is not None and self._views[key] != view_of(tensor)):
            return None
        return maker, self._outputs.get(key, 0)

    def _of_storage(self, tensor: torch.Tensor) -> Output | None:
        """What was last made of a tensor's memory. Few passes ask, so the index waits for one."""
        for made in self._not_by_storage:
            there = _extent(made)
            if there is not None:
                self._by_storage.setdefault(there.storage, []).append(made)
        self._not_by_storage.clear()
        extent = extent_of(tensor)
        if extent is None:
            return None
        # A storage may hold several tensors, as slices of one batch: those elsewhere are others.
        for made in reversed(self._by_storage.get(extent.storage, ())):
            there = _extent(made)
            if there is not None and there.meets(extent):
                return made[:2]
        return None


def _extent(made: _Made) -> Extent | None:
    shown = made[2]
    return extent_of(shown) if isinstance(shown, torch.Tensor) else extent_of_view(shown)
