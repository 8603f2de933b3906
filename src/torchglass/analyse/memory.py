"""Where the memory of a step is: who allocates it, who keeps it, what the peak consists of.

What a process takes from a GPU is more than its tensors. `CachingAllocator` is a model of torch's:
it rounds every block up to 512 bytes, takes memory from the driver in segments of 2 MB (for blocks
up to 1 MB), 20 MB (up to 10 MB) or multiples of 2 MB, gives a block the smallest free piece that is
large enough, splits it, and joins free neighbors. Segments go back to the driver only when it runs
out of memory. It follows torch's default settings (PYTORCH_CUDA_ALLOC_CONF unset). Streams, library
workspaces and the CUDA context are not in it.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, TypeVar

from torchglass.records.measures import (
    BlockId,
    BlockKind,
    Footprint,
    MemoryBlock,
    MemoryChange,
    StepPhase,
)
from torchglass.records.model import Model, paths_above


class Moment(NamedTuple):
    """A change in the memory of a step, and the total right after it."""

    time_ns: int
    live_bytes: int
    bytes: int
    """Above 0 for an allocation, below 0 for a release."""
    phase: StepPhase
    op: str
    path: str | None
    block: BlockId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """The memory of a module, by what it is used for."""

    parameter_bytes: int = 0
    buffer_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    activation_bytes: int = 0
    """Activations that it created and that are kept for the backward."""
    saved_bytes: int = 0
    """Activations and inputs that it keeps for the backward, no matter which module created them;
    what several modules keep counts for the first."""
    temporary_peak_bytes: int = 0
    """The largest total at one time of what is neither kept nor a gradient."""
    peak_bytes: int = 0
    """Its share of the peak of the step, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleMemory:
    """The memory of one module: alone, and with all modules below it."""

    path: str | None
    """None for what no module created: the loss, and the temporaries of an optimizer."""
    own: MemoryUse = MemoryUse()
    total: MemoryUse = MemoryUse()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpMemory:
    """The memory of all calls of one kernel in one module and one phase."""

    op: str
    path: str | None
    phase: StepPhase
    blocks: int
    taken_bytes: int
    """All that it allocated, including what was freed in between."""
    activation_bytes: int
    gradient_bytes: int
    most_bytes: int
    """The most that it had at one time."""
    peak_bytes: int
    """Its share of the peak of the step, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Blocks of one kind and one creator that were alive at the peak."""

    path: str | None
    kind: BlockKind
    op: str
    blocks: int
    bytes: int


Key = TypeVar("Key", bound=Hashable)
_Owners = Callable[[str | None], Iterable[str | None]]

NOTHING = MemoryUse()
_FIELDS: Mapping[BlockKind, str] = {
    "parameter": "parameter_bytes",
    "buffer": "buffer_bytes",
    "gradient": "gradient_bytes",
    "optimizer": "optimizer_bytes",
    "activation": "activation_bytes",
}


def devices_of(footprint: Footprint) -> list[str]:
    """The devices that a step uses, the one with the most memory first."""
    sizes: Counter[str] = Counter()
    for block in footprint.blocks:
        sizes[block.spec.device] += block.bytes
    return [device for device, _ in sizes.most_common()] or ["cpu"]


class MemoryReport:
    """The memory of a step on one device, by module and op."""

    def __init__(self, footprint: Footprint, model: Model, device: str) -> None:
        self.footprint = footprint
        self.model = model
        self.device = device
        self._blocks = [block for block in footprint.blocks if block.spec.device == device]
        here = {block.id for block in self._blocks}
        self._changes = [change for change in footprint.changes if change.block in here]
        self.before_bytes = sum(block.bytes for block in self._blocks if block.phase is None)
        """What is allocated before the step: parameters, buffers, inputs, the optimizer's state."""
        self.timeline: tuple[Moment, ...] = tuple(_moments(self._changes, self.before_bytes))
        """Every change of the step, with the total right after it."""
        top = max((moment.live_bytes for moment in self.timeline), default=0)
        self.peak: Moment | None = next(
            (moment for moment in self.timeline if moment.live_bytes == top > self.before_bytes),
            None,
        )
        """The moment of the peak; None for a step that allocates nothing."""
        self._at_peak = self._live_at_peak()
        own = self._per_module(lambda path: (path,))
        # What no module created belongs to the whole model.
        total = self._per_module(lambda path: {path or "", *paths_above(path or ""), ""})
        known = (module.path for module in model.modules if module.alias_of is None)
        ran = (block.path for block in self._blocks if block.path is not None)
        self.modules: Mapping[str, ModuleMemory] = {
            path: ModuleMemory(
                path=path, own=own.get(path, NOTHING), total=total.get(path, NOTHING)
            )
            for path in dict.fromkeys(("", *known, *ran))
        }
        """The memory of each module, by path; those below "" add up to the whole step."""
        loose = own.get(None, NOTHING)
        self.unattributed = ModuleMemory(path=None, own=loose, total=loose)
        """What no module created: the inputs, the loss, the temporaries of an optimizer."""

    @property
    def root(self) -> ModuleMemory:
        """The memory of the whole step."""
        return self.modules[""]

    @property
    def peak_bytes(self) -> int:
        """The largest total at one time, including what was allocated before the step."""
        return self.before_bytes if self.peak is None else self.peak.live_bytes

    @cached_property
    def ops(self) -> tuple[OpMemory, ...]:
        """The memory of the kernels, those with the largest share of the peak first."""
        groups: dict[_OpKey, list[MemoryBlock]] = defaultdict(list)
        for block in self._blocks:
            if block.phase is not None and block.bytes:
                groups[_op_key(block)].append(block)
        at_peak: Counter[_OpKey] = Counter()
        for block in self._at_peak:
            at_peak[_op_key(block)] += block.bytes
        most = self._most(lambda block: (_op_key(block),))
        ops = (
            OpMemory(
                op=op,
                path=path,
                phase=phase or "forward",
                blocks=len(group),
                taken_bytes=_bytes(group),
                activation_bytes=_bytes(b for b in group if b.kind == "activation"),
                gradient_bytes=_bytes(b for b in group if b.kind == "gradient"),
                most_bytes=most[path, op, phase],
                peak_bytes=at_peak[path, op, phase],
            )
            for (path, op, phase), group in groups.items()
        )
        return tuple(sorted(ops, key=lambda op: (-op.peak_bytes, -op.taken_bytes)))

    @cached_property
    def peak_holders(self) -> tuple[Holder, ...]:
        """What the peak consists of, the largest first; all of them add up to the peak."""
        groups: dict[tuple[str | None, BlockKind, str], list[MemoryBlock]] = defaultdict(list)
        for block in self._at_peak:
            groups[block.path, block.kind, block.op].append(block)
        holders = (
            Holder(path=path, kind=kind, op=op, blocks=len(group), bytes=_bytes(group))
            for (path, kind, op), group in groups.items()
        )
        return tuple(sorted(holders, key=lambda holder: -holder.bytes))

    @cached_property
    def sizes(self) -> Mapping[BlockKind, int]:
        """The size of all blocks of each kind; of temporary ones the largest total at one time."""
        sizes: Counter[BlockKind] = Counter()
        for block in self._blocks:
            if block.kind != "temporary":
                sizes[block.kind] += block.bytes
        sizes["temporary"] = self._most(lambda block: (block.kind,))["temporary"]
        return dict(sizes)

    @property
    def allocator_peak_bytes(self) -> int | None:
        """The peak that the allocator reports; None for a prediction.

        It includes scratch memory that kernels allocate and free inside, which is in no tensor.
        """
        for allocation in self.footprint.allocations:
            if allocation.device == self.device:
                return self.before_bytes + allocation.peak_bytes
        return None

    def _live_at_peak(self) -> list[MemoryBlock]:
        live = {block.id for block in self._blocks if block.phase is None}
        if self.peak is not None:
            for moment in self.timeline:
                (live.add if moment.bytes > 0 else live.discard)(moment.block)
                if moment is self.peak:
                    break
        return [block for block in self._blocks if block.id in live]

    def _per_module(self, owners: _Owners) -> dict[str | None, MemoryUse]:
        sums: dict[str, Counter[str | None]] = defaultdict(Counter)
        for block in self._blocks:
            field = _FIELDS.get(block.kind)
            for path in owners(block.path):
                if field is not None:
                    sums[field][path] += block.bytes
            if block.saved_by:
                for path in owners(block.saved_by[0].path):
                    sums["saved_bytes"][path] += block.bytes
        for block in self._at_peak:
            for path in owners(block.path):
                sums["peak_bytes"][path] += block.bytes
        sums["temporary_peak_bytes"] = self._most(
            lambda block: owners(block.path) if block.kind == "temporary" else ()
        )
        paths = {path for field in sums.values() for path in field}
        return {
            path: MemoryUse(**{field: of_paths[path] for field, of_paths in sums.items()})
            for path in paths
        }

    def _most(self, keys: Callable[[MemoryBlock], Iterable[Key]]) -> Counter[Key]:
        """The most bytes that the blocks of each key had at one time."""
        now: Counter[Key] = Counter()
        most: Counter[Key] = Counter()
        for change in self._changes:
            for key in keys(self.footprint.blocks[change.block]):
                now[key] += change.bytes
                if now[key] > most[key]:
                    most[key] = now[key]
        return most


_OpKey = tuple[str | None, str, StepPhase | None]


def _op_key(block: MemoryBlock) -> _OpKey:
    return block.path, block.op, block.phase


def _bytes(blocks: Iterable[MemoryBlock]) -> int:
    return sum(block.bytes for block in blocks)


def _moments(changes: Sequence[MemoryChange], before: int) -> Iterator[Moment]:
    live = accumulate((change.bytes for change in changes), initial=before)
    next(live)
    for change, now in zip(changes, live, strict=True):
        place = change.phase, change.op, change.path, change.block
        yield Moment(change.time_ns, now, change.bytes, *place)


_ROUNDING = 512
_SMALL = 1 << 20
_SMALL_SEGMENT = 2 << 20
_MEDIUM = 10 << 20
_MEDIUM_SEGMENT = 20 << 20
_LARGE_ROUNDING = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """What the allocator takes for a step."""

    allocated_bytes: int
    """The most in blocks at one time, each rounded up."""
    reserved_bytes: int
    """The most taken from the driver at one time."""
    is_out_of_memory: bool = False
    """Whether a limit was exceeded even after free segments were given back."""


@dataclass(slots=True, eq=False)
class _Piece:
    """A part of a segment, free or in use."""

    size: int
    segment: int
    is_small: bool
    is_free: bool = False
    before: _Piece | None = None
    after: _Piece | None = None


@dataclass(slots=True)
class CachingAllocator:
    """Blocks are allocated and freed; `reserved` says what they cost."""

    limit: int | None = None
    _free: dict[bool, list[tuple[int, int, _Piece]]] = field(
        default_factory=lambda: {True: [], False: []}
    )
    _sizes: dict[int, int] = field(default_factory=dict)
    _number: int = 0
    _used: int = 0
    _most_used: int = 0
    _reserved: int = 0
    _most_reserved: int = 0
    _failed: bool = False

    def allocate(self, size: int) -> _Piece:
        """A piece for a block of this size."""
        rounded = max(_ROUNDING, -(-size // _ROUNDING) * _ROUNDING)
        is_small = rounded <= _SMALL
        piece = self._find(rounded, is_small) or self._segment(rounded, is_small)
        rest = piece.size - rounded
        if rest >= _ROUNDING if is_small else rest > _SMALL:
            other = _Piece(rest, piece.segment, is_small, before=piece, after=piece.after)
            if piece.after is not None:
                piece.after.before = other
            piece.size, piece.after = rounded, other
            self._release(other)
        piece.is_free = False
        self._used += piece.size
        self._most_used = max(self._most_used, self._used)
        return piece

    def free(self, piece: _Piece) -> None:
        """Take a piece back, joined with free neighbors."""
        self._used -= piece.size
        before, after = piece.before, piece.after
        if before is not None and before.is_free:
            self._take(before)
            before.size, before.after = before.size + piece.size, after
            if after is not None:
                after.before = before
            piece = before
        if after is not None and after.is_free:
            self._take(after)
            piece.size, piece.after = piece.size + after.size, after.after
            if after.after is not None:
                after.after.before = piece
        self._release(piece)

    @property
    def reserved(self) -> Reserved:
        """The most so far."""
        return Reserved(
            allocated_bytes=self._most_used,
            reserved_bytes=self._most_reserved,
            is_out_of_memory=self._failed,
        )

    def _find(self, size: int, is_small: bool) -> _Piece | None:
        """The smallest free piece that is large enough."""
        free = self._free[is_small]
        index = bisect.bisect_left(free, size, key=lambda one: one[0])
        return free.pop(index)[2] if index < len(free) else None

    def _segment(self, size: int, is_small: bool) -> _Piece:
        taken = -(-size // _LARGE_ROUNDING) * _LARGE_ROUNDING
        taken = _SMALL_SEGMENT if is_small else _MEDIUM_SEGMENT if size < _MEDIUM else taken
        if self.limit is not None and self._reserved + taken > self.limit:
            self._give_back()
            self._failed = self._failed or self._reserved + taken > self.limit
        self._number += 1
        self._sizes[self._number] = taken
        self._reserved += taken
        self._most_reserved = max(self._most_reserved, self._reserved)
        return _Piece(taken, self._number, is_small)

    def _give_back(self) -> None:
        """Return the segments that are free as a whole to the driver."""
        for is_small, free in self._free.items():
            whole = [one for one in free if one[2].size == self._sizes[one[2].segment]]
            self._reserved -= sum(one[0] for one in whole)
            gone = {one[2].segment for one in whole}
            self._free[is_small] = [one for one in free if one[2].segment not in gone]

    def _release(self, piece: _Piece) -> None:
        piece.is_free = True
        self._number += 1
        bisect.insort(
            self._free[piece.is_small], (piece.size, self._number, piece), key=lambda one: one[:2]
        )

    def _take(self, piece: _Piece) -> None:
        free = self._free[piece.is_small]
        index = bisect.bisect_left(free, piece.size, key=lambda one: one[0])
        while free[index][2] is not piece:
            index += 1
        del free[index]


def reserved_for(footprint: Footprint, device: str, limit: int | None = None) -> Reserved:
    """What the allocator reserves for a step on one device; `limit` is the memory of the device."""
    allocator = CachingAllocator(limit=limit)
    pieces = {
        block.id: allocator.allocate(block.bytes)
        for block in footprint.blocks
        if block.phase is None and block.bytes and block.spec.device == device
    }
    here = {block.id for block in footprint.blocks if block.spec.device == device}
    for change in footprint.changes:
        if change.block not in here:
            continue
        if change.bytes > 0:
            pieces[change.block] = allocator.allocate(change.bytes)
        elif (piece := pieces.pop(change.block, None)) is not None:
            allocator.free(piece)
    return allocator.reserved
