"""The memory of a step as text: a table of modules, of ops, of the peak, and a curve over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torchglass.analyse.memory.report import MemoryReport, ModuleMemory
from torchglass.analyse.memory.rows import UNATTRIBUTED, Sort, rows
from torchglass.errors import ViewError
from torchglass.records.memory import BlockKind, Footprint
from torchglass.records.model import Model
from torchglass.records.trace import Call
from torchglass.views.columns import NOT_RUN, shape_text
from torchglass.views.formats import format_bytes, format_share, harmless, shorten, width
from torchglass.views.text.area import area_text
from torchglass.views.text.guides import guides
from torchglass.views.text.table import align

_GAP = "  "
_LONGEST_NAME = 60
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
    calls: Sequence[Call]
    footprint: Footprint
    report: MemoryReport

    @cached_property
    def first_calls(self) -> Mapping[str, Call]:
        """The first call of each module."""
        return {call.path: call for call in reversed(self.calls)}


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    text: Callable[[ModuleMemory, Remembered], str]
    right: bool = True


def memory_table(
    shown: Remembered,
    *,
    sort: Sort | None = None,
    depth: int | None = None,
    columns: Iterable[str] | None = None,
) -> str:
    """The modules below their headings, the curve of the step, and what is to be said of it."""
    lines = rows(shown.report, shown.model, depth=depth, sort=sort)
    names = [
        guide + shorten(harmless(row.name), _LONGEST_NAME)
        for row, guide in zip(lines, guides(lines, "─"), strict=True)
    ]
    chosen = _columns_named(columns, shown)
    table = [["Module", *names]]
    table += [
        [column.title, *(column.text(row.memory, shown) for row in lines)] for column in chosen
    ]
    return _framed(table, [False, *(column.right for column in chosen)], below=_below(shown))


def op_table(shown: Remembered, count: int | None = 20) -> str:
    """The ops that hold most of the peak, then those that take most."""
    every = shown.report.ops
    ops = every if count is None else every[:count]
    table = [
        ["Op", *(harmless(op.op) for op in ops)],
        ["Module", *(_path(op.path, shown) for op in ops)],
        ["Phase", *(op.phase for op in ops)],
        ["Blocks", *(f"{op.blocks:,}" for op in ops)],
        ["Taken", *(_size(op.taken_bytes) for op in ops)],
        ["At once", *(_size(op.most_bytes) for op in ops)],
        ["Activations", *(_size(op.activation_bytes) for op in ops)],
        ["Gradients", *(_size(op.gradient_bytes) for op in ops)],
        ["At peak", *(_size(op.peak_bytes) for op in ops)],
    ]
    return _framed(table, [False] * 3 + [True] * 6, below=_left_out(every, ops))


def peak_table(shown: Remembered, count: int | None = 20) -> str:
    """Who holds what at the peak of the step, most first."""
    every = shown.report.peak_holders
    holders = every if count is None else every[:count]
    whole = shown.report.peak_bytes
    table = [
        ["At the peak", *(_KIND_NAMES[holder.kind] for holder in holders)],
        ["Module", *(_path(holder.path, shown) for holder in holders)],
        ["Made by", *(harmless(holder.op) for holder in holders)],
        ["Blocks", *(f"{holder.blocks:,}" for holder in holders)],
        ["Bytes", *(_size(holder.bytes) for holder in holders)],
        ["Share", *(format_share(holder.bytes, whole) for holder in holders)],
    ]
    return _framed(table, [False] * 3 + [True] * 3, below=_left_out(every, holders))


def timeline_text(shown: Remembered, cells: int = 72, height: int = 6) -> str:
    """The memory of the step from change to change, over its phases."""
    return "\n".join(area_text(shown.report.timeline, shown.report.before_bytes, cells, height))


def _left_out(every: Sequence[object], shown: Sequence[object]) -> list[str]:
    left_out = len(every) - len(shown)
    return [f"… and {left_out:,} more"] if left_out else []


def _framed(table: Sequence[Sequence[str]], right: Sequence[bool], below: Sequence[str]) -> str:
    columns = [align(cells, right=end) for cells, end in zip(table, right, strict=True)]
    heading, *lines = (_GAP.join(line).rstrip() for line in zip(*columns, strict=True))
    rule = "─" * max(width(line) for line in (heading, *lines, *below))
    return "\n".join([rule, heading, rule, *lines, rule, *below, *([rule] if below else [])])


def _columns_named(names: Iterable[str] | None, shown: Remembered) -> list[_Column]:
    if names is None:
        root = shown.report.root.total
        names = [
            name for name in _USUAL if name not in _ONLY_IF_ANY or getattr(root, _ONLY_IF_ANY[name])
        ]
    found = []
    for name in names:
        if name not in COLUMNS:
            raise ViewError(f"there is no column {name!r}; there are {', '.join(COLUMNS)}")
        found.append(COLUMNS[name])
    return found


def _size(count: int) -> str:
    return format_bytes(count) if count else ""


def _path(path: str | None, shown: Remembered) -> str:
    if path is None:
        return UNATTRIBUTED
    return shorten(harmless(path or shown.model.name), _LONGEST_NAME)


def _class(memory: ModuleMemory, shown: Remembered) -> str:
    module = None if memory.path is None else shown.model.find(memory.path)
    return harmless(module.kind) if module is not None else ""


def _output(memory: ModuleMemory, shown: Remembered) -> str:
    call = None if memory.path is None else shown.first_calls.get(memory.path)
    if call is None:
        return "" if memory.path is None else NOT_RUN
    more = f" +{len(call.outputs) - 1}" if len(call.outputs) > 1 else ""
    return shape_text(call.outputs[0].spec) + more if call.outputs else ""


def _of_total(field: str) -> Callable[[ModuleMemory, Remembered], str]:
    return lambda memory, _: _size(getattr(memory.total, field))


def _of_itself(field: str) -> Callable[[ModuleMemory, Remembered], str]:
    return lambda memory, _: _size(getattr(memory.own, field))


def _share(memory: ModuleMemory, shown: Remembered) -> str:
    part = memory.total.peak_bytes
    return format_share(part, shown.report.peak_bytes) if part else ""


_HEADINGS = {
    "parameters": ("Parameters", "parameter_bytes"),
    "buffers": ("Buffers", "buffer_bytes"),
    "activations": ("Activations", "activation_bytes"),
    "saved": ("Saved", "saved_bytes"),
    "gradients": ("Gradients", "gradient_bytes"),
    "optimizer": ("Optimizer", "optimizer_bytes"),
    "temporary": ("Temporary", "temporary_peak_bytes"),
    "peak": ("At peak", "peak_bytes"),
}

COLUMNS: Mapping[str, _Column] = {
    "class": _Column("Class", _class, right=False),
    "output": _Column("Output", _output, right=False),
    **{name: _Column(title, _of_total(field)) for name, (title, field) in _HEADINGS.items()},
    **{
        f"{name}_self": _Column(f"{title} self", _of_itself(field))
        for name, (title, field) in _HEADINGS.items()
    },
    "share": _Column("share", _share),
}
_USUAL = (
    *("class", "output", "parameters", "activations", "saved", "gradients", "optimizer"),
    *("temporary", "peak", "share"),
)
_ONLY_IF_ANY = {
    name: _HEADINGS[name][1] for name in ("activations", "saved", "gradients", "optimizer")
}


def _below(shown: Remembered) -> list[str]:
    """The curve, then what is said of the whole."""
    facts = [("Peak", _peak_fact(shown)), ("", _kinds_fact(shown)), ("Step", _step_fact(shown))]
    if shown.report.allocator_peak_bytes is not None:
        facts.append(("Allocator", _allocator_fact(shown)))
    labels = align([label for label, _ in facts], right=False)
    lines = [f"{label}{_GAP}{text}" for label, (_, text) in zip(labels, facts, strict=True)]
    notes = [f"Note: {note}." for note in shown.footprint.notes]
    cells = min(max(map(width, lines)), _MOST_CELLS)
    curve = timeline_text(shown, cells).splitlines()
    return [*curve, *([""] if curve else []), *lines, *notes]


def _peak_fact(shown: Remembered) -> str:
    report, peak = shown.report, shown.report.peak
    predicted = ", predicted" if shown.footprint.fake else ""
    text = f"{format_bytes(report.peak_bytes)} on {report.device}{predicted}"
    if peak is None:
        return f"{text}, before the step"
    where = harmless(peak.op) if peak.path is None else f"{peak.op} of {_path(peak.path, shown)}"
    return f"{text}, in the {peak.phase}: {where}"


def _kinds_fact(shown: Remembered) -> str:
    sizes: Counter[BlockKind] = Counter()
    for holder in shown.report.peak_holders:
        sizes[holder.kind] += holder.bytes
    least = _LITTLE * shown.report.peak_bytes
    named = [(kind, size) for kind, size in sizes.most_common() if size > least]
    parts = [f"{format_bytes(size)} {_KIND_NAMES[kind]}" for kind, size in named]
    rest = shown.report.peak_bytes - sum(size for _, size in named)
    return " + ".join([*parts, *([f"{format_bytes(rest)} else"] if rest else [])])


def _step_fact(shown: Remembered) -> str:
    report, optimizer = shown.report, shown.footprint.optimizer
    added = format_bytes(report.peak_bytes - report.before_bytes)
    state = f" with the state of {optimizer}" if optimizer else ""
    return f"{format_bytes(report.before_bytes)} before it{state}, at most {added} more in it"


def _allocator_fact(shown: Remembered) -> str:
    report = shown.report
    assert report.allocator_peak_bytes is not None
    more = report.allocator_peak_bytes - report.peak_bytes
    text = f"{format_bytes(report.allocator_peak_bytes)} at the most"
    if more < _ALIKE * report.peak_bytes:
        return text
    ops = [one.op for one in shown.footprint.allocations if one.device == report.device and one.op]
    where = f", as {harmless(ops[0])} does" if ops else ""
    return f"{text}: kernels take {format_bytes(more)} more inside of themselves{where}"
