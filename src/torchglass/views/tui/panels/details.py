"""The panels that describe a module: what it is and contains, and what its calls cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

from torchglass.analyse.model_diff import ModuleChange, SlotChange
from torchglass.analyse.parameters import Counts, ModuleCounts
from torchglass.records.calls import CallTensor, ForwardStats, ModuleStatistics, Statistics
from torchglass.records.measures import Measures, ModuleMeasure
from torchglass.records.model import Module, Slot, Stats, TensorSpec, join_path
from torchglass.records.trace import TraceRecord
from torchglass.tables.text import (
    format_bytes,
    format_count,
    format_share,
    format_time,
    harmless,
    shape_text,
    sparkline,
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
    section,
    sections,
    table,
    text,
    wrap,
)
from torchglass.views.tui.tree_columns import distance_text

_CHANGE_NOTES = {
    "added": "only in the new model",
    "removed": "only in the old model",
    "changed": "old → new",
}
_MOST_SLOTS = 1_000
_MOST_VALUES = 50
_MOST_CALLS = 500
_NUMBERS = ("min", "max", "mean", "std")
_NOTHING = "–"


class DetailsPanel(Panel):
    """Size, tensors, last call, inheritance and hooks of a module."""

    key: ClassVar[str] = "i"
    title: ClassVar[str] = "Details"

    def follow(self, moved: bool) -> None:
        self._draw()
        trace = self.state.traced_forward
        op = trace.output_op(self.state.path_of_calls(self.module)) if trace else None
        if trace is not None and op is not None and trace.known_field(op) is None:
            # After hundreds of ops it takes longer than a key should.
            self.work("Receptive field", lambda _: trace.field(op), self._draw)

    def _draw(self, _: str = "") -> None:
        self.put(describe_module(self.state, self.module, self.room))


def describe_module(state: ExplorerState, module: Module, width: int) -> list[TextRow]:
    """The rows of the details panel."""
    hooks = (text(harmless(hook), "name") for hook in module.hooks)
    problem = paragraph(harmless(module.problem), width, "problem") if module.problem else ()
    return sections(
        _identity(state, module, width),
        section("Problem", problem),
        section("Also in this file", _also_in_file(state, module, width)),
        describe_change(state, module, width),
        section("Size", _totals(state, module)),
        section("Tensors", _tensors(state, module)),
        _last_call(state, module, width),
        section("Inherits", _inheritance(state, module)),
        section("Hooks", hooks),
    )


def _identity(state: ExplorerState, module: Module, width: int) -> Iterator[TextRow]:
    model = state.model
    yield text(harmless(module.path or model.name), "path")
    extra = f"({harmless(module.extra)})" if module.extra else ""
    yield from map(TextRow, wrap([(harmless(module.kind), "class"), (extra, "extra")], width, "  "))
    package = module.class_name.rpartition(".")[0]
    # The groups of a checkpoint have no class and no mode.
    if package:
        peers = len(state.outline.by_class[module.class_name])
        instances = "1 instance" if peers == 1 else f"{peers:,} instances"
        mode = "training" if module.training else "eval"
        yield from paragraph(f"{harmless(package)} · {mode} · {instances}", width, "muted")
    if module.alias_of is not None:
        first = model[module.alias_of].path
        name = harmless(first) or "the model itself"
        yield TextRow([(f"{SHARED} same module as ", "note"), (name, "name")], first)


def _also_in_file(state: ExplorerState, module: Module, width: int) -> Iterator[TextRow]:
    """What a checkpoint contains besides the model. Parts with tensors are in the tree."""
    parts = state.model.also_in_file if module.parent is None else ()
    for part in parts[:_MOST_VALUES]:
        for row in paragraph(part_text(part), width, "name" if part.path else "plain", "  "):
            yield TextRow(row.pieces, part.path or None)
    yield from _more(len(parts) - _MOST_VALUES)


def _more(count: int) -> Iterator[TextRow]:
    if count > 0:
        yield text(f"and {count:,} more", "muted")


def describe_change(state: ExplorerState, module: Module, width: int) -> Iterator[TextRow]:
    """How a module differs from the other model; nothing if it does not."""
    comparison = state.comparison
    if comparison is None:
        return
    change = comparison.changes.get(module.path)
    inside = comparison.below.get(module.path, 0)
    if change is not None:
        yield heading(change.verdict.capitalize(), _CHANGE_NOTES[change.verdict])
        if change.verdict == "changed":
            yield from _differences(change, width)
    elif inside:
        yield heading("No direct changes")
    if inside:
        yield text(f"{inside:,} changed below")


def _differences(change: ModuleChange, width: int) -> Iterator[TextRow]:
    if change.path_before:
        yield from paragraph(f"previous path: {harmless(change.path_before)}", width)
    if change.sharing:
        yield from paragraph(harmless(change.sharing), width)
    if change.class_before:
        yield from paragraph(f"previous class: {harmless(change.class_before)}", width)
    if change.extra_before is not None:
        yield from paragraph(f"previous settings: {harmless(change.extra_before) or 'none'}", width)
    cells = []
    for slot in change.slots:
        before, arrow = (_spec(slot.before), "→") if slot.before != slot.after else ("", "")
        distance = "" if slot.distance is None else distance_text(slot.distance)
        cells.append((slot.name, before, arrow, _spec(slot.after), distance))
    styles = ("name", "shape", "muted", "shape", "number")
    columns = list(zip(*cells, strict=True))
    filled = [at for at, column in enumerate(columns) if any(column)]
    lines = zip(*(columns[at] for at in filled), strict=True)
    yield from map(TextRow, table(list(lines), " ".join(styles[at] for at in filled)))
    for slot in change.slots:
        yield from _histograms(slot)


def _histograms(slot: SlotChange) -> Iterator[TextRow]:
    """The distribution of the values of a tensor before and after, in the same bins."""
    found = slot.histograms
    if found is None:
        return
    yield text(f"{slot.name} from {found.low:.3g} to {found.high:.3g}", "muted")
    for word, counts in (("old", found.before), ("new", found.after)):
        bars = sparkline(counts, len(counts))
        yield text(f"{word}  {bars}", "spark")


def _spec(spec: TensorSpec | None) -> str:
    return "none" if spec is None else f"{shape_text(spec)} {spec.dtype}"


def _totals(state: ExplorerState, module: Module) -> Iterator[TextRow]:
    counts = state.counts(module)
    if counts is None:
        return
    lines: list[list[str | TableCell]] = [["", "own", "total"]]
    for title, style, number in _SIZES:
        own, total = number(counts.own), number(counts.total)
        if title in ("parameters", "memory") or total != number(Counts()):
            lines.append([title, TableCell(own, style, True), TableCell(total, style, True)])
    yield from map(TextRow, table(lines, "muted >muted >muted", gap=3))
    parameters = counts.total.parameters
    for of, whole in _wholes(state, module):
        if parameters and whole.total.parameters:
            share = f" {format_share(parameters, whole.total.parameters):>4}"
            bar = meter(parameters / whole.total.parameters, 12)
            yield TextRow([*bar, (share, "number"), (f" of {of}", "muted")])
    if counts.per_use.parameters != parameters:
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
    cells = [(slot.name, *_spec_cells(slot.spec), _standing(slot)) for slot in shown]
    for slot, line in zip(shown, table(cells, "name shape dtype >bytes muted"), strict=True):
        yield TextRow(line)
        for place in tied_to(state.model, module, slot):
            # The path of the module is followed by the name of the tensor.
            yield TextRow([(f"  {TIED} {harmless(place)}", "note")], place.rpartition(".")[0])
    yield from _more(len(module.slots) - _MOST_SLOTS)


def _spec_cells(spec: TensorSpec) -> tuple[str, str, str]:
    return shape_text(spec), spec.dtype, format_bytes(spec.bytes)


def _standing(slot: Slot) -> str:
    """What is special about a tensor: not a trainable parameter in CPU memory."""
    words = []
    if slot.role != "parameter":
        words.append(slot.role if slot.persistent else f"{slot.role}, not saved")
    elif not slot.trainable:
        words.append("frozen")
    words += [slot.spec.device] if slot.spec.device != "cpu" else []
    words += [slot.spec.layout] if slot.spec.layout != "strided" else []
    return ", ".join(words)


def _last_call(state: ExplorerState, module: Module, width: int) -> list[TextRow]:
    """The inputs and outputs of the last recorded call."""
    path = state.path_of_calls(module)
    recorded, trace = state.statistics.get(path), state.traced_forward
    calls = recorded.calls if recorded else trace.calls.get(path, ()) if trace else ()
    if not calls:
        return []
    cells = [
        (join_path(side, value.place), *_spec_cells(value.spec))
        for side, values in (("input", calls[-1].inputs), ("output", calls[-1].outputs))
        for value in values[:_MOST_VALUES]
    ]
    rows = map(TextRow, table(cells, "muted shape dtype >bytes"))
    return [
        heading("Last call", f"of {len(calls):,}" if len(calls) > 1 else ""),
        *rows,
        *_receptive_field(state, path, width),
    ]


def _receptive_field(state: ExplorerState, path: str, width: int) -> Iterator[TextRow]:
    """The part of the model's input that an output of a module depends on."""
    trace = state.traced_forward
    op = trace.output_op(path) if trace else None
    field = trace.known_field(op) if trace is not None and op is not None else None
    if field:
        yield from paragraph(harmless(f"receptive field {field}"), width, "muted", "  ")


def _inheritance(state: ExplorerState, module: Module) -> Iterator[TextRow]:
    source = state.model.classes.get(module.class_name)
    if source is None or not source.ancestors:
        return
    names = [module.class_name, *(one.class_name for one in source.ancestors)]
    for depth, name in enumerate(names):
        package, _, kind = name.rpartition(".")
        guide = "  " * (depth - 1) + "└ " if depth else ""
        style = "plain" if depth else "class"
        yield TextRow(
            [(guide, "faint"), (harmless(kind), style), (f"  {harmless(package)}", "muted")]
        )


_SIZES: tuple[tuple[str, str, Callable[[Counts], str]], ...] = (
    ("parameters", "number", lambda counts: format_count(counts.parameters)),
    ("trainable", "number", lambda counts: format_count(counts.trainable)),
    ("frozen", "number", lambda counts: format_count(counts.frozen)),
    ("buffers", "number", lambda counts: format_count(counts.buffers)),
    ("memory", "bytes", lambda counts: format_bytes(counts.bytes)),
)


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
            path = harmless(self.module.path or "The model")
            self.say(f"{path} did not run in the recorded forward.")


def describe_performance(
    state: ExplorerState, module: Module, width: int, *, differences: bool
) -> list[TextRow]:
    """The rows of the performance panel."""
    path = state.path_of_calls(module)
    measures, measured = state.document(Measures), state.measures.get(path)
    statistics = state.statistics.get(path)
    notes = measures.notes if measures and measured else ()
    return sections(
        shared_note(state, module, width),
        _costs(measured, state.measures.get("")) if measured else _traced(state, path),
        [row for note in notes for row in paragraph(harmless(note), width, "muted")],
        _calls(statistics, width, differences=differences) if statistics else (),
    )


def _costs(measured: ModuleMeasure, whole: ModuleMeasure | None) -> Iterator[TextRow]:
    yield heading("Fastest run", f"{measured.calls:,} call{'s' * (measured.calls != 1)}")
    lines: list[Sequence[str | TableCell]] = []
    shares = []
    for title, name, style, write in _COSTS:
        total, own = getattr(measured, f"total_{name}"), getattr(measured, f"self_{name}", None)
        if total is None:
            continue
        of = getattr(whole, f"total_{name}") if whole else None
        self_cell = TableCell(_NOTHING if own is None else write(own), style, True)
        share = format_share(total, of) if of else ""
        lines.append((title, TableCell(write(total), style, True), self_cell, share))
        shares.append(min(total / of, 1.0) if of else 0.0)
    if not lines:
        yield text("not measured", "muted")
        return
    head = [TableCell(word, "header", bool(word)) for word in ("", "total", "self", "share")]
    first, *rest = table([head, *lines], "muted >plain >plain >muted")
    yield TextRow(first)
    for line, share_of_whole in zip(rest, shares, strict=True):
        yield TextRow([*line, *meter(share_of_whole, 10)])


def _traced(state: ExplorerState, path: str) -> Iterator[TextRow]:
    """The time of a module in a trace, where it was not measured."""
    trace = state.traced_forward
    calls = trace.calls.get(path, ()) if trace else ()
    if trace is None or not calls:
        return
    total = sum(call.total_ns for call in calls)
    share = format_share(total, sum(call.total_ns for call in trace.calls.get("", ())))
    yield heading("One traced forward", "times include tracing")
    cells = [("calls", f"{len(calls):,}", ""), ("forward", format_time(total / 1e9), share)]
    yield from map(TextRow, table(cells, "muted >number >muted"))


def _calls(statistics: ModuleStatistics, width: int, *, differences: bool) -> Iterator[TextRow]:
    totals = statistics.totals
    beside = f"{totals.calls:,} in total, {format_time(totals.total_ns / 1e9)} while recording"
    if totals.failed:
        beside += f", {totals.failed:,} raised"
    yield heading("Differences from the previous call" if differences else "Calls", beside)
    shown = statistics.calls[-_MOST_CALLS:]
    if len(shown) < totals.calls:
        yield text(f"last {len(shown):,} calls", "muted")
    left = ("", "shape")
    lines = [[TableCell(word, "header", word not in left) for word in _HEADINGS]]
    for before, call in zip([None, *shown[:-1]], shown, strict=True):
        lines += _call_lines(call, before, differences=differences)
    drawn = table(lines)
    if line_width(drawn[0]) > width:
        drawn = table(lines, gap=1)
    yield from map(TextRow, drawn)


_HEADINGS = ("call", "time", "", "shape", *_NUMBERS)


def _call_lines(
    call: ForwardStats, before: ForwardStats | None, *, differences: bool
) -> Iterator[list[TableCell]]:
    """A line for each tensor of a call; the first has the time."""
    number = TableCell(f"{call.number}", "number", True)
    start = [number, _time(call, before, differences)]
    for side, word in (("inputs", "in"), ("outputs", "out")):
        tensors: Sequence[CallTensor] = getattr(call, side)
        earlier: Sequence[CallTensor] = getattr(before, side) if before else ()
        for at, tensor in enumerate(tensors):
            other = earlier[at] if at < len(earlier) else None
            same = differences and other is not None and other.spec.shape == tensor.spec.shape
            shape = "same" if same else shape_text(tensor.spec)
            place = f" {harmless(tensor.place)}" if len(tensors) > 1 and tensor.place else ""
            yield [
                *start,
                TableCell(word + place, "muted"),
                TableCell(shape, "faint" if same else "shape"),
                *_stats_cells(tensor.stats, other.stats if other else None, differences),
            ]
            start = [TableCell("", "number", True), TableCell("", "plain", True)]
    if call.error:
        error = [TableCell("✗", "problem"), TableCell(harmless(call.error), "problem")]
        yield [number, TableCell(""), *error, *[TableCell("")] * len(_NUMBERS)]


def _stats_cells(stats: Stats | None, before: Stats | None, differences: bool) -> list[TableCell]:
    cells = []
    for name in _NUMBERS:
        value = getattr(stats, name) if stats else math.nan
        if differences:
            change = value - (getattr(before, name) if before else math.nan)
            words = _NOTHING if math.isnan(change) else f"{change:+.3g}"
            style = "faint" if math.isnan(change) or change == 0 else "plain"
        else:
            words = _NOTHING if math.isnan(value) else f"{value:.4g}"
            style = "problem" if stats is not None and (stats.nan or stats.inf) else "plain"
        cells.append(TableCell(words, style, True))
    return cells


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
