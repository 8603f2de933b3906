"""The result of `memory`: how much memory a step of a model takes, and where."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from torchglass.analyse.memory import (
    NOTHING,
    Holder,
    MemoryReport,
    MemoryUse,
    ModuleMemory,
    Moment,
    OpMemory,
    devices_of,
)
from torchglass.analyse.sibling_order import MeasureSort
from torchglass.errors import LookupFailedError
from torchglass.records.json_data import to_json_data
from torchglass.records.measures import (
    AllocatorPeak,
    AllocatorPool,
    BlockKind,
    Footprint,
    MemoryBlock,
)
from torchglass.records.model import Model
from torchglass.records.trace import CallRecord
from torchglass.results.report import ModuleReport, RowsByPath, fraction, largest
from torchglass.tables.text import (
    NOT_RUN,
    SPARKS,
    Column,
    Fact,
    fact_lines,
    first_shape,
    format_bytes,
    format_share,
    harmless,
    note_lines,
    number_column,
    pad,
    plural,
    share_text,
    width,
)

_LEVELS = len(SPARKS)
_MOST_CELLS = 100
_LITTLE = 0.01
"""A smaller share of the peak is not named."""
_ALIKE = 0.001
"""Two peaks that differ by a smaller share than this count as equal."""
KIND_NAMES: Mapping[BlockKind, str] = {
    "parameter": "parameters",
    "buffer": "buffers",
    "input": "inputs",
    "optimizer": "optimizer state",
    "activation": "activations",
    "output": "outputs",
    "gradient": "gradients",
    "temporary": "temporaries",
}
_FIELDS = tuple(field.name for field in dataclasses.fields(MemoryUse))


class Memory(MemoryReport, ModuleReport[ModuleMemory]):
    """The memory that each module and op of a model takes; print it or export it.

    The report is about the device with most of the memory; `on` gives it for another.
    Measured storages and the prediction of `fake=True` agree to the byte.
    """

    _total_size, _self_size = "total.peak_bytes", "own.peak_bytes"

    def __init__(
        self,
        model: Model,
        calls: Sequence[CallRecord],
        footprint: Footprint,
        device: str | None = None,
    ) -> None:
        self.calls = calls
        self.devices: list[str] = devices_of(footprint)
        """The devices that the step uses, the one with the most memory first."""
        super().__init__(footprint, model, device or self.devices[0])
        self.rows = RowsByPath(self.modules)

    def on(self, device: str) -> Memory:
        """The same step on another device."""
        if device not in self.devices:
            raise LookupFailedError(
                f"the step used no memory on {device!r}, only on {', '.join(self.devices)}"
            )
        return Memory(self.model, self.calls, self.footprint, device)

    @property
    def report(self) -> MemoryReport:
        """The values without the formatting."""
        return self

    @property
    def parameters_bytes(self) -> int:
        """Size of the parameters, each shared one counted once."""
        return self.sizes.get("parameter", 0)

    @property
    def buffers_bytes(self) -> int:
        """Size of the buffers."""
        return self.sizes.get("buffer", 0)

    @property
    def gradients_bytes(self) -> int:
        """Size of the gradients of parameters and inputs."""
        return self.sizes.get("gradient", 0)

    @property
    def optimizer_bytes(self) -> int:
        """Size of the optimizer's state."""
        return self.sizes.get("optimizer", 0)

    @property
    def activations_bytes(self) -> int:
        """Size of what the forward made and is still alive when the backward begins."""
        return self.sizes.get("activation", 0)

    @property
    def temporary_peak_bytes(self) -> int:
        """The largest total of everything else at one time."""
        return self.sizes.get("temporary", 0)

    @property
    def allocator(self) -> AllocatorPeak | None:
        """The statistics of the device's caching allocator, by pool; None if it has none."""
        here = (one for one in self.footprint.allocations if one.device == self.device)
        return next((one for one in here if one.pools), None)

    @property
    def activations(self) -> tuple[MemoryBlock, ...]:
        """The activations one by one: `path` and `op` created it, `saved_by` keeps it."""
        return tuple(block for block in self._blocks if block.kind == "activation")

    def op_table(self, count: int | None = 20, *, width: int | None = None) -> str:
        """The ops with the largest part of the peak; a `count` of None shows all."""
        columns: list[Column[OpMemory]] = [
            Column("op", "Op", lambda op: harmless(op.op), right=False),
            Column("module", "Module", lambda op: self._path_text(op.path), right=False),
            Column("phase", "Phase", lambda op: op.phase, right=False, spare=2),
            Column("blocks", "Blocks", lambda op: f"{op.blocks:,}", spare=5),
            _bytes_column("Taken", lambda op: op.taken_bytes, spare=1),
            _bytes_column("At once", lambda op: op.most_bytes, spare=3),
            _bytes_column("Activations", lambda op: op.activation_bytes, spare=-1),
            _bytes_column("Gradients", lambda op: op.gradient_bytes, spare=4),
            _bytes_column("At peak", lambda op: op.peak_bytes),
        ]
        return largest(columns, self.ops, count, width)

    def peak_table(self, count: int | None = 20, *, width: int | None = None) -> str:
        """What the peak consists of, as a table; a `count` of None shows all."""
        whole = self.peak_bytes
        columns: list[Column[Holder]] = [
            Column("kind", "At the peak", lambda one: KIND_NAMES[one.kind], right=False),
            Column("module", "Module", lambda one: self._path_text(one.path), right=False),
            Column("op", "Made by", lambda one: harmless(one.op), right=False, spare=-1),
            Column("blocks", "Blocks", lambda one: f"{one.blocks:,}", spare=1),
            number_column("bytes", "Bytes", lambda one: one.bytes, format_bytes),
            Column("share", "Share", lambda one: format_share(one.bytes, whole), spare=-2),
        ]
        return largest(columns, self.peak_holders, count, width)

    def curve(self, width: int = 72, height: int = 6) -> str:
        """The memory of the step over its phases, drawn as an area."""
        return "\n".join(area_text(self.timeline, self.before_bytes, width, height))

    def to_dict(self) -> dict[str, Any]:
        """The report, and as "footprint" the record that it was computed from."""
        return {
            "model": self.model.name,
            "device": self.device,
            "fake": self.footprint.fake,
            "optimizer": self.footprint.optimizer,
            "peak_bytes": self.peak_bytes,
            "before_bytes": self.before_bytes,
            "allocator_peak_bytes": self.allocator_peak_bytes,
            "allocator": None if self.allocator is None else _allocator_dict(self.allocator),
            "peak": None if self.peak is None else self.peak._asdict(),
            "sizes": dict(self.sizes),
            "peak_holders": [dataclasses.asdict(holder) for holder in self.peak_holders],
            "modules": [
                {"path": row.path, "class": self._class(row)}
                | {"own": dataclasses.asdict(row.own), "total": dataclasses.asdict(row.total)}
                for row in self.modules.values()
            ],
            "unattributed": dataclasses.asdict(self.unattributed.own),
            "ops": [dataclasses.asdict(op) for op in self.ops],
            "notes": list(self.footprint.notes),
            "footprint": to_json_data(self.footprint),
        }

    def _columns(self) -> Sequence[Column[ModuleMemory]]:
        whole = self.peak_bytes
        return [
            *self._first_columns(spare=4),
            Column("output", "Output", self._output, right=False, spare=7),
            *self._quantity("parameters", "parameter_bytes", spare=-1),
            *self._quantity("buffers", "buffer_bytes", usual=False),
            *self._quantity("activations", "activation_bytes", if_any=True),
            *self._quantity("saved", "saved_bytes", spare=5, if_any=True),
            *self._quantity("gradients", "gradient_bytes", spare=2, if_any=True),
            *self._quantity("optimizer", "optimizer_bytes", spare=3, if_any=True),
            *self._quantity("temporary", "temporary_peak_bytes", spare=6),
            *self._quantity("peak", "peak_bytes", heading="At peak"),
            Column("share", "share", lambda row: share_text(row.total.peak_bytes, whole), spare=1),
            *(Column(field, value=_total(field)) for field in _FIELDS),
            *(Column(f"own_{field}", value=_own(field)) for field in _FIELDS),
            Column("peak_share", value=lambda row: fraction(row.total.peak_bytes, whole)),
        ]

    def _quantity(
        self,
        key: str,
        field: str,
        *,
        heading: str = "",
        spare: int = 0,
        usual: bool = True,
        if_any: bool = False,
    ) -> list[Column[ModuleMemory]]:
        """Two columns: a quantity of a module with all below it, and of the module alone."""
        title = heading or key.capitalize()
        is_shown = usual and not (if_any and not getattr(self.root.total, field))
        total = number_column(key, title, _total(field), format_bytes, spare=spare, usual=is_shown)
        own = number_column(f"{key}_self", f"{title} self", _own(field), format_bytes, usual=False)
        return [total, own]

    def _output(self, row: ModuleMemory) -> str:
        if row.path is None:
            return ""
        call = self._first_calls.get(row.path)
        return NOT_RUN if call is None else first_shape(call.outputs)

    def _below(self, room: int | None) -> list[str]:
        """The curve, then the facts."""
        lines = fact_lines(self._facts(), room)
        curve = self.curve(min(max(map(width, lines)), _MOST_CELLS)).splitlines()
        return [*curve, *([""] if curve else []), *lines, *note_lines(self._notes(), room)]

    def _facts(self) -> list[Fact]:
        return [
            Fact("Peak", self._peak_fact()),
            Fact("", self._kinds_fact()),
            Fact("Step", self._step_fact()),
            *_allocator_facts(self.allocator),
        ]

    def _notes(self) -> list[str]:
        slots = (slot for module in self.model.modules for slot in module.slots)
        packed = {slot.tensor: slot.spec.bytes for slot in slots if slot.role == "packed"}
        size = format_bytes(sum(packed.values()))
        quantized = f"not included: {size} of packed weights of quantized modules"
        return [*self.footprint.notes, *([quantized] if packed else [])]

    def _peak_fact(self) -> str:
        peak = self.peak
        fake = ", predicted without scratch memory inside kernels" if self.footprint.fake else ""
        text = f"{format_bytes(self.peak_bytes + self._scratch)} on {self.device}{fake}"
        if peak is None:
            return f"{text}, before the step"
        op = harmless(peak.op)
        where = op if peak.path is None else f"{peak.op} of {self._path_text(peak.path)}"
        return f"{text}, in the {peak.phase}: {where}"

    def _kinds_fact(self) -> str:
        sizes: Counter[BlockKind] = Counter()
        for holder in self.peak_holders:
            sizes[holder.kind] += holder.bytes
        least = _LITTLE * self.peak_bytes
        named = [(kind, size) for kind, size in sizes.most_common() if size > least]
        parts = [f"{format_bytes(size)} {KIND_NAMES[kind]}" for kind, size in named]
        rest = self.peak_bytes - sum(size for _, size in named)
        parts += [f"{format_bytes(rest)} else"] if rest else []
        if self._scratch:
            here = (one for one in self.footprint.allocations if one.device == self.device)
            op = next((f" ({harmless(one.op)})" for one in here if one.op), "")
            parts.append(f"{format_bytes(self._scratch)} scratch memory inside kernels{op}")
        return " + ".join(parts)

    @property
    def _scratch(self) -> int:
        """Scratch memory inside kernels at the peak; 0 if it is negligible."""
        more = (self.allocator_peak_bytes or 0) - self.peak_bytes
        return more if more >= _ALIKE * self.peak_bytes else 0

    def _step_fact(self) -> str:
        optimizer = self.footprint.optimizer
        added = format_bytes(self.peak_bytes + self._scratch - self.before_bytes)
        state = f" including {optimizer} state" if optimizer else ""
        return f"starts at {format_bytes(self.before_bytes)}{state}; adds up to {added}"

    def _is_listed(self, row: ModuleMemory, sort: MeasureSort | None) -> bool:
        return row.own != NOTHING


def _allocator_facts(found: AllocatorPeak | None) -> Iterator[Fact]:
    """What the allocator took from the device for the whole process, and what is lost of it."""
    if found is None:
        return
    every, *pools = found.pools
    lost = format_share(every.split_bytes, every.reserved_bytes) or "0%"
    yield Fact(
        "Allocator",
        f"{format_bytes(every.peak_reserved_bytes)} reserved by this process, up to "
        f"{format_bytes(every.peak_allocated_bytes)} of it allocated; {lost} "
        f"({format_bytes(every.split_bytes)}) is lost to fragmentation after the step",
    )
    for pool in pools:
        if pool.reserved_bytes:
            yield Fact("", _pool_text(pool))
    if found.retries or found.ooms:
        yield Fact(
            "",
            f"{plural(found.retries, 'allocation')} of the step retried with an emptied cache, "
            f"{found.ooms:,} failed",
        )


def _pool_text(pool: AllocatorPool) -> str:
    requested = f"{format_bytes(pool.requested_bytes)} requested"
    parts = [
        f"{format_bytes(pool.reserved_bytes)} in {plural(pool.segments, 'segment')}",
        f"{format_bytes(pool.allocated_bytes)} allocated ({requested})",
        f"{format_bytes(pool.split_bytes)} fragments",
    ]
    parts += [f"{format_bytes(pool.pending_bytes)} pending"] if pool.pending_bytes else []
    parts += [f"{format_bytes(pool.unused_bytes)} unused"] if pool.unused_bytes else []
    return f"{pool.pool} pool: {', '.join(parts)}"


def _allocator_dict(found: AllocatorPeak) -> dict[str, Any]:
    return {
        "retries": found.retries,
        "ooms": found.ooms,
        "pools": [
            {**dataclasses.asdict(pool), "unused_bytes": pool.unused_bytes} for pool in found.pools
        ],
    }


def _total(field: str) -> Callable[[ModuleMemory], int]:
    return lambda row: getattr(row.total, field)


def _own(field: str) -> Callable[[ModuleMemory], int]:
    return lambda row: getattr(row.own, field)


def _bytes_column(
    heading: str, value: Callable[[OpMemory], int], spare: int = 0
) -> Column[OpMemory]:
    return number_column(heading.lower(), heading, value, format_bytes, spare=spare)


def area_text(timeline: Sequence[Moment], before_bytes: int, cells: int, height: int) -> list[str]:
    """An area chart of this many cells and rows; nothing for an empty timeline.

    Each column shows the largest of the changes that fall into it. The lowest row starts at the
    memory before the step, or at less if some of that is freed.
    """
    if not timeline:
        return []
    low = min(before_bytes, *(moment.live_bytes for moment in timeline))
    high = max(moment.live_bytes for moment in timeline)
    labels = {0: format_bytes(high), height - 1: format_bytes(low)}
    margin = max(map(width, labels.values()))
    columns = max(cells - margin - 2, 8)
    # The height of each column, in eighths of a row.
    scale = (height * _LEVELS - 1) / max(high - low, 1)
    values = [moment.live_bytes for moment in timeline]
    levels = [
        1 + round((max(values[first:last]) - low) * scale)
        for first, last in _pieces(len(values), columns)
    ]
    blocks = f" {SPARKS}"
    lines = []
    for row in range(height):
        floor = (height - 1 - row) * _LEVELS
        bars = "".join(blocks[min(max(level - floor, 0), _LEVELS)] for level in levels)
        lines.append(f"{pad(labels.get(row, ''), margin, right=True)} ┤{bars}".rstrip())
    phases = _phases([moment.phase for moment in timeline], columns)
    return [*lines, f"{' ' * margin} └{phases}"]


def _pieces(count: int, columns: int) -> Iterable[tuple[int, int]]:
    """The range of values that each column shows; with few values several columns show the same."""
    for column in range(columns):
        first = column * count // columns
        yield first, max(first + 1, (column + 1) * count // columns)


def _phases(phases: Sequence[str], columns: int) -> str:
    """The names of the phases below their columns, where there is room."""
    shown = [phases[first] for first, _ in _pieces(len(phases), columns)]
    parts = []
    for phase, group in groupby(shown):
        room = len(list(group))
        name = f" {phase} " if room >= len(phase) + 3 else ""
        parts.append(f"{name:─<{room - 1}}┴" if room else "")
    return "".join(parts)[:-1]
