"""The statistics of a recording as a table of plain text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from torchglass.records.statistics import Level, Measured, ModuleStatistics
from torchglass.records.tensors import Stats
from torchglass.views.columns import first_shape
from torchglass.views.formats import format_share, format_time, harmless, shorten
from torchglass.views.text.frame import Cells, lined_up, rule_for
from torchglass.views.trace_facts import ends

_LONGEST_NAME = 44
_MOST_ROWS = 80
_UNDEFINED = "–"


def statistics_text(
    model: str, level: Level, forwards: int, modules: Sequence[ModuleStatistics]
) -> str:
    """A line for each module, with what went in and out of it and the time that it took."""
    title = _title(model, forwards, modules)
    if not modules:
        return title
    first, left_out, last = ends(modules, _MOST_ROWS)
    shown = [*first, *last]
    whole = _total_ns(modules)
    heading, *lines = lined_up(_columns(model, level, shown, whole))
    if left_out:
        lines.insert(len(first), f"… {left_out:,} more …")
    notes = list(_notes(level, modules))
    rule = rule_for([title, heading, *lines, *notes])
    return "\n".join([title, rule, heading, rule, *lines, rule, *notes])


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
    """The cells of each column, its heading first, and whether they end at the right."""
    outputs = [module.totals.outputs for module in modules]
    yield ["Module", *(_name(module.path, model) for module in modules)], False
    yield ["Class", *(harmless(module.class_name) for module in modules)], False
    yield ["Calls", *(f"{module.totals.calls:,}" for module in modules)], True
    yield ["Input", *(_shapes(module, "inputs") for module in modules)], False
    yield ["Output", *(_shapes(module, "outputs") for module in modules)], False
    if level != "shapes":
        for name in ("min", "max", "mean", "std"):
            yield [name, *(_number(stats, name) for stats in outputs)], True
        for name in ("nan", "inf"):
            if any(stats and getattr(stats, name) for stats in outputs):
                yield [name, *(_number(stats, name) for stats in outputs)], True
    yield ["Time", *(format_time(module.totals.total_ns / 1e9) for module in modules)], True
    yield ["Self", *(format_time(module.totals.self_ns / 1e9) for module in modules)], True
    yield ["Share", *(format_share(module.totals.self_ns, whole_ns) for module in modules)], True


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
