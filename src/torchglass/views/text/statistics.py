"""The statistics of a recording as a table of plain text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat

from torchglass.records.statistics import Level, Measured, ModuleStatistics
from torchglass.records.tensors import Stats
from torchglass.views.columns import first_shape
from torchglass.views.formats import format_share, format_time, harmless, shorten
from torchglass.views.text.fitting import Cells, wrapped
from torchglass.views.text.frame import framed
from torchglass.views.trace_facts import ends

_LONGEST_NAME = 44
_MOST_ROWS = 80
_UNDEFINED = "–"


def statistics_text(
    model: str,
    level: Level,
    forwards: int,
    modules: Sequence[ModuleStatistics],
    room: int | None = None,
) -> str:
    """A line for each module, with what went in and out of it and the time that it took."""
    if not modules:
        return f"{harmless(model)}: no module was called"
    first, left_out, last = ends(modules, _MOST_ROWS)
    columns = list(_columns(model, level, [*first, *last], _total_ns(modules)))
    if left_out:
        columns = _with_gap(columns, len(first), f"… {left_out:,} more …")
    title = wrapped(_title(model, forwards, modules), room)
    notes = [line for note in _notes(level, modules) for line in wrapped(note, room)]
    return "\n".join([*title, framed(columns, notes, room=room)])


def _title(model: str, forwards: int, modules: Sequence[ModuleStatistics]) -> str:
    calls = sum(module.totals.calls for module in modules)
    taken = format_time(_total_ns(modules) / 1e9)
    return (
        f"{harmless(model)}: {_counted(forwards, 'forward')}, {_counted(calls, 'call')} of "
        f"{_counted(len(modules), 'module')}, {taken}"
    )


def _columns(
    model: str, level: Level, modules: Sequence[ModuleStatistics], whole_ns: int
) -> Iterator[Cells]:
    totals = [module.totals for module in modules]
    outputs = [total.outputs for total in totals]
    names, classes = [_name(m.path, model) for m in modules], [m.class_name for m in modules]
    yield Cells(["Module", *names], right=False)
    yield Cells(["Class", *map(harmless, classes)], right=False, spare=3)
    yield Cells(["Calls", *(f"{total.calls:,}" for total in totals)], spare=4)
    yield Cells(["Input", *(_shapes(m, "inputs") for m in modules)], right=False, spare=6)
    yield Cells(["Output", *(_shapes(m, "outputs") for m in modules)], right=False, spare=1)
    if level != "shapes":
        for name, spare in (("min", 0), ("max", 0), ("mean", -3), ("std", -2)):
            yield Cells([name, *(_number(stats, name) for stats in outputs)], spare=spare)
        for name in ("nan", "inf"):
            if any(stats and getattr(stats, name) for stats in outputs):
                yield Cells([name, *(_number(stats, name) for stats in outputs)])
    yield Cells(["Time", *(format_time(total.total_ns / 1e9) for total in totals)], spare=-1)
    yield Cells(["Self", *(format_time(total.self_ns / 1e9) for total in totals)], spare=5)
    yield Cells(["Share", *(format_share(total.self_ns, whole_ns) for total in totals)], spare=2)


def _with_gap(columns: Sequence[Cells], row: int, text: str) -> list[Cells]:
    """The columns with a line in between that has a text and nothing else."""
    above = row + 1
    return [
        replace(column, texts=[*column.texts[:above], cell, *column.texts[above:]])
        for column, cell in zip(columns, chain([text], repeat("")), strict=False)
    ]


def _notes(level: Level, modules: Iterable[ModuleStatistics]) -> Iterator[str]:
    if level == "full":
        yield "min … std: of the first output, over all calls"
    if level == "cheap":
        yield "min … std: of the first output, over all calls, from samples of its numbers"
    for module in modules:
        if module.totals.failed:
            raised = ", ".join(sorted({call.error for call in module.calls if call.error}))
            times = _counted(module.totals.failed, "call")
            yield f"{times} of {_name(module.path, 'the model')} raised {raised}".rstrip()


def _name(path: str, model: str) -> str:
    return shorten(harmless(path or model), _LONGEST_NAME)


def _shapes(module: ModuleStatistics, side: str) -> str:
    """The shape of the first tensor of the latest call, and how many more there were."""
    measured: tuple[Measured, ...] = getattr(module[-1], side) if module.calls else ()
    return first_shape(measured) or _UNDEFINED


def _number(stats: Stats | None, name: str) -> str:
    value = None if stats is None else getattr(stats, name)
    return _UNDEFINED if value is None or math.isnan(value) else f"{value:.4g}"


def _total_ns(modules: Iterable[ModuleStatistics]) -> int:
    return sum(module.totals.self_ns for module in modules)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
