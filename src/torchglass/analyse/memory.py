"""Where the memory of a step is: who allocates it, who keeps it, what the peak consists of."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeVar

from torchglass.analyse.module_rows import ModuleRow, Sort, check_order, ranked, tree
from torchglass.records.measures import (
    BlockId,
    BlockKind,
    Footprint,
    MemoryBlock,
    MemoryChange,
    StepPhase,
)
from torchglass.records.model import Model


class Moment(NamedTuple):
    """A change in the memory of a step, and how much there is of it right after."""

    time_ns: int
    live_bytes: int
    bytes: int
    """More than 0 where it was taken, less where it was freed."""
    phase: StepPhase
    op: str
    path: str | None
    block: BlockId


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What belongs to a module."""

    parameter_bytes: int = 0
    buffer_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    activation_bytes: int = 0
    """Of activations that it made and somebody keeps for the backward."""
    saved_bytes: int = 0
    """Of activations and inputs that it keeps for the backward, whoever made them; what several
    keep is the first one's."""
    temporary_peak_bytes: int = 0
    """The most that it had at one time of what was neither kept nor a gradient."""
    peak_bytes: int = 0
    """Its part of the peak of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleMemory:
    """What one module takes: itself, and with all modules below it."""

    path: str | None
    """None for what no module made: the loss, and the temporaries of an optimizer."""
    own: Held
    total: Held


@dataclass(frozen=True, slots=True, kw_only=True)
class OpMemory:
    """What all calls of one kernel take in one module and one phase."""

    op: str
    path: str | None
    phase: StepPhase
    blocks: int
    taken_bytes: int
    """All that it took, also what was freed in between."""
    activation_bytes: int
    gradient_bytes: int
    most_bytes: int
    """The most that it had at one time."""
    peak_bytes: int
    """Its part of the peak of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Blocks of one kind and one maker that were there at the peak."""

    path: str | None
    kind: BlockKind
    op: str
    blocks: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """What a step takes on one device."""

    device: str
    modules: Mapping[str, ModuleMemory]
    """All that there are, by path; those below "" add up to the whole step."""
    unattributed: ModuleMemory
    ops: tuple[OpMemory, ...]
    """Those that hold most of the peak first, then those that took most."""
    timeline: tuple[Moment, ...]
    sizes: Mapping[BlockKind, int]
    """All blocks of each kind; of those that are temporary, the most at one time."""
    before_bytes: int
    """What was there before the step."""
    peak: Moment | None
    """The moment of the peak; None for a step that took nothing."""
    peak_holders: tuple[Holder, ...]
    """Who holds what at the peak, most first."""
    allocator_peak_bytes: int | None
    """The peak by the allocator itself, which knows what kernels take inside of themselves."""

    @property
    def root(self) -> ModuleMemory:
        """The whole step."""
        return self.modules[""]

    @property
    def peak_bytes(self) -> int:
        """The most that there was at one time."""
        return self.before_bytes if self.peak is None else self.peak.live_bytes


Key = TypeVar("Key", bound=Hashable)
_Owners = Callable[[str | None], Iterable[str | None]]

_NOTHING = Held()
_FIELDS: Mapping[BlockKind, str] = {
    "parameter": "parameter_bytes",
    "buffer": "buffer_bytes",
    "gradient": "gradient_bytes",
    "optimizer": "optimizer_bytes",
    "activation": "activation_bytes",
}


def devices_of(footprint: Footprint) -> list[str]:
    """The devices that a step takes memory on, that with most of it first."""
    sizes: Counter[str] = Counter()
    for block in footprint.blocks:
        sizes[block.spec.device] += block.bytes
    return [device for device, _ in sizes.most_common()] or ["cpu"]


def memory_report(footprint: Footprint, model: Model, device: str) -> MemoryReport:
    """What a step takes on a device, and who takes it."""
    return _Reading(footprint, model, device).report()


class _Reading:
    """The blocks and changes of one device."""

    def __init__(self, footprint: Footprint, model: Model, device: str) -> None:
        self._footprint = footprint
        self._device = device
        self._every = footprint.blocks
        self._blocks = [block for block in footprint.blocks if block.spec.device == device]
        here = {block.id for block in self._blocks}
        self._changes = [change for change in footprint.changes if change.block in here]
        self._before = sum(block.bytes for block in self._blocks if block.phase is None)
        self._timeline = tuple(_moments(self._changes, self._before))
        top = max((moment.live_bytes for moment in self._timeline), default=0)
        self._peak = next(
            (moment for moment in self._timeline if moment.live_bytes == top > self._before), None
        )
        self._at_peak = self._live_at_peak()
        ran = (path for path in (block.path for block in self._blocks) if path is not None)
        known = (module.path for module in model.modules if module.alias_of is None)
        self._paths = list(dict.fromkeys(("", *known, *ran)))

    def report(self) -> MemoryReport:
        own, total = self._held(_itself), self._held(_itself_and_above)
        modules = {
            path: ModuleMemory(
                path=path, own=own.get(path, _NOTHING), total=total.get(path, _NOTHING)
            )
            for path in self._paths
        }
        loose = own.get(None, _NOTHING)
        return MemoryReport(
            device=self._device,
            modules=modules,
            unattributed=ModuleMemory(path=None, own=loose, total=loose),
            ops=self._ops(),
            timeline=self._timeline,
            sizes=self._sizes(),
            before_bytes=self._before,
            peak=self._peak,
            peak_holders=self._holders(),
            allocator_peak_bytes=self._allocator_peak(),
        )

    def _live_at_peak(self) -> list[MemoryBlock]:
        """The blocks that are there at the peak."""
        live = {block.id for block in self._blocks if block.phase is None}
        if self._peak is not None:
            for moment in self._timeline:
                (live.add if moment.bytes > 0 else live.discard)(moment.block)
                if moment is self._peak:
                    break
        return [block for block in self._blocks if block.id in live]

    def _held(self, owners: _Owners) -> dict[str | None, Held]:
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
            path: Held(**{field: of_paths[path] for field, of_paths in sums.items()})
            for path in paths
        }

    def _most(self, keys: Callable[[MemoryBlock], Iterable[Key]]) -> Counter[Key]:
        """The most bytes that the blocks of each key had at one time."""
        now: Counter[Key] = Counter()
        most: Counter[Key] = Counter()
        for change in self._changes:
            for key in keys(self._every[change.block]):
                now[key] += change.bytes
                if now[key] > most[key]:
                    most[key] = now[key]
        return most

    def _ops(self) -> tuple[OpMemory, ...]:
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
                op=key.op,
                path=key.path,
                phase=group[0].phase or "forward",
                blocks=len(group),
                taken_bytes=_bytes(group),
                activation_bytes=_bytes(b for b in group if b.kind == "activation"),
                gradient_bytes=_bytes(b for b in group if b.kind == "gradient"),
                most_bytes=most[key],
                peak_bytes=at_peak[key],
            )
            for key, group in groups.items()
        )
        return tuple(sorted(ops, key=lambda op: (-op.peak_bytes, -op.taken_bytes)))

    def _holders(self) -> tuple[Holder, ...]:
        groups: dict[tuple[str | None, BlockKind, str], list[MemoryBlock]] = defaultdict(list)
        for block in self._at_peak:
            groups[block.path, block.kind, block.op].append(block)
        holders = (
            Holder(path=path, kind=kind, op=op, blocks=len(group), bytes=_bytes(group))
            for (path, kind, op), group in groups.items()
        )
        return tuple(sorted(holders, key=lambda holder: -holder.bytes))

    def _sizes(self) -> dict[BlockKind, int]:
        sizes: Counter[BlockKind] = Counter()
        for block in self._blocks:
            if block.kind != "temporary":
                sizes[block.kind] += block.bytes
        sizes["temporary"] = self._most(_if_temporary)["temporary"]
        return dict(sizes)

    def _allocator_peak(self) -> int | None:
        for allocation in self._footprint.allocations:
            if allocation.device == self._device:
                return self._before + allocation.peak_bytes
        return None


def _itself(path: str | None) -> tuple[str | None]:
    return (path,)


def _itself_and_above(path: str | None) -> Iterator[str]:
    """What no module made is part of the whole."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


class _OpKey(NamedTuple):
    path: str | None
    op: str
    phase: StepPhase | None


def _op_key(block: MemoryBlock) -> _OpKey:
    return _OpKey(block.path, block.op, block.phase)


def _if_temporary(block: MemoryBlock) -> tuple[BlockKind, ...]:
    return (block.kind,) if block.kind == "temporary" else ()


def _bytes(blocks: Iterable[MemoryBlock]) -> int:
    return sum(block.bytes for block in blocks)


def _moments(changes: Sequence[MemoryChange], before: int) -> Iterator[Moment]:
    live = accumulate((change.bytes for change in changes), initial=before)
    next(live)
    for change, now in zip(changes, live, strict=True):
        yield Moment(
            change.time_ns,
            now,
            change.bytes,
            change.phase,
            change.op,
            change.path,
            change.block,
        )


def memory_rows(
    report: MemoryReport, model: Model, *, depth: int | None = None, sort: Sort | None = None
) -> list[ModuleRow[ModuleMemory]]:
    """A line for each module: as a tree, or with `sort="self"` in one list.

    There the one that holds most of the peak itself comes first; with `sort="total"` the one of the
    siblings that holds most with all below it.
    """
    check_order(sort, depth)
    every = (*report.modules.values(), report.unattributed)
    if sort == "self":
        shown = [one for one in every if one.own != _NOTHING]
        return ranked(shown, model, lambda one: one.own.peak_bytes, depth)
    shown = [one for one in every if one.path is not None or one.own != _NOTHING]
    return tree(shown, model, _total if sort == "total" else None, depth)


def _total(module: ModuleMemory) -> int:
    return module.total.peak_bytes
