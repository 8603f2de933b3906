"""The columns beside the names: what each shows, how wide it is and which key shows or hides it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len

from torchglass.records.model import Module
from torchglass.views.columns import shape_text
from torchglass.views.formats import (
    format_bytes,
    format_count,
    format_share,
    harmless,
    sparkline,
)
from torchglass.views.tui.cells import Piece, bar, squeeze
from torchglass.views.tui.subject import LOST, Subject

Group = Literal["class", "parameters", "memory", "trend", "device", "shapes", "notes"]

SHOWN_AT_FIRST: frozenset[Group] = frozenset({"class", "parameters", "memory", "trend", "notes"})

_CLASS, _BAR, _SPARK, _VALUE = 22, 6, 8, 8
_SHAPES = 8


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of the tree. Columns of a group come and go together."""

    title: str
    group: Group
    width: Callable[[Subject], int]
    draw: Callable[[Subject, Module], Sequence[Piece]]
    applies: Callable[[Subject], bool] = lambda subject: True
    """Whether the subject has anything to show in it."""
    right: bool = False


def format_value(value: float) -> str:
    """A measured number, short."""
    return f"{value:.3g}"


def _cells(width: int) -> Callable[[Subject], int]:
    return lambda subject: width


def _widest_class(subject: Subject) -> int:
    kinds = {name.rpartition(".")[2] for name in subject.outline.by_class}
    return min(max(cell_len(harmless(kind)) for kind in kinds), _CLASS)


def _class(subject: Subject, module: Module) -> Sequence[Piece]:
    return [(harmless(module.kind), "class")]


def _parameters(subject: Subject, module: Module) -> Sequence[Piece]:
    counts = subject.counts(module)
    return [(format_count(counts.total.parameters), _tone(module, "count"))] if counts else ()


def _share(subject: Subject, module: Module) -> Sequence[Piece]:
    counts, whole = subject.counts(module), subject.counts(subject.model.root)
    if not counts or not whole or not counts.total.parameters:
        return ()
    part, all_of_it = counts.total.parameters, whole.total.parameters
    filled, rest = bar(part / all_of_it, _BAR)
    return [
        (filled, _tone(module, "bar")),
        (rest, "guide"),
        (f"{format_share(part, all_of_it):>5}", _tone(module, "share")),
    ]


def _bytes(subject: Subject, module: Module) -> Sequence[Piece]:
    counts = subject.counts(module)
    return [(format_bytes(counts.total.bytes), _tone(module, "bytes"))] if counts else ()


def _trend(subject: Subject, module: Module) -> Sequence[Piece]:
    series = subject.trend(module)
    if series is None or not len(values := subject.values(series)):
        return ()
    return [
        (f"{sparkline(squeeze(values, _SPARK), _SPARK):<{_SPARK + 1}}", "spark"),
        (f"{format_value(values[-1]):<{_VALUE}}", "value"),
    ]


def _device(subject: Subject, module: Module) -> Sequence[Piece]:
    devices = {slot.spec.device: None for slot in module.slots}
    dtypes = {slot.spec.dtype: None for slot in module.slots}
    return [
        (harmless("/".join(devices)), "device"),
        (harmless(" " + "/".join(dtypes)), "dtype"),
    ]


def _shapes(subject: Subject, module: Module) -> Sequence[Piece]:
    pieces: list[Piece] = []
    for slot in module.slots[:_SHAPES]:
        gap = ", " if pieces else ""
        pieces += [
            (f"{gap}{harmless(slot.name)} ", "slot"),
            (shape_text(slot.spec), "shape"),
        ]
    return pieces


def _notes(subject: Subject, module: Module) -> Sequence[Piece]:
    note = harmless(subject.note(module))
    return [(note, "problem" if note.startswith(LOST) else "note")]


def _has_notes(subject: Subject) -> bool:
    return bool(subject.measures and subject.measures.notes)


def _tone(module: Module, style: str) -> str:
    # What stands elsewhere too is counted there; here it is shown pale.
    return "shared" if module.alias_of is not None else style


COLUMNS: tuple[Column, ...] = (
    Column(title="class", group="class", width=_widest_class, draw=_class),
    Column(title="params", group="parameters", width=_cells(7), draw=_parameters, right=True),
    Column(title="share", group="parameters", width=_cells(_BAR + 5), draw=_share),
    Column(title="memory", group="memory", width=_cells(9), draw=_bytes, right=True),
    Column(
        title="trend",
        group="trend",
        width=_cells(_SPARK + 1 + _VALUE),
        draw=_trend,
        applies=Subject.has_series,
    ),
    Column(title="device", group="device", width=_cells(18), draw=_device),
    Column(title="shapes", group="shapes", width=_cells(44), draw=_shapes),
    Column(title="notes", group="notes", width=_cells(32), draw=_notes, applies=_has_notes),
)


def shown_columns(subject: Subject, groups: frozenset[Group]) -> list[Column]:
    """The columns of the groups that are on, without those that would stay empty."""
    return [column for column in COLUMNS if column.group in groups and column.applies(subject)]
