"""The panels that describe a module: what it is and contains, and what its calls cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

from torchglass.analyse.model_diff import ModuleChange, SlotChange
from torchglass.analyse.parameters import Counts, ModuleCounts
from torchglass.records.calls import CallTensor, ForwardStats, ModuleStatistics, Statistics
from torchglass.records.measures import Measures, ModuleMeasure
from torchglass.records.model import Module, Slot, join_path
from torchglass.records.tensors import Stats, TensorSpec
from torchglass.records.trace import TraceRecord
from torchglass.views.formats import (
    format_bytes,
    format_count,
    format_share,
    format_time,
    harmless,
    shape_text,
)
from torchglass.views.model_text import part_text
from torchglass.views.tui.explorer_state import SHARED, TIED, ExplorerState, tied_to
from torchglass.views.tui.keys import bindings
from torchglass.views.tui.panels.op_flow import shared_note
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.styled_text import (
    TableCell,
    TextRow,
    heading,
    line_width,
    meter,
    paragraph,
    sections,
    table,
    text,
    wrap,
)
from torchglass.views.tui.tree_columns import distance_text

_BESIDE = {
    "added": "only in the new model",
    "removed": "only in the old model",
    "changed": "old → new",
}


def describe_change(state: ExplorerState, module: Module, width: int) -> Iterator[TextRow]:
    """How a module differs from the other model; nothing if it does not."""
    comparison = state.comparison
    if comparison is None:
        return
    change = comparison.changes.get(module.path)
    inside = comparison.below.get(module.path, 0)
    if change is not None:
        yield heading(change.verdict, _BESIDE[change.verdict])
        if change.verdict == "changed":
            yield from _differences(change, width)
    elif inside:
        yield heading("no direct changes")
    if inside:
        yield text(f"{inside:,} changed below")


def _differences(change: ModuleChange, width: int) -> Iterator[TextRow]:
    if change.class_before:
        yield from paragraph(f"class before: {harmless(change.class_before)}", width)
    if change.extra_before is not None:
        yield from paragraph(f"settings before: {harmless(change.extra_before) or 'none'}", width)
    yield from map(TextRow, table(_filled([_cells(slot) for slot in change.slots])))


def _filled(lines: list[list[TableCell]]) -> list[list[TableCell]]:
    """The table without its empty columns."""
    columns = [column for column in zip(*lines, strict=True) if any(cell.text for cell in column)]
    return [list(line) for line in zip(*columns, strict=True)]


def _cells(slot: SlotChange) -> list[TableCell]:
    same = slot.before == slot.after
    return [
        TableCell(harmless(slot.name), "name"),
        TableCell("" if same else _spec(slot.before), "shape"),
        TableCell("" if same else "→", "muted"),
        TableCell(_spec(slot.after), "shape"),
        TableCell("" if slot.distance is None else distance_text(slot.distance), "number"),
    ]


def _spec(spec: TensorSpec | None) -> str:
    return "none" if spec is None else f"{shape_text(spec)} {harmless(spec.dtype)}"


_MOST_SLOTS = 1_000
_MOST_VALUES = 50
_METER = 12


class DetailsPanel(Panel):
    """Size, tensors, last call, inheritance and hooks of a module."""

    key: ClassVar[str] = "i"
    title: ClassVar[str] = "Details"

    def follow(self, moved: bool) -> None:
        self.put(describe_module(self.state, self.module, self.room))


def describe_module(state: ExplorerState, module: Module, width: int) -> list[TextRow]:
    """The rows of a module."""
    counts = state.counts(module)
    return sections(
        list(_who(state, module, width)),
        _problem(module, width),
        list(_also_in_file(state, module, width)),
        list(describe_change(state, module, width)),
        [heading("size"), *_totals(state, module, counts)] if counts else [],
        [heading("tensors"), *_tensors(state, module)] if module.slots else [],
        list(_last_call(state, module)),
        list(_inheritance(state, module)),
        list(_hooks(module)),
    )


def _who(state: ExplorerState, module: Module, width: int) -> Iterator[TextRow]:
    model = state.model
    yield text(harmless(module.path or model.name), "path")
    extra = f"({harmless(module.extra)})" if module.extra else ""
    for line in wrap([(harmless(module.kind), "class"), (extra, "extra")], width, "  "):
        yield TextRow(line)
    package = module.class_name.rpartition(".")[0]
    # The groups of a checkpoint have no class and no mode.
    if package:
        peers = len(state.outline.by_class[module.class_name])
        mode = "training" if module.training else "eval"
        told = " · ".join((harmless(package), mode, _peers(peers)))
        yield from paragraph(told, width, "muted")
    if module.alias_of is not None:
        first = model[module.alias_of].path
        yield TextRow(
            [
                (f"{SHARED} same module as ", "note"),
                (harmless(first) or "the model itself", "name"),
            ],
            first,
        )


def _peers(count: int) -> str:
    return "1 instance" if count == 1 else f"{count:,} instances"


def _problem(module: Module, width: int) -> list[TextRow]:
    if not module.problem:
        return []
    return [heading("problem"), *paragraph(harmless(module.problem), width, "problem")]


def _also_in_file(state: ExplorerState, module: Module, width: int) -> Iterator[TextRow]:
    """What a checkpoint contains besides the model. Parts with tensors are in the tree."""
    parts = state.model.also_in_file if module.parent is None else ()
    if parts:
        yield heading("also in this file")
    for part in parts[:_MOST_VALUES]:
        for row in paragraph(part_text(part), width, "name" if part.path else "plain", "  "):
            yield TextRow(row.pieces, part.path or None)
    if len(parts) > _MOST_VALUES:
        yield text(f"and {len(parts) - _MOST_VALUES:,} more", "muted")


def _totals(state: ExplorerState, module: Module, counts: ModuleCounts) -> Iterator[TextRow]:
    lines = [
        [TableCell("", "muted"), TableCell("own", "muted", True), TableCell("total", "muted", True)]
    ]
    lines += [
        [
            TableCell(title, "muted"),
            TableCell(number(counts.own), style, True),
            TableCell(number(counts.total), style, True),
        ]
        for title, style, number in _HELD
        if title in _ALWAYS or number(counts.total) != number(Counts())
    ]
    yield from map(TextRow, table(lines, gap=3))
    for of, whole in _wholes(state, module):
        if counts.total.parameters and whole.total.parameters:
            share = counts.total.parameters / whole.total.parameters
            words = format_share(counts.total.parameters, whole.total.parameters)
            yield TextRow(
                [*meter(share, _METER), (f" {words:>4}", "number"), (f" of {of}", "muted")]
            )
    if counts.per_use.parameters != counts.total.parameters:
        uses = format_count(counts.per_use.parameters)
        yield text(f"{uses} counting shared weights twice", "muted")


def _wholes(state: ExplorerState, module: Module) -> Iterator[tuple[str, ModuleCounts]]:
    if module.parent is None:
        return
    root, parent = state.model.root, state.model[module.parent]
    if whole := state.counts(root):
        yield "all parameters", whole
    if parent is not root and (around := state.counts(parent)):
        yield harmless(parent.path), around


def _tensors(state: ExplorerState, module: Module) -> Iterator[TextRow]:
    shown = module.slots[:_MOST_SLOTS]
    lines = table([_slot_cells(slot) for slot in shown])
    for slot, line in zip(shown, lines, strict=True):
        yield TextRow(line)
        for place in tied_to(state.model, module, slot):
            # The path of the module is followed by the name of the tensor.
            yield TextRow([(f"  {TIED} {harmless(place)}", "note")], place.rpartition(".")[0])
    if len(module.slots) > _MOST_SLOTS:
        yield text(f"and {len(module.slots) - _MOST_SLOTS:,} more", "muted")


def _slot_cells(slot: Slot) -> list[TableCell]:
    return [
        TableCell(harmless(slot.name), "name"),
        TableCell(shape_text(slot.spec), "shape"),
        TableCell(harmless(slot.spec.dtype), "dtype"),
        TableCell(format_bytes(slot.spec.bytes), "bytes", True),
        TableCell(_standing(slot), "muted"),
    ]


def _standing(slot: Slot) -> str:
    """What is special about a tensor: not a trainable parameter in CPU memory."""
    words = []
    if slot.role != "parameter":
        words.append(slot.role if slot.persistent else f"{slot.role}, not saved")
    elif not slot.trainable:
        words.append("frozen")
    if slot.spec.device != "cpu":
        words.append(harmless(slot.spec.device))
    if slot.spec.layout != "strided":
        words.append(harmless(slot.spec.layout))
    return ", ".join(words)


def _last_call(state: ExplorerState, module: Module) -> Iterator[TextRow]:
    """The inputs and outputs of the last recorded call."""
    path = state.path_of_calls(module)
    recorded, trace = state.statistics.get(path), state.traced_forward
    calls = recorded.calls if recorded else trace.calls.get(path, ()) if trace else ()
    if not calls:
        return
    last = calls[-1]
    cells = [
        [
            TableCell(join_path(side, harmless(value.place)), "muted"),
            TableCell(shape_text(value.spec), "shape"),
            TableCell(harmless(value.spec.dtype), "dtype"),
            TableCell(format_bytes(value.spec.bytes), "bytes", True),
        ]
        for side, values in (("input", last.inputs), ("output", last.outputs))
        for value in values[:_MOST_VALUES]
    ]
    yield heading("last call", f"of {len(calls):,}" if len(calls) > 1 else "")
    yield from map(TextRow, table(cells))


def _inheritance(state: ExplorerState, module: Module) -> Iterator[TextRow]:
    source = state.model.classes.get(module.class_name)
    if source is None or not source.ancestors:
        return
    yield heading("inherits")
    names = [module.class_name, *(one.class_name for one in source.ancestors)]
    for depth, name in enumerate(names):
        package, _, kind = name.rpartition(".")
        guide = "  " * (depth - 1) + "└ " if depth else ""
        yield TextRow(
            [
                (guide, "faint"),
                (harmless(kind), "plain" if depth else "class"),
                (f"  {harmless(package)}", "muted"),
            ]
        )


def _hooks(module: Module) -> Iterator[TextRow]:
    if module.hooks:
        yield heading("hooks")
        for hook in module.hooks:
            yield text(harmless(hook), "name")


_ALWAYS = {"parameters", "memory"}
_HELD: tuple[tuple[str, str, Callable[[Counts], str]], ...] = (
    ("parameters", "number", lambda held: format_count(held.parameters)),
    ("trainable", "number", lambda held: format_count(held.trainable)),
    ("frozen", "number", lambda held: format_count(held.frozen)),
    ("buffers", "number", lambda held: format_count(held.buffers)),
    ("memory", "bytes", lambda held: format_bytes(held.bytes)),
)

_PERFORMANCE_METER = 10
_MOST_CALLS = 500
_NUMBERS = ("min", "max", "mean", "std")
_NOTHING = "–"


class PerformancePanel(Panel):
    """Time, memory and FLOPs of a module, and a table of its calls."""

    key: ClassVar[str] = "P"
    title: ClassVar[str] = "Performance"
    missing: ClassVar[str] = "No forward recorded: use tg.explore(model, *inputs) or --input"
    BINDINGS: ClassVar = bindings("panel:calls")

    def __init__(self, state: ExplorerState) -> None:
        super().__init__(state)
        self._differences = False

    @classmethod
    def available(cls, state: ExplorerState) -> bool:
        measured = state.document(Measures) or state.document(Statistics)
        return measured is not None or state.document(TraceRecord) is not None

    def extra_places(self) -> Iterable[str]:
        statistics = self.state.statistics.get(self.state.path_of_calls(self.module))
        if statistics is not None and len(statistics.calls) > 1:
            yield "panel:calls"

    def action_differences(self) -> None:
        self._differences = not self._differences
        self.follow(False)

    def follow(self, moved: bool) -> None:
        rows = describe_performance(
            self.state, self.module, self.room, differences=self._differences
        )
        if len(rows) > len(list(shared_note(self.state, self.module, self.room))):
            self.put(rows)
        else:
            self.say(
                f"{harmless(self.module.path or 'The model')} did not run in the recorded forward."
            )


def describe_performance(
    state: ExplorerState, module: Module, width: int, *, differences: bool
) -> list[TextRow]:
    """The rows of a module."""
    measures = state.document(Measures)
    path = state.path_of_calls(module)
    measured, whole = state.measures.get(path), state.measures.get("")
    statistics = state.statistics.get(path)
    notes = measures.notes if measures and measured else ()
    return sections(
        list(shared_note(state, module, width)),
        list(_costs(measured, whole)) if measured else list(_traced(state, module)),
        [row for note in notes for row in paragraph(harmless(note), width, "muted")],
        list(_calls(statistics, width, differences=differences)) if statistics else [],
    )


def _costs(measured: ModuleMeasure, whole: ModuleMeasure | None) -> Iterator[TextRow]:
    yield heading("fastest run", f"{measured.calls:,} call{'s' * (measured.calls != 1)}")
    lines, shares = [], []
    for title, name, style, write in _COSTS:
        total, own = getattr(measured, f"total_{name}"), getattr(measured, f"self_{name}", None)
        if total is None:
            continue
        of = getattr(whole, f"total_{name}") if whole else None
        lines.append(
            [
                TableCell(title, "muted"),
                TableCell(write(total), style, True),
                TableCell(_NOTHING if own is None else write(own), style, True),
                TableCell(format_share(total, of) if of else "", "muted", True),
            ]
        )
        shares.append(min(total / of, 1.0) if of else 0.0)
    if not lines:
        yield text("not measured", "muted")
        return
    head = [
        TableCell("", "header"),
        *(TableCell(word, "header", True) for word in ("total", "self", "share")),
    ]
    first, *rest = table([head, *lines])
    yield TextRow(first)
    for line, share in zip(rest, shares, strict=True):
        yield TextRow([*line, *meter(share, _PERFORMANCE_METER)])


def _traced(state: ExplorerState, module: Module) -> Iterator[TextRow]:
    """The time of a module in a trace, where it was not measured."""
    trace = state.traced_forward
    calls = trace.calls.get(state.path_of_calls(module), ()) if trace else ()
    if trace is None or not calls:
        return
    total = sum(call.total_ns for call in calls)
    root = sum(call.total_ns for call in trace.calls.get("", ()))
    yield heading("one traced forward", "times include tracing")
    cells = [
        [
            TableCell("calls", "muted"),
            TableCell(f"{len(calls):,}", "number", True),
            TableCell("", "muted"),
        ],
        [
            TableCell("forward", "muted"),
            TableCell(format_time(total / 1e9), "number", True),
            TableCell(format_share(total, root), "muted", True),
        ],
    ]
    yield from map(TextRow, table(cells))


def _calls(statistics: ModuleStatistics, width: int, *, differences: bool) -> Iterator[TextRow]:
    totals = statistics.totals
    beside = f"{totals.calls:,} in total, {format_time(totals.total_ns / 1e9)} while recording"
    if totals.failed:
        beside += f", {totals.failed:,} raised"
    yield heading("differences from the previous call" if differences else "calls", beside)
    shown = statistics.calls[-_MOST_CALLS:]
    if len(shown) < totals.calls:
        yield text(f"last {len(shown):,} calls", "muted")
    lines = [[TableCell(word, "header", word not in _LEFT) for word in _HEADINGS]]
    for before, call in zip([None, *shown[:-1]], shown, strict=True):
        lines += _call_lines(call, before, differences=differences)
    drawn = table(lines)
    if line_width(drawn[0]) > width:
        drawn = table(lines, gap=1)
    yield from map(TextRow, drawn)


_LEFT = ("", "shape")
_HEADINGS = ("call", "time", *_LEFT, *_NUMBERS)


def _call_lines(
    call: ForwardStats, before: ForwardStats | None, *, differences: bool
) -> Iterator[list[TableCell]]:
    """A line for each tensor of a call; the first has the time."""
    first = True
    for side in ("inputs", "outputs"):
        tensors: Sequence[CallTensor] = getattr(call, side)
        earlier: Sequence[CallTensor] = getattr(before, side) if before else ()
        for at, tensor in enumerate(tensors):
            other = earlier[at] if at < len(earlier) else None
            yield [
                TableCell(f"{call.number}" if first else "", "number", True),
                _time(call, before, differences) if first else TableCell("", "plain", True),
                TableCell(_place(side, tensor.place, len(tensors)), "muted"),
                _shape(tensor, other if differences else None),
                *_stats_cells(tensor.stats, other.stats if other else None, differences),
            ]
            first = False
    if call.error:
        blank = [TableCell("", "plain")] * (len(_HEADINGS) - 4)
        yield [
            TableCell(f"{call.number}", "number", True),
            TableCell("", "plain"),
            TableCell("✗", "problem"),
            TableCell(harmless(call.error), "problem"),
            *blank,
        ]


def _place(side: str, place: str, count: int) -> str:
    word = "in" if side == "inputs" else "out"
    return f"{word} {harmless(place)}" if count > 1 and place else word


def _shape(tensor: CallTensor, before: CallTensor | None) -> TableCell:
    same = before is not None and before.spec.shape == tensor.spec.shape
    return TableCell("same" if same else shape_text(tensor.spec), "faint" if same else "shape")


def _stats_cells(stats: Stats | None, before: Stats | None, differences: bool) -> list[TableCell]:
    cells = []
    for name in _NUMBERS:
        value = getattr(stats, name) if stats else math.nan
        if differences:
            earlier = getattr(before, name) if before else math.nan
            cells.append(_difference(value, earlier))
        else:
            strange = stats is not None and bool(stats.nan or stats.inf)
            style = "problem" if strange else "plain"
            cells.append(TableCell(_NOTHING if math.isnan(value) else f"{value:.4g}", style, True))
    return cells


def _difference(value: float, before: float) -> TableCell:
    change = value - before
    if math.isnan(change):
        return TableCell(_NOTHING, "faint", True)
    return TableCell(f"{change:+.3g}", "faint" if change == 0 else "plain", True)


def _time(call: ForwardStats, before: ForwardStats | None, differences: bool) -> TableCell:
    if not differences:
        return TableCell(format_time(call.total_ns / 1e9), "number", True)
    if before is None:
        return TableCell(_NOTHING, "faint", True)
    change = call.total_ns - before.total_ns
    sign = "+" if change >= 0 else "−"
    return TableCell(f"{sign}{format_time(abs(change) / 1e9)}", "number", True)


def _nanoseconds(count: int) -> str:
    return format_time(count / 1e9)


_COSTS: tuple[tuple[str, str, str, Callable[[int], str]], ...] = (
    ("forward", "forward_ns", "number", _nanoseconds),
    ("backward", "backward_ns", "number", _nanoseconds),
    ("forward FLOPs", "forward_flops", "shape", format_count),
    ("backward FLOPs", "backward_flops", "shape", format_count),
    ("saved for backward", "activation_bytes", "bytes", format_bytes),
    ("peak memory", "peak_bytes", "bytes", format_bytes),
)
