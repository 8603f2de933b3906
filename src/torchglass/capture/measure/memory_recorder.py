"""Records the memory of a step, kernel by kernel.

What the nodes saved is read right before the backward begins.

If a tensor gets several gradients, autograd adds each one to the sum so far. If nothing else refers
to the sum, it adds in place. While a mode is active it never does, and allocates a block that a
plain run would not. Such a block is counted as the old one.

    recorder = MemoryRecorder(model.named_modules())
    with recorder.watching("forward"):
        model(x)
    recorder.log.read()
"""

from __future__ import annotations

import dataclasses
import functools
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchglass.capture.autograd import NodeCreators, Reached, node_name, saved_tensors
from torchglass.capture.isolated_run import Replace
from torchglass.capture.module_calls import CallRecorder, RecordedCall, observe_calls
from torchglass.capture.tensor.description import (
    COMPRESSED_INDICES,
    Args,
    Kwargs,
    describe,
    inner_tensors,
    iter_tensors,
    tensors_of_call,
)
from torchglass.capture.tensor.memory_extent import extent_of
from torchglass.capture.torch_internals import (
    BACKWARD_CODE,
    FakeTensor,
    has_saved_tensor_hooks,
    node_number,
    reference_counts,
    running_node,
    storage_address,
)
from torchglass.capture.torch_modes import LookingMode, mode_on
from torchglass.capture.trace.kernel_mode import KernelMode
from torchglass.capture.trace.op_mode import OpEvent
from torchglass.errors import uninterruptible
from torchglass.records.measures import (
    BlockId,
    BlockKind,
    MemoryBlock,
    MemoryChange,
    Saver,
    StepPart,
    StepPhase,
)
from torchglass.records.model import TensorSpec, join_path


class _Creator(NamedTuple):
    path: str | None
    hooked: bool
    """Whether the model's own hooks, such as a checkpoint's, packed what was saved."""


def tensors_saved_by(
    nodes: Iterable[Reached], creators: NodeCreators[_Creator]
) -> Iterator[tuple[torch.Tensor, Saver]]:
    """The tensors that nodes keep, and which node keeps them, in the order of the forward."""
    made = sorted((reached.node for reached in nodes), key=node_number)
    for node in made:
        creator = creators.of(node)
        # Reading what hooks have packed may run a part of the model again.
        if creator is None or creator.hooked:
            continue
        saver = Saver(node=node_name(node), path=creator.path)
        for _, tensor in saved_tensors(node):
            yield tensor, saver


_ADD = torch.ops.aten.add.Tensor


class _Holders(NamedTuple):
    """The reference counts of a tensor and its storage while a kernel is dispatched."""

    tensor: int
    storage: int


class GradientSums:
    """Finds sums of gradients that a plain run would compute in place."""

    def __init__(self) -> None:
        self._lone = _holders_of_lone_sum()

    def in_place(self, event: OpEvent) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The old and the new sum, if a plain run would have added in place."""
        if event.function is not _ADD or event.chain[-2:-1] != (BACKWARD_CODE,):
            return None
        old, new = event.args[0], event.output
        if old.layout is not torch.strided or new.layout is not torch.strided:
            return None
        return (old, new) if _is_dense(old) and _holders_of(old) == self._lone else None


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a block of memory, each once."""
    extent = extent_of(tensor)
    if extent is None:
        return False
    return extent.last + 1 - extent.first == tensor.numel() * extent.item


def _holders_of(tensor: torch.Tensor) -> _Holders:
    return _Holders(*reference_counts(tensor))


@functools.cache
def _holders_of_lone_sum() -> _Holders:
    """The reference counts, in this version of torch, of a sum that only autograd holds."""
    counting = _Counting()
    with torch.inference_mode(False), torch.enable_grad(), counting:
        x = torch.zeros(2, requires_grad=True)
        y = x * 2
        torch.autograd.backward((y * 3 + y.relu()).sum())
    return counting.seen


class _Counting(LookingMode):  # type: ignore[no-untyped-call]
    """Reads the reference counts where a backward adds."""

    seen: _Holders = _Holders(0, 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        if func is _ADD and running_node() is not None:
            self.seen = _holders_of(args[0])
        return func(*args, **(kwargs or {}))


_MAKES_FROM_DATA = frozenset({torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default})
"""What `torch.tensor([1, 2])` calls: its argument was created right before, unseen."""


class MemoryRecorder(CallRecorder):
    """Logs the memory that each kernel takes, and its module."""

    def __init__(
        self, modules: Sequence[tuple[str, nn.Module]], fake: Replace | None = None
    ) -> None:
        """`fake` gives the fake of a tensor, if kernels see fakes."""
        super().__init__(modules, "some memory was not counted")
        self._fake = fake
        self._model_modules = modules
        self._slots: dict[int, tuple[str, str]] = {}
        self._mode = KernelMode(self)
        self._creators: NodeCreators[_Creator] = NodeCreators()
        self._sums = GradientSums()
        self.has_sparse = False
        """Whether a kernel returned a tensor that is not strided."""
        self.log = StorageLog()

    @uninterruptible
    def watching(self, phase: StepPhase) -> Iterator[None]:
        """Log a part of the step."""
        if phase == "forward":
            self._hold_model()
        self.log.begin(phase)
        with observe_calls(self), mode_on(self._mode):
            yield
        self.log.end()

    def begin(self, module: nn.Module, args: Args, kwargs: Kwargs) -> RecordedCall | None:
        """The inputs of the outermost call existed before the step."""
        if self.current is None:
            self._hold_inputs(tensor for _, tensor in tensors_of_call(args, kwargs))
        return super().begin(module, args, kwargs)

    def before_write(self, written: tuple[torch.Tensor, ...]) -> None:
        """Overwriting takes no memory."""

    def failed(self, event: OpEvent, error: BaseException) -> None:
        """A kernel that raised returned nothing."""

    def seen(self, event: OpEvent) -> Any:
        """Log the memory that a kernel took."""
        try:
            path = None if event.call is None else event.call.path
            if self._creators.has_new:
                self._creators.created(_Creator(path, has_saved_tensor_hooks()))
            self._take(event, path)
        except Exception as problem:  # noqa: BLE001 - no error of ours may stop the user's step
            self.missed(problem)
        return event.output

    def retain(self, nodes: Iterable[Reached]) -> None:
        """Everything that exists when the backward begins counts as kept for it."""
        self.log.retain("activation")
        for tensor, saver in tensors_saved_by(nodes, self._creators):
            self.log.saved(tensor, saver)

    def _take(self, event: OpEvent, path: str | None) -> None:
        log = self.log
        if event.function not in _MAKES_FROM_DATA:
            self._hold_inputs(iter_tensors((event.args, dict(event.kwargs))))
        log.place = KernelPlace(path, kernel_name(event.function))
        in_place = self._sums.in_place(event)
        if in_place is not None:
            log.replace(*in_place)
        for tensor in (*iter_tensors(event.output), *event.written):
            self.has_sparse = self.has_sparse or tensor.layout is not torch.strided
            log.take(tensor)

    def _hold_inputs(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            self._hold(tensor, "input")

    def slot_of(self, tensor: torch.Tensor) -> tuple[str | None, str]:
        """The path of the module that holds a parameter, and its dotted name."""
        return self._slots.get(id(tensor), (None, ""))

    def _hold_model(self) -> None:
        for path, module in self._model_modules:
            self._hold_table(path, module._parameters, "parameter")
            self._hold_table(path, module._buffers, "buffer")

    def _hold_table(
        self, path: str, table: Mapping[str, torch.Tensor | None], kind: BlockKind
    ) -> None:
        for name, tensor in table.items():
            if tensor is not None:
                slot = self._slots.setdefault(id(tensor), (path, join_path(path, name)))
                self._hold(tensor, kind, *slot)

    def _hold(
        self, tensor: torch.Tensor, kind: BlockKind, path: str | None = None, name: str = ""
    ) -> None:
        self.log.hold(tensor, kind, path, name)
        # Kernels see some real tensors: those of scripts, and those from outside the model.
        if self._fake is not None and not isinstance(tensor, FakeTensor):
            self.log.stand_in(self._fake(tensor), tensor)


def kernel_name(function: Any) -> str:
    """torch's name of a kernel: "addmm"; with its library if that is not aten: "mine::nms"."""
    schema = getattr(function, "_schema", None)
    name = str(function) if schema is None else str(schema.name)
    return name.removeprefix("aten::")


K = TypeVar("K")


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with their own storage that a tensor consists of; usually itself.

    A sparse tensor consists of its indices and values, a wrapper of its inner tensors. A tensor
    whose values are outside of torch, as in oneDNN, has none.
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
    """A storage, not kept alive, and what is known about it."""

    __slots__ = ("key", "known")
    key: int
    known: K


class StorageMap(Generic[K]):
    """What is known about storages; calls `gone` with it when a storage is freed."""

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
        """The storages that still exist, with what is known about them."""
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


class KernelPlace(NamedTuple):
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
    place: KernelPlace
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
        self.place = KernelPlace()
        """The place of the running kernel, or of the last one."""

    def begin(self, phase: StepPhase) -> None:
        """Begin a part of the step."""
        self._phase = phase
        self.place = KernelPlace()
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
                self._enter(storage, part, kind, None, KernelPlace(path), name)

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
            # State of earlier steps is first seen as the argument of a kernel.
            if draft.phase is not None or draft.kind == "input":
                draft.kind, draft.name = kind, name
                draft.place = KernelPlace(path, draft.place.op)

    def saved(self, tensor: torch.Tensor, saver: Saver) -> None:
        """Log that an autograd node saved a tensor for the backward."""
        for draft in self._drafts_of(tensor):
            if draft.kind not in _FIXED:
                draft.saved_by[saver] = None

    def retain(self, kind: BlockKind) -> None:
        """Log that what the forward created and still exists is not temporary."""
        for _, draft in self._storages.pairs():
            if draft.phase in _MADE_ON_THE_WAY:
                draft.kind = kind

    def end(self) -> None:
        """End a part of the step; what is freed after the last part does not count."""
        for storage, draft in self._storages.pairs():
            # A storage can be resized without a kernel.
            if storage.nbytes() != draft.bytes:
                self._resize(storage, draft)
        self._end = len(self._changes)

    def close(self) -> None:
        self._storages.clear()

    def read(
        self,
    ) -> tuple[tuple[MemoryBlock, ...], tuple[MemoryChange, ...], tuple[StepPart, ...]]:
        """The blocks and their changes; optimizer state counts as allocated before the step."""
        lasting = {draft.id for draft in self._drafts if draft.kind == "optimizer"}
        for draft in self._drafts:
            if draft.id in lasting:
                draft.phase, draft.place = None, KernelPlace(draft.place.path)
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
        place: KernelPlace,
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
