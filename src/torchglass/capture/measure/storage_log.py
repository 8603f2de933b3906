"""A log of storages: who allocated each, and when it was freed.

No storage is kept alive: a weak reference to each tells when it is freed.
"""

from __future__ import annotations

import dataclasses
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.nn.parameter import is_lazy

from torchglass.capture.tensor.description import COMPRESSED_INDICES, describe, inner_tensors
from torchglass.capture.torch_internals import FakeTensor, storage_address
from torchglass.records.measures import (
    BlockId,
    BlockKind,
    MemoryBlock,
    MemoryChange,
    Saver,
    StepPart,
    StepPhase,
)
from torchglass.records.tensors import TensorSpec

K = TypeVar("K")


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with a storage of their own that a tensor is made of; mostly itself.

    A sparse tensor is made of its indices and values, a wrapper of what it wraps. One that keeps
    its numbers where torch cannot see them, as those of oneDNN do, is made of none.
    """
    if is_lazy(tensor):
        return
    if inner := inner_tensors(tensor):
        for part in inner:
            yield from plain_tensors(part)
    elif tensor.layout is torch.strided:
        yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in COMPRESSED_INDICES:
        yield from (getattr(tensor, name)() for name in COMPRESSED_INDICES[tensor.layout])
        yield tensor.values()


def storage_key(storage: Any) -> int:
    """A number that no other storage has while this one exists."""
    key: int = storage_address(storage)
    return key


class _KnownStorage(weakref.ref[torch.UntypedStorage], Generic[K]):
    """A storage that is not held, and what is known of it."""

    __slots__ = ("key", "known")
    key: int
    known: K


class StorageMap(Generic[K]):
    """What is known of storages; calls `gone` with it when a storage is freed."""

    def __init__(self, gone: Callable[[K], None]) -> None:
        self._told = gone
        self._storages: dict[int, _KnownStorage[K]] = {}

    def find(self, storage: torch.UntypedStorage) -> K | None:
        found = self._storages.get(storage_key(storage))
        return None if found is None else found.known

    def know(self, storage: torch.UntypedStorage, known: K) -> None:
        living: _KnownStorage[K] = _KnownStorage(storage, self._gone)
        living.key, living.known = storage_key(storage), known
        self._storages[living.key] = living

    def forget(self, storage: torch.UntypedStorage) -> K | None:
        found = self._storages.pop(storage_key(storage), None)
        return None if found is None else found.known

    def pairs(self) -> Iterator[tuple[torch.UntypedStorage, K]]:
        """The storages that still exist, with what is known of them."""
        for living in list(self._storages.values()):
            storage = living()
            if storage is not None:
                yield storage, living.known

    def clear(self) -> None:
        self._storages.clear()

    def _gone(self, living: Any) -> None:
        key, known = living.key, living.known
        if self._storages.get(key) is living:
            del self._storages[key]
            self._told(known)


_MADE_ON_THE_WAY = ("forward", "loss")
_FIXED = ("parameter", "buffer")


class Place(NamedTuple):
    """A module, and a kernel that runs for it."""

    path: str | None = None
    op: str = ""


@dataclass(slots=True)
class _OpenBlock:
    """A block while the log is written."""

    id: BlockId
    bytes: int
    spec: TensorSpec
    kind: BlockKind
    phase: StepPhase | None
    place: Place
    name: str = ""
    saved_by: dict[Saver, None] = field(default_factory=dict)

    def block(self) -> MemoryBlock:
        return MemoryBlock(
            id=self.id,
            kind=self.kind,
            bytes=self.bytes,
            spec=self.spec,
            phase=self.phase,
            path=self.place.path,
            op=self.place.op,
            name=self.name,
            saved_by=tuple(self.saved_by),
        )


class StorageLog:
    """Logs which blocks exist, and are allocated and freed, until it is closed."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._start_ns = 0
        self._drafts: list[_OpenBlock] = []
        self._storages: StorageMap[_OpenBlock] = StorageMap(self._gone)
        self._changes: list[MemoryChange] = []
        self._parts: list[StepPart] = []
        self._end = 0
        self._phase: StepPhase = "forward"
        self.place = Place()
        """The place of the running kernel, or of the last one."""

    def begin(self, phase: StepPhase) -> None:
        """Begin a part of the step."""
        self._phase = phase
        self.place = Place()
        now = self._clock()
        if not self._parts:
            self._start_ns = now
        start_ns = now - self._start_ns
        self._parts.append(StepPart(phase=phase, start=len(self._changes), start_ns=start_ns))

    def hold(
        self, tensor: torch.Tensor, kind: BlockKind, path: str | None = None, name: str = ""
    ) -> None:
        """Log a tensor that existed before the step, unless it is known."""
        for part in plain_tensors(tensor):
            storage = part.untyped_storage()
            if self._storages.find(storage) is None:
                self._enter(storage, part, kind, None, Place(path), name)

    def take(self, tensor: torch.Tensor) -> None:
        """Log a tensor that a kernel returned or wrote, if it is new or was resized."""
        for part in plain_tensors(tensor):
            storage = part.untyped_storage()
            known = self._storages.find(storage)
            if known is None:
                draft = self._enter(storage, part, "temporary", self._phase, self.place)
                self._change(draft, draft.bytes)
            elif known.bytes != storage.nbytes():
                self._resize(storage, known)

    def replace(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """From here on, a tensor uses the block of another one."""
        for before, after in zip(plain_tensors(old), plain_tensors(new), strict=True):
            draft = self._storages.forget(before.untyped_storage())
            if draft is not None:
                self._storages.know(after.untyped_storage(), draft)

    def stand_in(self, copy: torch.Tensor, original: torch.Tensor) -> None:
        """Do not count a copy: the step would have used the original."""
        for ours, theirs in zip(plain_tensors(copy), plain_tensors(original), strict=True):
            draft = self._storages.find(theirs.untyped_storage())
            if draft is not None:
                self._storages.know(ours.untyped_storage(), draft)

    def own(
        self, tensor: torch.Tensor, kind: BlockKind, path: str | None = None, name: str = ""
    ) -> None:
        """Log that a tensor is a gradient, or the state of an optimizer."""
        self.hold(tensor, kind, path, name)
        for draft in self._drafts_of(tensor):
            # State of earlier steps was first seen as what a kernel was given.
            if draft.phase is not None or draft.kind == "input":
                draft.kind, draft.name = kind, name
                draft.place = Place(path, draft.place.op)

    def saved(self, tensor: torch.Tensor, saver: Saver) -> None:
        """Log that an autograd node saved a tensor for the backward."""
        for draft in self._drafts_of(tensor):
            if draft.kind not in _FIXED:
                draft.saved_by[saver] = None

    def retain(self, kind: BlockKind) -> None:
        """Log that what the forward made and still exists is not temporary."""
        for _, draft in self._storages.pairs():
            if draft.phase in _MADE_ON_THE_WAY:
                draft.kind = kind

    def end(self) -> None:
        """End a part of the step; what is freed after the last part does not count."""
        for storage, draft in self._storages.pairs():
            # A storage can be resized by itself, which no kernel does.
            if storage.nbytes() != draft.bytes:
                self._resize(storage, draft)
        self._end = len(self._changes)

    def close(self) -> None:
        self._storages.clear()

    def read(
        self,
    ) -> tuple[tuple[MemoryBlock, ...], tuple[MemoryChange, ...], tuple[StepPart, ...]]:
        """The blocks and their changes; the state of an optimizer counts as there before."""
        lasting = {draft.id for draft in self._drafts if draft.kind == "optimizer"}
        for draft in self._drafts:
            if draft.id in lasting:
                draft.phase, draft.place = None, Place(draft.place.path)
        changes = self._changes[: self._end]
        kept = [number for number, one in enumerate(changes) if one.block not in lasting]
        parts = [
            StepPart(
                phase=part.phase,
                start=sum(number < part.start for number in kept),
                start_ns=part.start_ns,
            )
            for part in self._parts
        ]
        blocks = tuple(draft.block() for draft in self._drafts)
        return blocks, tuple(changes[number] for number in kept), tuple(parts)

    def _enter(
        self,
        storage: torch.UntypedStorage,
        tensor: torch.Tensor,
        kind: BlockKind,
        phase: StepPhase | None,
        place: Place,
        name: str = "",
    ) -> _OpenBlock:
        draft = _OpenBlock(
            BlockId(len(self._drafts)), storage.nbytes(), _spec(tensor), kind, phase, place, name
        )
        self._drafts.append(draft)
        self._storages.know(storage, draft)
        return draft

    def _gone(self, draft: _OpenBlock) -> None:
        self._change(draft, -draft.bytes)

    def _resize(self, storage: torch.UntypedStorage, old: _OpenBlock) -> None:
        new = _OpenBlock(
            BlockId(len(self._drafts)),
            storage.nbytes(),
            old.spec,
            "temporary",
            self._phase,
            self.place,
            old.name,
        )
        self._drafts.append(new)
        # An allocator copies into the new block before it frees the old one.
        self._change(new, new.bytes)
        self._change(old, -old.bytes)
        self._storages.know(storage, new)

    def _change(self, draft: _OpenBlock, size: int) -> None:
        if not size:
            return
        self._changes.append(
            MemoryChange(
                time_ns=self._clock() - self._start_ns,
                block=draft.id,
                bytes=size,
                phase=self._phase,
                path=self.place.path,
                op=self.place.op,
            )
        )

    def _drafts_of(self, tensor: torch.Tensor) -> Iterator[_OpenBlock]:
        for part in plain_tensors(tensor):
            draft = self._storages.find(part.untyped_storage())
            if draft is not None:
                yield draft


def _spec(tensor: torch.Tensor) -> TensorSpec:
    """The description of a tensor; of a fake one, that of the real one."""
    spec = describe(tensor)
    return dataclasses.replace(spec, layout="strided") if isinstance(tensor, FakeTensor) else spec
