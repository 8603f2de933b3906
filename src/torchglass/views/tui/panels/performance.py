"""The panel of time, memory and FLOPs of a module, and of its calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

from torchglass.records.calls import CallTensor, ForwardStats, ModuleStatistics, Statistics
from torchglass.records.measures import Measures, ModuleMeasure
from torchglass.records.model import Module
from torchglass.records.tensors import Stats
from torchglass.records.trace import TraceRecord
from torchglass.views.formats import (
    format_bytes,
    format_count,
    format_share,
    format_time,
    harmless,
    shape_text,
)
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.keys import panel_bindings
from torchglass.views.tui.panels.op_flow import shared_note, traced_forward
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.text_rows import (
    TableCell,
    TextRow,
    heading,
    line_width,
    meter,
    paragraph,
    sections,
    table,
    text,
)

_METER = 10
_MOST_CALLS = 500
_NUMBERS = ("min", "max", "mean", "std")
_NOTHING = "–"


class PerformancePanel(Panel):
    """Time, memory and FLOPs of a module, and a table of its calls."""

    key: ClassVar[str] = "P"
    title: ClassVar[str] = "Performance"
    missing: ClassVar[str] = "No forward recorded: use tg.explore(model, *inputs) or --input"
    BINDINGS: ClassVar = panel_bindings("panel:calls")

    def __init__(self, state: ExplorerState) -> None:
        super().__init__(state)
        self._differences = False

    @classmethod
    def available(cls, state: ExplorerState) -> bool:
        measured = state.document(Measures) or state.document(Statistics)
        return measured is not None or state.document(TraceRecord) is not None

    def extra_places(self) -> Iterable[str]:
        statistics = self.state.statistics(self.state.path_of_calls(self.module))
        if statistics is not None and len(statistics.calls) > 1:
            yield "panel:calls"

    def action_differences(self) -> None:
        self._differences = not self._differences
        self.follow(False)

    def follow(self, moved: bool) -> None:
        rows = describe(self.state, self.module, self.room, differences=self._differences)
        if len(rows) > len(list(shared_note(self.state, self.module, self.room))):
            self.put(rows)
        else:
            self.say(
                f"{harmless(self.module.path or 'The model')} did not run in the recorded forward."
            )


def describe(
    state: ExplorerState, module: Module, width: int, *, differences: bool
) -> list[TextRow]:
    """The rows of a module."""
    measures = state.document(Measures)
    path = state.path_of_calls(module)
    measured, whole = state.measured(path), state.measured("")
    statistics = state.statistics(path)
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
        yield TextRow([*line, *meter(share, _METER)])


def _traced(state: ExplorerState, module: Module) -> Iterator[TextRow]:
    """The time of a module in a trace, where it was not measured."""
    trace = traced_forward(state)
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
