"""Results of `record` and `inspect` as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import NamedTuple

from torchglass.records.calls import (
    CallCost,
    CallTensor,
    InspectedModel,
    InspectedModule,
    Level,
    ModuleStatistics,
    NonFinite,
)
from torchglass.records.tensors import Stats
from torchglass.tables.text import Cells, framed, guides, note_lines, readable_depth, wrapped
from torchglass.views.formats import (
    NOT_RUN,
    SAME_AS,
    first_shape,
    format_bytes,
    format_count,
    format_share,
    format_time,
    harmless,
    shorten,
)
from torchglass.views.model_facts import ends

_LONGEST_NAME = 44
_MINUS = "−"
_GRADIENT = "Gradient"
_GRADIENT_LEGEND = "Gradient: root mean square of the gradient at the module's output."


class _Row(NamedTuple):
    """A module, and its place in the tree."""

    module: InspectedModule
    depth: int
    last: bool


def inspection_text(
    model: InspectedModel, *, depth: int | None = None, room: int | None = None
) -> str:
    """A line for each module of so many levels, then what is to be said of the whole."""
    every = _rows(model)
    limit = depth if depth is not None else readable_depth([row.depth for row in every]) or 1
    shown = [row for row in every if row.depth <= limit]
    hidden = _hidden(every, shown, room) if depth is None else []
    origins = [line for origin in _origins(model) for line in wrapped(origin, room)]
    notes = note_lines(model.notes, room)
    columns = list(_columns(model, shown))
    has_gradients = any(column.texts[0] == _GRADIENT for column in columns)
    legend = wrapped(_GRADIENT_LEGEND, room) if has_gradients else []
    return framed(columns, hidden, [*origins, *notes, *legend], room=room)


def _hidden(every: Sequence[_Row], shown: Sequence[_Row], room: int | None) -> list[str]:
    if len(shown) == len(every):
        return []
    deepest = max(row.depth for row in every)
    line = f"{len(shown)} of {len(every):,} rows; depth={deepest} (--depth {deepest}) shows all"
    return wrapped(line, room)


def _rows(model: InspectedModel) -> list[_Row]:
    depths: list[int] = []
    for module in model.modules:
        depths.append(0 if module.parent is None else depths[module.parent] + 1)
    last = {module.parent: index for index, module in enumerate(model.modules)}
    return [
        _Row(module, depths[index], last[module.parent] == index)
        for index, module in enumerate(model.modules)
    ]


def _columns(model: InspectedModel, rows: Sequence[_Row]) -> Iterator[Cells]:
    modules = [row.module for row in rows]
    root = model.modules[0]
    forward, backward = [m.forward for m in modules], [m.backward for m in modules]
    names = (
        guide + shorten(harmless(row.module.name or model.name), _LONGEST_NAME)
        for row, guide in zip(rows, guides(rows, "─"), strict=True)
    )
    params = [format_count(m.parameters) if m.parameters else "" for m in modules]
    yield Cells(["Module", *names], right=False)
    yield Cells(["Class", *map(_class, modules)], right=False, spare=1)
    yield Cells(["Output", *map(_output, modules)], right=False, spare=2)
    yield Cells(["Params", *params], spare=6)
    yield Cells(["Calls", *map(_calls, modules)], spare=5)
    yield Cells(["Forward", *map(_time, forward)])
    yield Cells(["share", *(_share(effort, root.forward) for effort in forward)], spare=4)
    if any(backward):
        yield Cells(["Backward", *map(_time, backward)])
        yield Cells(["share", *(_share(effort, root.backward) for effort in backward)], spare=4)
    gradients = [_gradient(module) for module in modules]
    if any(gradients):
        yield Cells([_GRADIENT, *gradients], spare=7)
    for title, efforts in (("Memory fwd", forward), ("bwd", backward)):
        if any(effort and effort.added_bytes is not None for effort in efforts):
            yield Cells([title, *map(_memory, efforts)], spare=3)
    if any(any(bad) for module in modules for bad in _places(module).values()):
        yield Cells(["NaN/Inf", *map(_mark, modules)], right=False)


def _class(module: InspectedModule) -> str:
    if module.same_as is not None:
        return f"{SAME_AS} {harmless(module.same_as) or 'the model itself'}"
    return harmless(module.class_name)


def _output(module: InspectedModule) -> str:
    return first_shape(module.latest.outputs) if module.latest else ""


def _calls(module: InspectedModule) -> str:
    if module.same_as is not None:
        return ""
    return f"{module.call_count:,}" if module.call_count else NOT_RUN


def _time(effort: CallCost | None) -> str:
    return "" if effort is None else format_time(effort.total_ns / 1e9)


def _share(effort: CallCost | None, whole: CallCost | None) -> str:
    return format_share(effort.total_ns, whole.total_ns) if effort and whole else ""


def _memory(effort: CallCost | None) -> str:
    if effort is None or effort.added_bytes is None:
        return ""
    sign = _MINUS if effort.added_bytes < 0 else ""
    # In the units of the file, which are those of Inspector Gadgets.
    return sign + format_bytes(abs(effort.added_bytes), step=1000)


def _gradient(module: InspectedModule) -> str:
    """The root mean square of what came back for its first output."""
    back = module.latest_back
    stats = back.output_gradients[0].stats if back and back.output_gradients else None
    if stats is None or module.same_as is not None:
        return ""
    return f"{math.hypot(stats.mean, stats.std):.2e}"


def _places(module: InspectedModule) -> dict[str, NonFinite]:
    """What is not finite, by the names of the places that the file has."""
    return {
        "output": module.bad_outputs,
        "grad_out": module.bad_output_gradients,
        "grad_in": module.bad_input_gradients,
    }


def _mark(module: InspectedModule) -> str:
    return ", ".join(name for name, bad in _places(module).items() if any(bad))


def _origins(model: InspectedModel) -> Iterator[str]:
    """The innermost modules whose inputs are finite and whose outputs are not."""
    for module in _innermost(model, lambda one: (one.bad_inputs, one.bad_outputs)):
        found = _counted(module.bad_outputs)
        yield f"{_named(module, model)} produced {found}: its inputs are finite."
    for module in _innermost(
        model, lambda one: (one.bad_output_gradients, one.bad_input_gradients)
    ):
        found, name = _counted(module.bad_input_gradients), _named(module, model)
        yield f"{name} produced {found} in backward: the gradient it received is finite."


def _innermost(
    model: InspectedModel, ends: Callable[[InspectedModule], tuple[NonFinite, NonFinite]]
) -> list[InspectedModule]:
    """The modules that came to what is not finite from what is, and in which none did so."""
    makers = []
    for index, module in enumerate(model.modules):
        before, after = ends(module)
        if any(after) and not any(before):
            makers.append(index)
    above = {outer for index in makers for outer in _above(model, index)}
    return [model.modules[index] for index in makers if index not in above]


def _above(model: InspectedModel, index: int) -> Iterator[int]:
    parent = model.modules[index].parent
    while parent is not None:
        yield parent
        parent = model.modules[parent].parent


def _named(module: InspectedModule, model: InspectedModel) -> str:
    return harmless(f"{module.path or model.name} ({module.class_name})")


def _counted(bad: NonFinite) -> str:
    found = [(bad.nan, "NaN"), (bad.inf, "Inf")]
    return " and ".join(f"{number:,} {what}" for number, what in found if number)


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
    columns = list(_statistics_columns(model, level, [*first, *last], _total_ns(modules)))
    if left_out:
        columns = _with_gap(columns, len(first), f"… {left_out:,} more …")
    title = wrapped(_title(model, forwards, modules), room)
    notes = [line for note in _notes(level, modules) for line in wrapped(note, room)]
    return "\n".join([*title, framed(columns, notes, room=room)])


def _title(model: str, forwards: int, modules: Sequence[ModuleStatistics]) -> str:
    calls = sum(module.totals.calls for module in modules)
    taken = format_time(_total_ns(modules) / 1e9)
    return (
        f"{harmless(model)}: {_statistics_counted(forwards, 'forward')}, "
        f"{_statistics_counted(calls, 'call')} of "
        f"{_statistics_counted(len(modules), 'module')}, {taken}"
    )


def _statistics_columns(
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
            times = _statistics_counted(module.totals.failed, "call")
            yield f"{times} of {_name(module.path, 'the model')} raised {raised}".rstrip()


def _name(path: str, model: str) -> str:
    return shorten(harmless(path or model), _LONGEST_NAME)


def _shapes(module: ModuleStatistics, side: str) -> str:
    """The shape of the first tensor of the latest call, and how many more there were."""
    measured: tuple[CallTensor, ...] = getattr(module[-1], side) if module.calls else ()
    return first_shape(measured) or _UNDEFINED


def _number(stats: Stats | None, name: str) -> str:
    value = None if stats is None else getattr(stats, name)
    return _UNDEFINED if value is None or math.isnan(value) else f"{value:.4g}"


def _total_ns(modules: Iterable[ModuleStatistics]) -> int:
    return sum(module.totals.self_ns for module in modules)


def _statistics_counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
