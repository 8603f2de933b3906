"""The result of `memory` for a snapshot file: what a GPU's allocator held, by owner."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from pathlib import PurePath
from typing import Any

from torchglass.analyse.memory_snapshot import (
    Event,
    Owner,
    OwnerMemory,
    PoolMemory,
    Snapshot,
    SnapshotPeak,
    owners_of,
    peak_of,
    pools_of,
)
from torchglass.errors import LookupFailedError
from torchglass.results.report import ListReport, fraction, largest
from torchglass.tables.text import (
    Column,
    Fact,
    format_bytes,
    format_share,
    harmless,
    number_column,
    table_text,
)

_LARGEST_SMALL = 2**20
"""The allocator serves larger requests from its large pool."""


class MemorySnapshot(ListReport[OwnerMemory]):
    """What torch's CUDA allocator held on one device, by line of code; print it or export it.

    The report is about the device with the most reserved memory; `on` gives it for another.
    """

    def __init__(self, name: str, snapshot: Snapshot, device: str | None = None) -> None:
        self.name = name
        self.snapshot = snapshot
        reserved: dict[int, int] = {}
        for one in snapshot.segments:
            reserved[one.device] = reserved.get(one.device, 0) + one.size
        self.devices = [f"cuda:{one}" for one in sorted(reserved, key=lambda one: -reserved[one])]
        """The devices with reserved memory, the one with the most first."""
        self.device = device or next(iter(self.devices), "cuda:0")
        self._index = int(self.device.removeprefix("cuda:"))
        self.segments = [one for one in snapshot.segments if one.device == self._index]
        self.pools: tuple[PoolMemory, ...] = pools_of(self.segments)
        """The pools of the allocator, the one with the most memory first."""
        blocks = (block for one in self.segments for block in one.blocks if block.is_active)
        self.entries = owners_of((block.owner, block.size) for block in blocks)

    def on(self, device: str) -> MemorySnapshot:
        """The same snapshot for another device."""
        if device not in self.devices:
            raise LookupFailedError(
                f"the snapshot has no memory on {device!r}, only on {', '.join(self.devices)}"
            )
        return MemorySnapshot(self.name, self.snapshot, device)

    @property
    def title(self) -> str:
        """The name of the file."""
        return self.name

    @property
    def reserved_bytes(self) -> int:
        """What the allocator had taken from the device."""
        return self._sum("reserved_bytes")

    @property
    def allocated_bytes(self) -> int:
        """What tensors used, as in `torch.cuda.memory_allocated()`."""
        return self._sum("allocated_bytes")

    @property
    def pending_bytes(self) -> int:
        """What was freed while another stream may still have used it."""
        return self._sum("pending_bytes")

    @property
    def split_bytes(self) -> int:
        """Lost to fragmentation: free, in segments that also contain used blocks."""
        return self._sum("split_bytes")

    @property
    def unused_bytes(self) -> int:
        """What `torch.cuda.empty_cache()` would have returned to the device."""
        return self._sum("unused_bytes")

    @cached_property
    def peak(self) -> SnapshotPeak | None:
        """The peak of the recorded history, and what was alive; None without a history."""
        return peak_of(self.segments, self._history)

    @property
    def failed_bytes(self) -> list[int]:
        """The sizes of the allocations that failed, the oldest first."""
        return [one.size for one in self._history if one.action == "oom"]

    @property
    def answer(self) -> str:
        """One sentence: how much is reserved, used and lost, and the largest owner."""
        if not self.segments:
            return "The allocator had reserved no memory when this snapshot was taken."
        lost = format_share(self.split_bytes, self.reserved_bytes)
        text = (
            f"{self.device} has {format_bytes(self.reserved_bytes)} reserved and "
            f"{format_bytes(self.allocated_bytes)} of it allocated; "
            f"{format_bytes(self.split_bytes)} ({lost or '0%'}) is lost to fragmentation"
        )
        if not self.entries:
            return f"{text}."
        first = self.entries[0]
        size = f"{format_bytes(first.bytes)}, {format_share(first.bytes, self._active)}"
        return f"{text}; the largest owner is {_name(first.owner)} ({size})."

    def table(self, *, width: int | None = None) -> str:
        """The answer, the owners, then the pools."""
        pools = self.pool_table(width=width) if self.pools else ""
        return "\n".join(filter(None, [super().table(width=width), pools]))

    def pool_table(self, *, width: int | None = None) -> str:
        """The pools: a request gets a free block of its own pool and stream only."""
        columns: list[Column[PoolMemory]] = [
            Column("pool", "Pool", lambda one: harmless(one.pool), right=False),
            Column("stream", "Stream", lambda one: str(one.stream), spare=4),
            Column("segments", "Segments", lambda one: f"{one.segments:,}", spare=5),
            _size("Reserved", "reserved_bytes"),
            _size("Allocated", "allocated_bytes"),
            _size("Pending", "pending_bytes", spare=3),
            _size("Fragments", "split_bytes", spare=1),
            _size("Unused segments", "unused_bytes", spare=2),
            _size("Largest free block", "largest_free_bytes"),
        ]
        return table_text(columns, self.pools, room=width)

    def peak_table(self, count: int | None = 20, *, width: int | None = None) -> str:
        """What was alive at the peak of the history; a `count` of None shows all."""
        if self.peak is None:
            return "No peak: the snapshot has no history that leads to it."
        columns = _owner_columns("At the peak", self.peak.bytes)
        return largest(columns, self.peak.owners, count, width)

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers."""
        peak = self.peak
        return {
            **super().to_dict(),
            "device": self.device,
            "devices": self.devices,
            "reserved_bytes": self.reserved_bytes,
            "allocated_bytes": self.allocated_bytes,
            "pending_bytes": self.pending_bytes,
            "split_bytes": self.split_bytes,
            "unused_bytes": self.unused_bytes,
            "pools": [dataclasses.asdict(one) for one in self.pools],
            "failed_bytes": self.failed_bytes,
            "peak_bytes": None if peak is None else peak.bytes,
            "peak_owners": [
                {**one.owner._asdict(), "blocks": one.blocks, "bytes": one.bytes}
                for one in (peak.owners if peak else ())
            ],
        }

    def _columns(self) -> Sequence[Column[OwnerMemory]]:
        return _owner_columns("Allocated by", self._active)

    def _facts(self) -> list[Fact]:
        free = self.split_bytes + self.unused_bytes
        facts = [
            Fact(
                "Free",
                f"{format_bytes(free)} of the reserved memory: {format_bytes(self.split_bytes)} "
                f"between used blocks, {format_bytes(self.unused_bytes)} in unused segments, "
                "which empty_cache() returns",
            )
        ]
        if self.peak is not None:
            facts.append(Fact("Peak", self._peak_fact(self.peak)))
        failed = [one for one in self._history if one.action == "oom"]
        if failed:
            facts.append(Fact("Failed", self._failed_fact(failed[-1], free)))
        return facts

    def _failed_fact(self, request: Event, free: int) -> str:
        pool = "large" if request.size > _LARGEST_SMALL else "small"
        block = max((one.largest_free_bytes for one in self.pools if one.pool == pool), default=0)
        return (
            f"{format_bytes(request.size)} with {format_bytes(request.device_free)} left on the "
            f"device; at the snapshot {format_bytes(free)} of the reserved memory is free, and the "
            f"largest free block of the {pool} pool has {format_bytes(block)}"
        )

    def _peak_fact(self, peak: SnapshotPeak) -> str:
        first = peak.owners[0] if peak.owners else None
        most = "" if first is None else f", most by {_name(first.owner)}"
        when = "before the first" if peak.event < 0 else f"after action {peak.event + 1:,}"
        size = f"{format_bytes(peak.bytes)} requested"
        return f"{size}, {when} of {peak.events:,} recorded{most}"

    def _notes(self) -> list[str]:
        notes = []
        if not self._history:
            notes.append(
                "no peak: call torch.cuda.memory._record_memory_history() before the training"
            )
        elif self.peak is None:
            notes.append("no peak: the history does not lead to the blocks of the snapshot")
        others = [one for one in self.devices if one != self.device]
        if others:
            notes.append(f"also on {', '.join(others)}: .on({others[0]!r})")
        return notes

    @property
    def _history(self) -> Sequence[Event]:
        history = self.snapshot.history
        return history[self._index] if self._index < len(history) else ()

    @property
    def _active(self) -> int:
        return self.allocated_bytes + self.pending_bytes

    def _sum(self, field: str) -> int:
        return sum(getattr(one, field) for one in self.pools)


def _owner_columns(heading: str, whole: int) -> list[Column[OwnerMemory]]:
    return [
        Column("owner", heading, lambda one: harmless(_name(one.owner)), right=False),
        Column("module", value=lambda one: one.owner.module),
        Column("file", value=lambda one: one.owner.file),
        Column("line", value=lambda one: one.owner.line),
        Column("function", value=lambda one: one.owner.function),
        Column("blocks", "Blocks", lambda one: f"{one.blocks:,}", value=lambda one: one.blocks),
        number_column("bytes", "Bytes", lambda one: one.bytes, format_bytes, csv="bytes"),
        Column(
            "share",
            "Share",
            lambda one: format_share(one.bytes, whole),
            value=lambda one: fraction(one.bytes, whole),
        ),
    ]


def _name(owner: Owner) -> str:
    """The module and the line of an owner; of its file the last two parts."""
    if not owner.file:
        return owner.function
    file = "/".join(PurePath(owner.file.replace("\\", "/")).parts[-2:])
    module = "" if owner.module is None else f"{owner.module or '(model)'} · "
    return f"{module}{file}:{owner.line} {owner.function}"


def _size(heading: str, field: str, spare: int = 0) -> Column[PoolMemory]:
    def value(one: PoolMemory) -> int:
        size: int = getattr(one, field)
        return size

    return number_column(field, heading, value, format_bytes, spare=spare)
