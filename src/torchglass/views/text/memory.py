"""The memory of a step as text: tables and a curve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from torchglass.analyse.memory import MemoryReport, ModuleMemory, Moment, memory_rows
from torchglass.records.measures import BlockKind, Footprint
from torchglass.records.model import Model
from torchglass.records.trace import CallRecord
from torchglass.tables.column import Column, TableOptions, find_columns
from torchglass.tables.text import (
    Cells,
    class_text,
    fact_lines,
    framed,
    left_out,
    module_table,
    note_lines,
    path_text,
)
from torchglass.views.formats import (
    NOT_RUN,
    SPARKS,
    first_shape,
    format_bytes,
    format_share,
    harmless,
    pad,
    width,
)

_LEVELS = len(SPARKS)


def area_text(timeline: Sequence[Moment], before_bytes: int, cells: int, height: int) -> list[str]:
    """Lines of an area of so many rows, in all so many cells wide; none for an empty timeline.

    Every column shows the most of the changes that fall into it. The lowest row begins with what
    was there before the step, or with less if some of that is freed.
    """
    if not timeline:
        return []
    low = min(before_bytes, *(moment.live_bytes for moment in timeline))
    high = max(moment.live_bytes for moment in timeline)
    labels = {0: format_bytes(high), height - 1: format_bytes(low)}
    margin = max(map(width, labels.values()))
    columns = max(cells - margin - 2, 8)
    levels = _levels([moment.live_bytes for moment in timeline], low, high, columns, height)
    lines = []
    for row in range(height):
        floor = (height - 1 - row) * _LEVELS
        bars = "".join(_bar(level - floor) for level in levels)
        lines.append(f"{pad(labels.get(row, ''), margin, right=True)} ┤{bars}".rstrip())
    phases = _phases([moment.phase for moment in timeline], columns)
    return [*lines, f"{' ' * margin} └{phases}"]


def _levels(values: Sequence[int], low: int, high: int, columns: int, height: int) -> list[int]:
    """How high each column is, in eighths of a row."""
    scale = (height * _LEVELS - 1) / max(high - low, 1)
    return [
        1 + round((max(values[first:last]) - low) * scale)
        for first, last in _pieces(len(values), columns)
    ]


def _pieces(count: int, columns: int) -> Iterable[tuple[int, int]]:
    """Which of some values each column stands for; with few of them several stand for one."""
    for column in range(columns):
        first = column * count // columns
        yield first, max(first + 1, (column + 1) * count // columns)


def _bar(level: int) -> str:
    if level <= 0:
        return " "
    return SPARKS[min(level, _LEVELS) - 1]


def _phases(phases: Sequence[str], columns: int) -> str:
    """The names of the phases below the columns where they are; a short one has no room for its."""
    shown = [phases[first] for first, _ in _pieces(len(phases), columns)]
    parts = []
    for phase, group in groupby(shown):
        room = len(list(group))
        name = f" {phase} " if room >= len(phase) + 3 else ""
        parts.append(f"{name:─<{room - 1}}┴" if room else "")
    return "".join(parts)[:-1]


_MOST_CELLS = 100
_LITTLE = 0.01
"""A part of the peak below this has no name of its own."""
_ALIKE = 0.001
"""Two peaks that differ by less than this part are one."""
_KIND_NAMES: Mapping[BlockKind, str] = {
    "parameter": "parameters",
    "buffer": "buffers",
    "input": "inputs",
    "optimizer": "optimizer state",
    "activation": "activations",
    "output": "outputs",
    "gradient": "gradients",
    "temporary": "temporaries",
}


@dataclass(frozen=True)
class Remembered:
    """All that the views of a step's memory show."""

    model: Model
    calls: Sequence[CallRecord]
    footprint: Footprint
    report: MemoryReport

    @cached_property
    def first_calls(self) -> Mapping[str, CallRecord]:
        """The first call of each module."""
        return {call.path: call for call in reversed(self.calls)}


_Column = Column[ModuleMemory, Remembered]


def memory_table(shown: Remembered, look: TableOptions) -> str:
    """The modules below their headings, the curve of the step, and what is to be said of it."""
    root = shown.report.root.total
    usual = (
        name for name in _USUAL if name not in _ONLY_IF_ANY or getattr(root, _ONLY_IF_ANY[name])
    )
    chosen = find_columns(usual if look.columns is None else look.columns, COLUMNS)
    lines = memory_rows(shown.report, shown.model, depth=look.depth, sort=look.sort)
    return module_table(lines, chosen, shown, _below(shown, look.room), look)


def memory_op_table(shown: Remembered, count: int | None = 20, room: int | None = None) -> str:
    """The ops that hold most of the peak, then those that take most."""
    ops = shown.report.ops[:count]
    columns = [
        Cells(["Op", *(harmless(op.op) for op in ops)], right=False),
        Cells(["Module", *(path_text(op.path, shown.model) for op in ops)], right=False),
        Cells(["Phase", *(op.phase for op in ops)], right=False, spare=2),
        Cells(["Blocks", *(f"{op.blocks:,}" for op in ops)], spare=5),
        Cells(["Taken", *(_size(op.taken_bytes) for op in ops)], spare=1),
        Cells(["At once", *(_size(op.most_bytes) for op in ops)], spare=3),
        Cells(["Activations", *(_size(op.activation_bytes) for op in ops)], spare=-1),
        Cells(["Gradients", *(_size(op.gradient_bytes) for op in ops)], spare=4),
        Cells(["At peak", *(_size(op.peak_bytes) for op in ops)]),
    ]
    return framed(columns, left_out(shown.report.ops, ops), room=room)


def peak_table(shown: Remembered, count: int | None = 20, room: int | None = None) -> str:
    """Who holds what at the peak of the step, most first."""
    holders = shown.report.peak_holders[:count]
    whole = shown.report.peak_bytes
    paths = (path_text(holder.path, shown.model) for holder in holders)
    columns = [
        Cells(["At the peak", *(_KIND_NAMES[holder.kind] for holder in holders)], right=False),
        Cells(["Module", *paths], right=False),
        Cells(["Made by", *(harmless(holder.op) for holder in holders)], right=False, spare=-1),
        Cells(["Blocks", *(f"{holder.blocks:,}" for holder in holders)], spare=1),
        Cells(["Bytes", *(_size(holder.bytes) for holder in holders)]),
        Cells(["Share", *(format_share(holder.bytes, whole) for holder in holders)], spare=-2),
    ]
    return framed(columns, left_out(shown.report.peak_holders, holders), room=room)


def timeline_text(shown: Remembered, cells: int = 72, height: int = 6) -> str:
    """The memory of the step from change to change, over its phases."""
    return "\n".join(area_text(shown.report.timeline, shown.report.before_bytes, cells, height))


def _size(count: int) -> str:
    return format_bytes(count) if count else ""


def _class(memory: ModuleMemory, shown: Remembered) -> str:
    return class_text(memory, shown.model)


def _output(memory: ModuleMemory, shown: Remembered) -> str:
    if memory.path is None:
        return ""
    call = shown.first_calls.get(memory.path)
    return NOT_RUN if call is None else first_shape(call.outputs)


def _of_total(field: str) -> Callable[[ModuleMemory, Remembered], str]:
    return lambda memory, _: _size(getattr(memory.total, field))


def _of_itself(field: str) -> Callable[[ModuleMemory, Remembered], str]:
    return lambda memory, _: _size(getattr(memory.own, field))


def _share(memory: ModuleMemory, shown: Remembered) -> str:
    part = memory.total.peak_bytes
    return format_share(part, shown.report.peak_bytes) if part else ""


class _Heading(NamedTuple):
    """A quantity of a module with what is below it, and of itself."""

    title: str
    field: str
    spare: int = 0


_HEADINGS = {
    "parameters": _Heading("Parameters", "parameter_bytes", spare=-1),
    "buffers": _Heading("Buffers", "buffer_bytes"),
    "activations": _Heading("Activations", "activation_bytes"),
    "saved": _Heading("Saved", "saved_bytes", spare=5),
    "gradients": _Heading("Gradients", "gradient_bytes", spare=2),
    "optimizer": _Heading("Optimizer", "optimizer_bytes", spare=3),
    "temporary": _Heading("Temporary", "temporary_peak_bytes", spare=6),
    "peak": _Heading("At peak", "peak_bytes"),
}

COLUMNS: Mapping[str, _Column] = {
    "class": _Column("Class", _class, right=False, spare=4),
    "output": _Column("Output", _output, right=False, spare=7),
    **{
        name: _Column(title, _of_total(field), spare=spare)
        for name, (title, field, spare) in _HEADINGS.items()
    },
    **{
        f"{name}_self": _Column(f"{title} self", _of_itself(field))
        for name, (title, field, _) in _HEADINGS.items()
    },
    "share": _Column("share", _share, spare=1),
}
_USUAL = (
    *("class", "output", "parameters", "activations", "saved", "gradients", "optimizer"),
    *("temporary", "peak", "share"),
)
_ONLY_IF_ANY = {
    name: _HEADINGS[name].field for name in ("activations", "saved", "gradients", "optimizer")
}


def _below(shown: Remembered, room: int | None) -> list[str]:
    """The curve, then what is said of the whole."""
    facts = [("Peak", _peak_fact(shown)), ("", _kinds_fact(shown)), ("Step", _step_fact(shown))]
    lines = fact_lines(facts, room)
    cells = min(max(map(width, lines)), _MOST_CELLS)
    curve = timeline_text(shown, cells).splitlines()
    notes = note_lines([*shown.footprint.notes, *_packed(shown.model)], room)
    return [*curve, *([""] if curve else []), *lines, *notes]


def _packed(model: Model) -> list[str]:
    """What is to be said of the weights of quantized modules."""
    slots = (slot for module in model.modules for slot in module.slots)
    sizes = {slot.tensor: slot.spec.bytes for slot in slots if slot.role == "packed"}
    if not sizes:
        return []
    size = format_bytes(sum(sizes.values()))
    return [f"not included: {size} of packed weights of quantized modules"]


def _peak_fact(shown: Remembered) -> str:
    report, peak = shown.report, shown.report.peak
    predicted = ", predicted without scratch memory inside kernels" if shown.footprint.fake else ""
    whole = report.peak_bytes + _scratch(report)
    text = f"{format_bytes(whole)} on {report.device}{predicted}"
    if peak is None:
        return f"{text}, before the step"
    where = (
        harmless(peak.op)
        if peak.path is None
        else f"{peak.op} of {path_text(peak.path, shown.model)}"
    )
    return f"{text}, in the {peak.phase}: {where}"


def _kinds_fact(shown: Remembered) -> str:
    sizes: Counter[BlockKind] = Counter()
    for holder in shown.report.peak_holders:
        sizes[holder.kind] += holder.bytes
    least = _LITTLE * shown.report.peak_bytes
    named = [(kind, size) for kind, size in sizes.most_common() if size > least]
    parts = [f"{format_bytes(size)} {_KIND_NAMES[kind]}" for kind, size in named]
    rest = shown.report.peak_bytes - sum(size for _, size in named)
    parts += [f"{format_bytes(rest)} else"] if rest else []
    scratch = _scratch(shown.report)
    if scratch:
        devices = (one for one in shown.footprint.allocations if one.device == shown.report.device)
        ops = [f" ({harmless(one.op)})" for one in devices if one.op]
        kernels = "".join(ops[:1])
        parts.append(f"{format_bytes(scratch)} scratch memory inside kernels{kernels}")
    return " + ".join(parts)


def _scratch(report: MemoryReport) -> int:
    """What kernels take and free inside of themselves at the peak, as far as it matters."""
    more = (report.allocator_peak_bytes or 0) - report.peak_bytes
    return more if more >= _ALIKE * report.peak_bytes else 0


def _step_fact(shown: Remembered) -> str:
    report, optimizer = shown.report, shown.footprint.optimizer
    added = format_bytes(report.peak_bytes + _scratch(report) - report.before_bytes)
    state = f" including {optimizer} state" if optimizer else ""
    return f"starts at {format_bytes(report.before_bytes)}{state}; adds up to {added}"
