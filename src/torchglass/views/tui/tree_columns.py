"""The columns of the tree: one table for the tree, the label panel, sorting, export, help and docs.

A row of the tree is a module, or several consecutive modules of the same build. To add a column,
add one entry to `COLUMNS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Literal

import numpy as np
from rich.cells import cell_len

from torchglass.analyse.model_diff import ModuleChange, SlotChange
from torchglass.analyse.parameters import ModuleCounts
from torchglass.analyse.pixels import squeeze
from torchglass.records.measures import ReportRecord
from torchglass.records.model import Module, TensorSpec
from torchglass.records.run import Series
from torchglass.tables.text import (
    format_bytes,
    format_count,
    format_share,
    format_time,
    harmless,
    shape_text,
    sparkline,
)
from torchglass.views.model_text import brief
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.styled_text import Piece, bar

RowModules = Sequence[Module]
"""The modules of one row of the tree; the first one stands for all."""
Number = Callable[[ExplorerState, Module], float | None]
Group = Literal[
    "name", "class", "args", "parameters", "size", "memory", "device", "shapes",
    "flow", "time", "flops", "gradients", "notes", "change", "report",
]  # fmt: skip
"""The columns of a group are shown and hidden with one key."""

_BAR, _SHARE = 6, 5
_SPARK, _VALUE = 8, 8
"""The cells of a sparkline, and of the latest value beside it."""
_MOST_SLOTS = 8
_MOST_KINDS = 2
_WIDEST_REPORT = 24


@dataclass(frozen=True, kw_only=True)
class TreeColumn:
    """One column. It has a `number`, a `text`, or `pieces` of text in several styles."""

    id: str
    title: str
    """Above the column."""
    name: str
    """In the label panel."""
    group: Group
    number: Number | None = None
    format: Callable[[float], str] = str
    combine: Callable[[Sequence[float]], float | None] = sum
    """The number of several modules that share a row."""
    is_share: bool = False
    """Whether it is drawn as a bar, the share of the whole model's number."""
    text: Callable[[ExplorerState, Module], str] | None = None
    pieces: Callable[[ExplorerState, Module], Sequence[Piece]] | None = None
    first_of_row: bool = False
    """Whether a row shows its first text; otherwise only a text that all its modules share."""
    rank: Number | None = None
    """What pieces are sorted by; None sorts them by their text."""
    is_right: bool = False
    """Whether pieces are aligned at the right."""
    style: str = "plain"
    cells: int
    """The width; the maximum width where `texts` or a `text` decide it."""
    least: int = 0
    """The width that it may be cut to where not all columns fit; 0 if it may not."""
    texts: Callable[[ExplorerState], Iterable[str]] | None = None
    """All texts of the column, where that is quicker than asking each module."""
    applies: Callable[[ExplorerState], bool] = lambda state: True
    """Whether there is anything to show in it."""
    series: Callable[[ExplorerState, Module], Series | None] | None = None
    """What has to be read of a run to draw it."""
    prefix: str = ""
    """Before the value, where columns are not aligned and have no title."""
    usual: bool = False
    """Whether it is shown until the user hides it."""
    with_key: bool = True
    """Whether the key of its group shows it, until the user chooses otherwise."""
    example: str
    """For the documentation."""
    export_name: str = ""
    """Its name in a file, with the unit; "" for its id."""
    per_unit: float = 1.0
    """How many of the number make one unit of the file: 1e6 ns = 1 ms."""

    @property
    def right(self) -> bool:
        """Whether it is aligned at the right."""
        return self.is_right or (self.number is not None and not self.is_share)

    def width(self, state: ExplorerState) -> int:
        """The cells that it needs."""
        if self.texts is not None:
            texts = self.texts(state)
        elif self.text is not None:
            texts = [self.text(state, module) for module in state.model.modules]
        else:
            return self.cells
        longest = max(map(cell_len, set(texts)), default=0)
        return min(max(longest, cell_len(self.title)), self.cells)

    def draw(self, state: ExplorerState, row: RowModules) -> Sequence[Piece]:
        """The styled text of a row."""
        if self.number is None:
            return self._draw_text(state, row)
        value = self._total(state, row, self.number)
        # The number of a shared module is counted elsewhere, and pale here.
        pale = row[0].alias_of is not None
        if not self.is_share:
            return () if value is None else [(self.format(value), "shared" if pale else self.style)]
        whole = self.number(state, state.model.root)
        if not value or not whole:
            return ()
        share = min(value / whole, 1.0)
        filled, rest = bar(share, _BAR)
        return [
            (filled, "shared" if pale else heat_style(share)),
            (rest, "guide"),
            (f"{format_share(value, whole):>{_SHARE}}", "shared" if pale else "share"),
        ]

    def _draw_text(self, state: ExplorerState, row: RowModules) -> Sequence[Piece]:
        drawn = [self._pieces(state, module) for module in row]
        if self.first_of_row:
            return next((pieces for pieces in drawn if pieces and pieces[0][0]), ())
        return drawn[0] if all(pieces == drawn[0] for pieces in drawn[1:]) else ()

    def _pieces(self, state: ExplorerState, module: Module) -> Sequence[Piece]:
        if self.pieces is not None:
            return self.pieces(state, module)
        return [(self.text(state, module), self.style)] if self.text else ()

    def _total(self, state: ExplorerState, row: RowModules, number: Number) -> float | None:
        """The number of all modules in a row, each shared module counted once."""
        if len(row) == 1:
            return number(state, row[0])
        numbers = [number(state, module) for module in row if module.alias_of is None]
        known = [one for one in numbers if one is not None]
        return self.combine(known) if known else None

    def plain(self, state: ExplorerState, row: RowModules) -> str:
        """The text of a row, without styles."""
        return "".join(text for text, _ in self.draw(state, row))

    def value(self, state: ExplorerState, row: RowModules) -> float | str | None:
        """The value of a row in a file."""
        if self.number is None:
            ranked = self.rank(state, row[0]) if self.rank and len(row) == 1 else None
            return self.plain(state, row).strip() or None if ranked is None else ranked
        value = self._total(state, row, self.number)
        if value is None:
            return None
        if self.is_share:
            whole = self.number(state, state.model.root)
            return value / whole if whole else None
        return value if self.per_unit == 1.0 else value / self.per_unit

    @property
    def file_heading(self) -> str:
        """Its name in a file."""
        return self.export_name or self.id.replace(" ", "_")


def heat_style(share: float) -> str:
    """The color of a share, from 0 to 1: hotter means more."""
    return f"heat{sum(share >= limit for limit in (0.02, 0.1, 0.25, 0.5))}"


# What the columns show


def _counted(what: str) -> Number:
    """A count of a module, like "own.bytes"; None until the model is counted."""
    read: Callable[[ModuleCounts], int] = attrgetter(what)

    def number(state: ExplorerState, module: Module) -> float | None:
        counts = state.counts(module)
        return None if counts is None else read(counts)

    return number


def _measured(what: str) -> Number:
    """An attribute of a module's activity."""
    return lambda state, module: getattr(state.activity(module), what)


def _known(field: str) -> Callable[[ExplorerState], bool]:
    """Whether this field is known of any module's activity."""
    return lambda state: state.has_activity(field)


def _uncombined(numbers: Sequence[float]) -> None:
    """For numbers that cannot be added up."""


def _count(value: float) -> str:
    return format_count(int(value))


def _time(nanoseconds: float) -> str:
    return format_time(nanoseconds / 1e9)


def _is_update(series: Series) -> bool:
    return series.name.endswith(".update")


def _update_series(state: ExplorerState, module: Module) -> Series | None:
    """The update ratio of a module's first parameter over steps."""
    return next(filter(_is_update, state.series_at(module)), None)


def _update(state: ExplorerState, module: Module) -> float | None:
    series = _update_series(state, module)
    if series is None or not len(values := state.values(series)):
        return None
    return float(values[-1])


def format_value(value: float) -> str:
    """A measured number with three digits."""
    return f"{value:.3g}"


def _args(state: ExplorerState, module: Module) -> str:
    """The settings of a module, short."""
    whole = brief(module.kind, module.extra)
    return whole[len(harmless(module.kind)) :].strip("()")


def _all_args(state: ExplorerState) -> Iterable[str]:
    known = {(module.kind, module.extra): module for module in state.model.modules}
    return [_args(state, module) for module in known.values()]


def _common(kinds: Sequence[str]) -> str:
    return harmless(", ".join(kinds)) if len(kinds) <= _MOST_KINDS else "mixed"


def shapes(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """The names and shapes of a module's own tensors."""
    pieces: list[Piece] = []
    for slot in module.slots[:_MOST_SLOTS]:
        gap = ", " if pieces else ""
        pieces += [(f"{gap}{harmless(slot.name)} ", "slot"), (shape_text(slot.spec), "shape")]
    return pieces


def _first_shape(specs: Sequence[TensorSpec]) -> str:
    """The first shape, and how many more there are."""
    if not specs:
        return ""
    return shape_text(specs[0]) + (f" +{len(specs) - 1}" if len(specs) > 1 else "")


def _activity_dtypes(state: ExplorerState, module: Module) -> str:
    seen = state.activity(module)
    kinds = dict.fromkeys(spec.dtype for spec in (*seen.inputs, *seen.outputs) if spec.dtype)
    return harmless("/".join(kinds))


def _trend(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """The gradient of a module's first parameter over steps, and its latest value."""
    series = state.trend(module)
    if series is None or not len(values := state.values(series)):
        return ()
    return [
        (f"{sparkline(squeeze(values, _SPARK), _SPARK):<{_SPARK + 1}}", "spark"),
        (f"{format_value(values[-1]):<{_VALUE}}", "value"),
    ]


def _notes(state: ExplorerState, module: Module) -> Sequence[Piece]:
    note = harmless(state.note(module))
    return [(note, state.note_style(module))]


def _change(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """How a module differs from the other model, and how many modules below it do."""
    if state.comparison is None:
        return ()
    change = state.comparison.changes.get(module.path)
    below = state.comparison.below.get(module.path, 0)
    pieces = [(_change_text(change), state.change_style(module))] if change else []
    if below:
        pieces.append((f"{'  ' if pieces else ''}{below:,} below", "share"))
    return pieces


def _changes(state: ExplorerState) -> Iterable[str]:
    if state.comparison is None:
        return ()
    paths = {*state.comparison.changes, *state.comparison.below}
    modules = filter(None, map(state.model.find, paths))
    return ["".join(text for text, _ in _change(state, module)) for module in modules]


def _change_text(change: ModuleChange) -> str:
    if change.verdict != "changed":
        mark = "+" if change.verdict == "added" else "−"
        return f"{mark} {change.verdict}"
    words = [f"was {change.path_before}"] if change.path_before else []
    words += [f"was {change.class_before.rpartition('.')[2]}"] if change.class_before else []
    words += [_slot_change(slot) for slot in change.slots]
    words += [change.sharing] if change.sharing else []
    # A changed shape usually means changed settings, and says more.
    if change.extra_before is not None and not words:
        words.append(f"was ({change.extra_before})")
    return harmless("≠ " + ", ".join(words))


def _distance(state: ExplorerState, module: Module) -> float | None:
    change = state.comparison.changes.get(module.path) if state.comparison else None
    distance = change.distance if change else None
    # A tensor with NaN on one side, or that was all zeros, changed most.
    return math.inf if distance is not None and math.isnan(distance) else distance


def _distance_piece(state: ExplorerState, module: Module) -> Sequence[Piece]:
    distance = _distance(state, module)
    if distance is None:
        return ()
    text = format_value(distance) if math.isfinite(distance) else "∞"
    return [(text, state.change_style(module))]


def _module_before(state: ExplorerState, module: Module) -> Module | None:
    """The module of the old model that a row of a comparison shows."""
    both = state.comparison
    if both is None:
        return None
    change = both.changes.get(module.path)
    if change is not None and change.verdict == "added":
        return None
    return both.before.find(both.pairs.get(module.path, module.path))


def _module_after(state: ExplorerState, module: Module) -> Module | None:
    """The module of the new model that a row of a comparison shows."""
    both = state.comparison
    change = both.changes.get(module.path) if both else None
    return None if change is not None and change.verdict == "removed" else module


def name_before(state: ExplorerState, module: Module) -> str:
    """The name of a module in the old model; its path if it moved, "" if it was added."""
    before = _module_before(state, module)
    change = state.comparison.changes.get(module.path) if state.comparison else None
    if before is None:
        return ""
    if before.parent is None and state.comparison is not None:
        return state.comparison.before.name
    return before.path if change and change.path_before else before.name


def _description(module: Module) -> str:
    """The class and the settings of a module; its tensors if it is of a checkpoint."""
    if "." in module.class_name:
        return harmless(brief(module.kind, module.extra))
    return ", ".join(f"{harmless(slot.name)} {shape_text(slot.spec)}" for slot in module.slots)


def _before_pieces(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """What a module was."""
    before, after = _module_before(state, module), _module_after(state, module)
    if before is None:
        return ()
    words = _description(before)
    is_same = after is not None and words == _description(after)
    style = "removed" if after is None else "share" if is_same else "changed"
    return [(words, style)]


def _after_pieces(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """What a module is; where there is room for both trees, also its name in the new one."""
    before, after = _module_before(state, module), _module_after(state, module)
    edge: list[Piece] = [("│ ", "guide")] if state.side_by_side else []
    if after is None:
        return edge
    words = _description(after)
    is_same = before is not None and words == _description(before)
    style = "added" if before is None else "share" if is_same else "changed"
    if not state.side_by_side:
        return [(words, style)]
    depth = state.outline.depths[module.id]
    name = harmless(after.name or state.model.name)
    return [
        *edge,
        ("│ " * depth, "guide"),
        (f"{name}  ", state.change_style(module)),
        (words, style),
    ]


def _slot_change(slot: SlotChange) -> str:
    if slot.before is None or slot.after is None:
        return f"{'+' if slot.before is None else '−'}{slot.name}"
    if slot.before.shape != slot.after.shape:
        return f"{slot.name} {shape_text(slot.before)} → {shape_text(slot.after)}"
    if slot.before.dtype != slot.after.dtype:
        return f"{slot.name} {slot.before.dtype} → {slot.after.dtype}"
    return f"{slot.name} {distance_text(slot.distance or 0.0)}"


def distance_text(distance: float) -> str:
    """The distance of two tensors, relative to the norm of the old one."""
    if math.isnan(distance):
        return "NaN or Inf on one side"
    return "was all zeros" if math.isinf(distance) else f"Δ {format_value(distance)}"


def _descriptions(
    side: Callable[[ExplorerState, Module], Module | None],
) -> Callable[[ExplorerState], Iterable[str]]:
    """All texts of one side of a comparison."""

    def texts(state: ExplorerState) -> Iterable[str]:
        is_tree = state.side_by_side and side is _module_after
        found = {}
        for row in state.model.modules:
            if (module := side(state, row)) is not None:
                indent = 2 * state.outline.depths[row.id] + 4 + len(module.name) if is_tree else 0
                slots = () if "." in module.class_name else module.slots
                found[module.kind, module.extra, slots, indent] = module
        return [" " * indent + _description(one) for (*_, indent), one in found.items()]

    return texts


_comparison_column = partial(
    TreeColumn, group="change", usual=True, applies=lambda state: state.comparison is not None
)
_share_column = partial(TreeColumn, is_share=True, cells=_BAR + _SHARE)
_memory_column = partial(TreeColumn, group="memory", format=format_bytes, cells=9, style="bytes")
_time_column = partial(TreeColumn, group="time", format=_time, cells=9, style="time", per_unit=1e6)
# fmt: off
NAME = TreeColumn(
    id="name", title="name", name="Module Name", group="name", usual=True, cells=40, style="name",
    pieces=lambda state, module: [(harmless(module.name), "name")], example="layer1",
)
COLUMNS: tuple[TreeColumn, ...] = (
    _comparison_column(
        id="a", title="a", name="Old Module", pieces=_before_pieces, cells=28, least=12,
        texts=_descriptions(_module_before), example="Linear(16→4)",
    ),
    _comparison_column(
        id="b", title="b", name="New Module", pieces=_after_pieces, cells=48, least=12,
        texts=_descriptions(_module_after), example="Linear(16→5)",
    ),
    _comparison_column(
        id="distance", title="Δ", name="Distance", pieces=_distance_piece, rank=_distance,
        cells=8, is_right=True, example="0.012",
    ),
    _comparison_column(
        id="change", title="change", name="Change", pieces=_change, cells=36, least=12,
        texts=_changes, style="changed", example="≠ weight Δ 0.012",
    ),
    TreeColumn(
        id="class", title="class", name="Module Type", group="class", usual=True, cells=22,
        style="class",
        text=lambda state, module: harmless(module.kind), example="Conv2d",
        texts=lambda state: [harmless(name.rpartition(".")[2]) for name in state.outline.by_class],
    ),
    TreeColumn(
        id="args", title="args", name="Module Args", group="args", cells=30,
        text=_args, texts=_all_args, style="args", example="3→64, 7×7",
    ),
    TreeColumn(
        id="trend", title="gradient std", name="Gradient Trend", group="gradients", usual=True,
        pieces=_trend, cells=_SPARK + 1 + _VALUE, style="spark",
        applies=ExplorerState.has_trends, series=ExplorerState.trend,
        export_name="gradient_std", example="▇▅▃▂▂▁▁▁",
    ),
    TreeColumn(
        id="update", title="update", name="Update Ratio", group="gradients",
        number=_update, format=format_value, combine=_uncombined, cells=9, style="value",
        applies=lambda state: any(map(_is_update, state.all_series())), series=_update_series,
        prefix="update=", export_name="update_ratio", example="0.0012",
    ),
    TreeColumn(
        id="params", title="params", name="Parameter Count", group="parameters", usual=True,
        number=_counted("total.parameters"), format=_count, cells=7, style="count", example="9.4K",
    ),
    _share_column(
        id="params share", title="share", name="Parameter Share", group="parameters", usual=True,
        number=_counted("total.parameters"), style="heat3", example="━━╸─── 41%",
    ),
    TreeColumn(
        id="own params", title="own", name="Own Parameters", group="parameters", with_key=False,
        number=_counted("own.parameters"), format=_count, cells=7, style="own",
        prefix="self=", example="128",
    ),
    _memory_column(
        id="bytes", title="memory", name="Memory Usage", group="size", usual=True,
        number=_counted("total.bytes"), example="36.8 KB",
    ),
    _share_column(
        id="bytes share", title="of memory", name="Memory Share", group="memory",
        number=_counted("total.bytes"), style="heat2", example="━╸──── 25%",
    ),
    _memory_column(
        id="own bytes", title="own", name="Own Memory",
        number=_counted("own.bytes"), prefix="self=", example="512 B",
    ),
    _memory_column(
        id="in bytes", title="in mem", name="Input Memory", number=_measured("input_bytes"),
        applies=_known("inputs"), style="in", prefix="in_mem=", export_name="input_bytes",
        example="784.0 KB",
    ),
    _memory_column(
        id="out bytes", title="out mem", name="Output Memory", number=_measured("output_bytes"),
        applies=_known("outputs"), style="out", prefix="out_mem=", export_name="output_bytes",
        example="784.0 KB",
    ),
    _memory_column(
        id="activations", title="saved", name="Saved Activations", cells=10,
        number=_measured("activation_bytes"), applies=_known("activation_bytes"),
        prefix="saved=", export_name="activation_bytes", example="3.1 MB",
    ),
    _memory_column(
        id="peak", title="peak", name="Peak Memory", number=_measured("peak_bytes"), combine=max,
        applies=_known("peak_bytes"), prefix="peak=", export_name="peak_bytes", example="9.2 MB",
    ),
    TreeColumn(
        id="device", title="device", name="Device", group="device", cells=16,
        style="device", text=lambda state, module: _common(state.devices(module)),
        texts=lambda state: map(_common, set(state.contents.devices if state.contents else ())),
        example="cuda:0",
    ),
    TreeColumn(
        id="dtype", title="dtype", name="Data Types", group="device", cells=17,
        style="dtype", text=lambda state, module: _common(state.dtypes(module)),
        texts=lambda state: map(_common, set(state.contents.dtypes if state.contents else ())),
        example="float32",
    ),
    TreeColumn(
        id="input", title="input", name="Input Shapes", group="flow", cells=28, style="in",
        text=lambda state, module: _first_shape(state.activity(module).inputs),
        applies=_known("inputs"), prefix="in=", example="1×64×56×56",
    ),
    TreeColumn(
        id="output", title="output", name="Output Shapes", group="flow", cells=28, style="out",
        text=lambda state, module: _first_shape(state.activity(module).outputs),
        applies=_known("outputs"), prefix="out=", example="1×64×56×56",
    ),
    TreeColumn(
        id="flow dtype", title="dtypes", name="Tensor Data Types", group="flow", cells=16,
        text=_activity_dtypes, style="dtype", applies=_known("inputs"), example="float16",
    ),
    TreeColumn(
        id="calls", title="calls", name="Call Count", group="flow",
        number=_measured("calls"), format=lambda value: f"{int(value):,}",
        cells=6, style="calls", applies=_known("calls"), prefix="calls=", example="4",
    ),
    _time_column(
        id="time", title="time", name="Total Time", usual=True, number=_measured("total_ns"),
        applies=_known("total_ns"), export_name="time_ms", example="1.23ms",
    ),
    _share_column(
        id="time share", title="of time", name="Time Share", group="time", style="heat4",
        number=_measured("total_ns"), applies=_known("total_ns"), example="━━━╸── 58%",
    ),
    _time_column(
        id="own time", title="self", name="Self Time", number=_measured("self_ns"),
        applies=_known("self_ns"), prefix="self=", export_name="self_time_ms", example="85.00μs",
    ),
    _time_column(
        id="mean time", title="per call", name="Time per Call", with_key=False, prefix="avg=",
        number=_measured("mean_ns"), applies=_known("total_ns"), combine=_uncombined,
        export_name="time_per_call_ms", example="0.31ms",
    ),
    _time_column(
        id="backward", title="backward", name="Backward Time", number=_measured("backward_ns"),
        applies=_known("backward_ns"), prefix="backward=", export_name="backward_time_ms",
        example="2.41ms",
    ),
    TreeColumn(
        id="flops", title="FLOPs", name="FLOPs", group="flops",
        number=_measured("flops"), applies=_known("flops"), format=_count, cells=7, style="flops",
        prefix="FLOPs=", example="236.0M",
    ),
    _share_column(
        id="flops share", title="of FLOPs", name="FLOPs Share", group="flops", style="heat3",
        number=_measured("flops"), applies=_known("flops"), example="━━──── 33%",
    ),
    TreeColumn(
        id="shapes", title="shapes", name="Parameter Shapes", group="shapes", cells=44,
        pieces=shapes, style="shape", example="weight 64×3×7×7",
    ),
    TreeColumn(
        id="notes", title="notes", name="Notes", group="notes", usual=True, cells=32,
        pieces=_notes, first_of_row=True, style="note",
        applies=ExplorerState.has_notes, example="= embed.weight",
    ),
)
# fmt: on
"""All columns but the name, which always comes first."""

BY_ID = {column.id: column for column in (NAME, *COLUMNS)}
USUAL: tuple[str, ...] = tuple(column.id for column in (NAME, *COLUMNS) if column.usual)


def report_columns(reports: Iterable[ReportRecord]) -> dict[str, TreeColumn]:
    """The columns of reports that are laid over the tree, by id."""
    columns = [
        _report_column(report, at) for report in reports for at in range(len(report.module_columns))
    ]
    return {column.id: column for column in columns}


def _report_column(report: ReportRecord, at: int) -> TreeColumn:
    heading = report.module_columns[at]
    texts = [heading.title, *(cells[at].text for cells in report.modules.values())]

    def pieces(state: ExplorerState, module: Module) -> Sequence[Piece]:
        cells = report.modules.get(state.path_of_calls(module))
        if cells is None:
            return ()
        cell = cells[at]
        return [(harmless(cell.text), "value" if cell.share is None else heat_style(cell.share))]

    def rank(state: ExplorerState, module: Module) -> float | None:
        cells = report.modules.get(state.path_of_calls(module))
        value = cells[at].value if cells else None
        return float(value) if isinstance(value, (int, float)) else None

    has_numbers = any(isinstance(one[at].value, (int, float)) for one in report.modules.values())
    return TreeColumn(
        id=f"{report.kind} {heading.title}",
        title=heading.title,
        name=f"{report.kind}: {heading.title}",
        group="report",
        pieces=pieces,
        rank=rank if has_numbers else None,
        is_right=heading.right,
        cells=min(max(map(cell_len, texts)), _WIDEST_REPORT),
        prefix=f"{heading.title}=",
        usual=True,
        example="48 dB",
    )


WHY_EMPTY: dict[Group, str] = {
    "flow": "No forward recorded: use tg.explore(model, *inputs) or --input",
    "time": "No times measured: use tg.explore(model, *inputs) or --input",
    "flops": "No FLOPs counted: use tg.explore(model, *inputs) or --input",
    "gradients": "No gradients recorded: train with tg.watch(model)",
}
"""Why a group has no columns to show, and what to do about it."""


@dataclass(frozen=True, kw_only=True)
class ColumnChoice:
    """Which columns the user wants to see, and in which order."""

    order: tuple[str, ...] = tuple(column.id for column in COLUMNS)
    """All columns but the name."""
    shown: frozenset[str] = frozenset(USUAL)
    aligned: bool = True
    """Whether columns are aligned over the whole tree."""
    hidden_by_key: Mapping[Group, frozenset[str]] = field(default_factory=dict)
    """What the key of a group hid, and shows again."""
    of_reports: Mapping[str, TreeColumn] = field(default_factory=dict)
    """The columns of the reports of this session, by id."""

    def with_reports(self, columns: Mapping[str, TreeColumn]) -> ColumnChoice:
        """With the columns of reports, shown after the name."""
        order = (*columns, *self.order)
        return replace(self, order=order, shown=self.shown | columns.keys(), of_reports=columns)

    @property
    def without_reports(self) -> ColumnChoice:
        """What is remembered for the next session."""
        order = tuple(one for one in self.order if one not in self.of_reports)
        return replace(self, order=order, shown=self.shown - self.of_reports.keys(), of_reports={})

    def column(self, id: str) -> TreeColumn:
        return self.of_reports.get(id) or BY_ID[id]

    @property
    def all(self) -> list[TreeColumn]:
        """Every column, the name first."""
        return [NAME, *map(self.column, self.order)]

    def columns(self, state: ExplorerState) -> list[TreeColumn]:
        """The columns to show beside the names, without those that would be empty."""
        shown = (self.column(one) for one in self.order if one in self.shown)
        return [column for column in shown if column.applies(state)]

    def toggled(self, id: str) -> ColumnChoice:
        """With one column shown or hidden."""
        return replace(self, shown=self.shown ^ {id})

    def with_group_toggled(self, group: Group, state: ExplorerState) -> ColumnChoice:
        """Hide the columns of a group if any of them is visible, else show them.

        If only some columns of an unusual group are visible, the others are shown first.
        """
        members = [column for column in COLUMNS if column.group == group]
        visible = {column.id for column in self.columns(state)}
        here = frozenset(column.id for column in members if column.id in visible)
        wanted = {column.id for column in members if column.with_key and column.applies(state)}
        if here and (wanted <= here or any(column.usual for column in members)):
            hidden = self.shown & {column.id for column in members}
            return replace(
                self,
                shown=self.shown - hidden,
                hidden_by_key={**self.hidden_by_key, group: hidden},
            )
        usual = frozenset(column.id for column in members if column.with_key)
        # What was hidden may not apply here, like the time of a model that did not run.
        back = self.hidden_by_key.get(group, frozenset())
        useful = any(BY_ID[one].applies(state) for one in back)
        return replace(self, shown=self.shown | (back if useful else usual))

    def moved(self, id: str, place: int) -> ColumnChoice:
        """With one column moved to another position."""
        rest = [one for one in self.order if one != id]
        if id in self.order:
            rest.insert(min(max(place, 0), len(rest)), id)
        return replace(self, order=tuple(rest))


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The column by which siblings are ordered."""

    column: str = ""
    """"" for the order of the model."""
    upwards: bool = False
    """Whether the smallest value, or the last text of the alphabet, comes first."""

    def then(self, column: str) -> SortOrder:
        """The order after a column was chosen again: largest first, smallest first, model order."""
        if column != self.column:
            return SortOrder(column)
        return SortOrder() if self.upwards else SortOrder(column, upwards=True)

    def words(self, columns: ColumnChoice) -> str:
        if not self.column:
            return "Model order"
        column = columns.column(self.column)
        is_number = column.number or column.rank
        ways = ("largest first", "smallest first") if is_number else ("A to Z", "Z to A")
        return f"Sorted by {column.name.lower()}, {ways[self.upwards]}"

    def ranks(
        self, state: ExplorerState, columns: ColumnChoice | None = None
    ) -> list[float] | None:
        """A sort key for each module; None for model order. Modules without a value come last."""
        if not self.column:
            return None
        column, modules = (columns or ColumnChoice()).column(self.column), state.model.modules
        number = column.number or column.rank
        if number is not None:
            sign = 1.0 if self.upwards else -1.0
            numbers = (number(state, module) for module in modules)
            return [np.inf if number is None else sign * number for number in numbers]
        texts = [_natural(column, state, module) for module in modules]
        _, ranks = np.unique(np.array(texts), return_inverse=True)
        return list(-ranks if self.upwards else ranks)


def _natural(column: TreeColumn, state: ExplorerState, module: Module) -> str:
    """A text that sorts "9" before "10"."""
    text = module.name if column is NAME else column.plain(state, [module])
    return text.zfill(12) if text.isdecimal() else text or "\U0010ffff"
