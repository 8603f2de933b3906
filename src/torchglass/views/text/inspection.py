"""An inspection as a table of plain text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torchglass.records.inspection import Effort, InspectedModel, InspectedModule, NonFinite
from torchglass.views.columns import NOT_RUN, SAME_AS, first_shape
from torchglass.views.formats import (
    format_bytes,
    format_count,
    format_share,
    format_time,
    harmless,
    shorten,
)
from torchglass.views.text.fitting import Cells, wrapped
from torchglass.views.text.frame import framed, note_lines
from torchglass.views.text.guides import guides
from torchglass.views.text.modules import readable_depth

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


def _time(effort: Effort | None) -> str:
    return "" if effort is None else format_time(effort.total_ns / 1e9)


def _share(effort: Effort | None, whole: Effort | None) -> str:
    return format_share(effort.total_ns, whole.total_ns) if effort and whole else ""


def _memory(effort: Effort | None) -> str:
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
