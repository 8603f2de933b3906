"""The values and texts of the tree's columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from torchglass.analyse.model_diff import ModuleChange, SlotChange
from torchglass.analyse.parameters import ModuleCounts
from torchglass.records.model import Module
from torchglass.records.series import Series
from torchglass.records.tensors import TensorSpec
from torchglass.views.formats import format_time, harmless, shape_text, sparkline
from torchglass.views.module_signature import brief
from torchglass.views.tui.explorer_state import FOUND, LOST, ExplorerState, ModuleActivity
from torchglass.views.tui.text_rows import Piece, squeeze
from torchglass.views.tui.tree.columns import Number


def held(number: Callable[[ModuleCounts], int]) -> Number:
    """What a module holds; None as long as it is being counted."""

    def of_module(state: ExplorerState, module: Module) -> float | None:
        counts = state.counts(module)
        return None if counts is None else number(counts)

    return of_module


def flown(
    number: Callable[[ModuleActivity], float | None],
) -> Number:
    """What a module took to run."""
    return lambda state, module: number(state.flow(module))


def knows(field: str) -> Callable[[ExplorerState], bool]:
    """Whether anything tells this field of a flow."""
    return lambda state: state.has_flow(field)


def seconds(nanoseconds: float) -> str:
    """A duration in the unit that suits it."""
    return format_time(nanoseconds / 1e9)


def bytes_of(specs: Iterable[TensorSpec]) -> int | None:
    """What tensors take; None where there are none."""
    sizes = [spec.bytes for spec in specs]
    return sum(sizes) if sizes else None


def update_series(state: ExplorerState, module: Module) -> Series | None:
    """How far an optimizer moves the parameters of a module."""
    updates = (one for one in state.series_at(module) if one.name.endswith(".update"))
    return next(updates, None)


def update(state: ExplorerState, module: Module) -> float | None:
    """The last of these ratios."""
    series = update_series(state, module)
    if series is None or not len(values := state.values(series)):
        return None
    return float(values[-1])


def has_updates(state: ExplorerState) -> bool:
    """Whether any such ratio was recorded."""
    return any(one.name.endswith(".update") for one in state.all_series())


parameters = held(lambda counts: counts.total.parameters)
own_parameters = held(lambda counts: counts.own.parameters)
held_bytes = held(lambda counts: counts.total.bytes)
own_bytes = held(lambda counts: counts.own.bytes)
time = flown(lambda flow: flow.total_ns)
flops = flown(lambda flow: flow.flops)

SPARK, VALUE = 8, 8
"""The cells of a sparkline, and of the last number of it."""
_SHAPES = 8
_KINDS = 2


def format_value(value: float) -> str:
    """A measured number, short."""
    return f"{value:.3g}"


def distance_text(distance: float) -> str:
    """How far two tensors are apart, in lengths of the old one."""
    if math.isnan(distance):
        return "NaN or Inf on one side"
    return "was all zeros" if math.isinf(distance) else f"Δ {format_value(distance)}"


def class_name(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """The class without its package."""
    return [(harmless(module.kind), "class")]


def class_names(state: ExplorerState) -> Sequence[str]:
    """All classes that there are."""
    return [harmless(name.rpartition(".")[2]) for name in state.outline.by_class]


def args(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """What it was made with, in few signs."""
    return [(_settings(module), "args")]


def _settings(module: Module) -> str:
    whole = brief(module.kind, module.extra)
    return whole[len(harmless(module.kind)) :].strip("()")


def all_args(state: ExplorerState) -> Sequence[str]:
    """What any module was made with."""
    known = {(module.kind, module.extra): module for module in state.model.modules}
    return [_settings(module) for module in known.values()]


def device(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """Where its tensors and those of all in it are."""
    return [(_common(state.devices(module)), "device")]


def dtype(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """Of which types its parameters and those of all in it are."""
    return [(_common(state.dtypes(module)), "dtype")]


def devices(state: ExplorerState) -> Sequence[str]:
    """All texts of devices."""
    return [_common(kinds) for kinds in set(state.holdings.devices if state.holdings else ())]


def dtypes(state: ExplorerState) -> Sequence[str]:
    """All texts of types."""
    return [_common(kinds) for kinds in set(state.holdings.dtypes if state.holdings else ())]


def _common(kinds: Sequence[str]) -> str:
    """What all have in common, two of them, or that there are more."""
    return harmless(", ".join(kinds)) if len(kinds) <= _KINDS else "mixed"


def _joined(words: Iterable[str]) -> str:
    return harmless("/".join(dict.fromkeys(words)))


def shapes(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """The names and shapes of its tensors."""
    pieces: list[Piece] = []
    for slot in module.slots[:_SHAPES]:
        gap = ", " if pieces else ""
        pieces += [
            (f"{gap}{harmless(slot.name)} ", "slot"),
            (shape_text(slot.spec), "shape"),
        ]
    return pieces


def flow_dtype(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """Of which types the tensors are that go through it."""
    flow = state.flow(module)
    return [(_joined(spec.dtype for spec in (*flow.inputs, *flow.outputs) if spec.dtype), "dtype")]


def flow_dtypes(state: ExplorerState) -> Sequence[str]:
    """The types that go through any module."""
    return [flow_dtype(state, module)[0][0] for module in state.model.modules]


def trend(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """How its most telling series moves, and where it is now."""
    series = state.trend(module)
    if series is None or not len(values := state.values(series)):
        return ()
    return [
        (f"{sparkline(squeeze(values, SPARK), SPARK):<{SPARK + 1}}", "spark"),
        (f"{format_value(values[-1]):<{VALUE}}", "value"),
    ]


def notes_of_row(state: ExplorerState, row: Sequence[Module]) -> Sequence[Piece]:
    """What is out of the ordinary about the first of some modules that has anything."""
    told = (drawn for module in row if (drawn := notes(state, module))[0][0])
    return next(told, ())


def notes(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """What is out of the ordinary about it."""
    note = harmless(state.note(module))
    return [(note, "problem" if note.startswith((LOST, FOUND)) else "note")]


def change(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """What became of it, and how much changed inside of it."""
    if state.comparison is None:
        return ()
    change = state.comparison.changes.get(module.path)
    inside = state.comparison.below.get(module.path, 0)
    pieces = _told(change) if change else []
    if inside:
        pieces.append((f"{'  ' if pieces else ''}{inside:,} below", "share"))
    return pieces


def changes(state: ExplorerState) -> Sequence[str]:
    """What is told of all modules that changed, or have such in them."""
    if state.comparison is None:
        return ()
    paths = {*state.comparison.changes, *state.comparison.below}
    modules = filter(None, map(state.model.find, paths))
    return ["".join(text for text, _ in change(state, module)) for module in modules]


def _told(change: ModuleChange) -> list[Piece]:
    if change.verdict != "changed":
        mark = "+" if change.verdict == "added" else "−"
        return [(f"{mark} {change.verdict}", change.verdict)]
    words = [f"was {change.class_before.rpartition('.')[2]}"] if change.class_before else []
    words += [_slot_told(slot) for slot in change.slots]
    # Another shape mostly is another setting, too, and says more.
    if change.extra_before is not None and not words:
        words.append(f"was ({change.extra_before})")
    return [(harmless("≠ " + ", ".join(words)), "changed")]


def _slot_told(slot: SlotChange) -> str:
    if slot.before is None or slot.after is None:
        return f"{'+' if slot.before is None else '−'}{slot.name}"
    if slot.before.shape != slot.after.shape:
        return f"{slot.name} {shape_text(slot.before)} → {shape_text(slot.after)}"
    if slot.before.dtype != slot.after.dtype:
        return f"{slot.name} {slot.before.dtype} → {slot.after.dtype}"
    return f"{slot.name} {distance_text(slot.distance or 0.0)}"
