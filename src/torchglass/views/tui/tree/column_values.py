"""The values and texts of the tree's columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from torchglass.analyse.model_diff import ModuleChange, SlotChange
from torchglass.analyse.parameters import ModuleCounts
from torchglass.analyse.pixels import squeeze
from torchglass.records.model import Module
from torchglass.records.series import Series
from torchglass.records.tensors import TensorSpec
from torchglass.views.formats import harmless, shape_text, sparkline
from torchglass.views.module_signature import brief
from torchglass.views.tui.explorer_state import FOUND, LOST, ExplorerState, ModuleActivity
from torchglass.views.tui.text_rows import Piece

RowModules = Sequence[Module]
"""The modules of one row of the tree; the first one stands for all."""
Number = Callable[[ExplorerState, Module], float | None]
Pieces = Callable[[ExplorerState, Module], Sequence[Piece]]

SPARK, VALUE = 8, 8
"""The cells of a sparkline, and of the latest value beside it."""
_MOST_SLOTS = 8
_MOST_KINDS = 2


def counted(number: Callable[[ModuleCounts], int]) -> Number:
    """A count of a module; None until the model is counted."""

    def of_module(state: ExplorerState, module: Module) -> float | None:
        counts = state.counts(module)
        return None if counts is None else number(counts)

    return of_module


def activity(number: Callable[[ModuleActivity], float | None]) -> Number:
    """A measurement of a module's calls."""
    return lambda state, module: number(state.activity(module))


def knows(field: str) -> Callable[[ExplorerState], bool]:
    """Whether this field is known of any module's calls."""
    return lambda state: state.has_activity(field)


def bytes_of(specs: Iterable[TensorSpec]) -> int | None:
    """The size of tensors; None where there are none."""
    sizes = [spec.bytes for spec in specs]
    return sum(sizes) if sizes else None


parameters = counted(lambda counts: counts.total.parameters)
own_parameters = counted(lambda counts: counts.own.parameters)
held_bytes = counted(lambda counts: counts.total.bytes)
own_bytes = counted(lambda counts: counts.own.bytes)
time = activity(lambda one: one.total_ns)
flops = activity(lambda one: one.flops)


def update_series(state: ExplorerState, module: Module) -> Series | None:
    """The update ratio of a module's first parameter over steps."""
    updates = (one for one in state.series_at(module) if one.name.endswith(".update"))
    return next(updates, None)


def update(state: ExplorerState, module: Module) -> float | None:
    """The latest update ratio."""
    series = update_series(state, module)
    if series is None or not len(values := state.values(series)):
        return None
    return float(values[-1])


def has_updates(state: ExplorerState) -> bool:
    """Whether update ratios were recorded."""
    return any(one.name.endswith(".update") for one in state.all_series())


def format_value(value: float) -> str:
    """A measured number with three digits."""
    return f"{value:.3g}"


def every(pieces: Pieces) -> Callable[[ExplorerState], Sequence[str]]:
    """The texts of all modules."""
    return lambda state: [
        "".join(text for text, _ in pieces(state, module)) for module in state.model.modules
    ]


def class_name(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """The class without its package."""
    return [(harmless(module.kind), "class")]


def class_names(state: ExplorerState) -> Sequence[str]:
    """The classes of all modules."""
    return [harmless(name.rpartition(".")[2]) for name in state.outline.by_class]


def args(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """The settings of a module, short."""
    return [(_settings(module), "args")]


def _settings(module: Module) -> str:
    whole = brief(module.kind, module.extra)
    return whole[len(harmless(module.kind)) :].strip("()")


def all_args(state: ExplorerState) -> Sequence[str]:
    """The settings of all modules."""
    known = {(module.kind, module.extra): module for module in state.model.modules}
    return [_settings(module) for module in known.values()]


def device(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """The devices of all tensors in a module."""
    return [(_common(state.devices(module)), "device")]


def dtype(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """The types of all parameters in a module."""
    return [(_common(state.dtypes(module)), "dtype")]


def devices(state: ExplorerState) -> Sequence[str]:
    """The device texts of all modules."""
    return [_common(kinds) for kinds in set(state.contents.devices if state.contents else ())]


def dtypes(state: ExplorerState) -> Sequence[str]:
    """The type texts of all modules."""
    return [_common(kinds) for kinds in set(state.contents.dtypes if state.contents else ())]


def _common(kinds: Sequence[str]) -> str:
    return harmless(", ".join(kinds)) if len(kinds) <= _MOST_KINDS else "mixed"


def shapes(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """The names and shapes of a module's own tensors."""
    pieces: list[Piece] = []
    for slot in module.slots[:_MOST_SLOTS]:
        gap = ", " if pieces else ""
        pieces += [(f"{gap}{harmless(slot.name)} ", "slot"), (shape_text(slot.spec), "shape")]
    return pieces


def input_shapes(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """The shape of a module's first input, and how many more there are."""
    return [(_first_shape(state.activity(module).inputs), "in")]


def output_shapes(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """The shape of a module's first output, and how many more there are."""
    return [(_first_shape(state.activity(module).outputs), "out")]


def _first_shape(specs: Sequence[TensorSpec]) -> str:
    if not specs:
        return ""
    return shape_text(specs[0]) + (f" +{len(specs) - 1}" if len(specs) > 1 else "")


def activity_dtypes(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """The types of a module's inputs and outputs."""
    seen = state.activity(module)
    kinds = dict.fromkeys(spec.dtype for spec in (*seen.inputs, *seen.outputs) if spec.dtype)
    return [(harmless("/".join(kinds)), "dtype")]


def trend(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """The gradient of a module's first parameter over steps, and its latest value."""
    series = state.trend(module)
    if series is None or not len(values := state.values(series)):
        return ()
    return [
        (f"{sparkline(squeeze(values, SPARK), SPARK):<{SPARK + 1}}", "spark"),
        (f"{format_value(values[-1]):<{VALUE}}", "value"),
    ]


def notes(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """A problem of the module, or where it is shared."""
    note = harmless(state.note(module))
    return [(note, "problem" if note.startswith((LOST, FOUND)) else "note")]


def change(state: ExplorerState, module: Module) -> Sequence[Piece]:
    """How a module differs from the other model, and how many modules below it do."""
    if state.comparison is None:
        return ()
    change = state.comparison.changes.get(module.path)
    below = state.comparison.below.get(module.path, 0)
    pieces = _change_pieces(change) if change else []
    if below:
        pieces.append((f"{'  ' if pieces else ''}{below:,} below", "share"))
    return pieces


def changes(state: ExplorerState) -> Sequence[str]:
    """The change texts of all modules that have one."""
    if state.comparison is None:
        return ()
    paths = {*state.comparison.changes, *state.comparison.below}
    modules = filter(None, map(state.model.find, paths))
    return ["".join(text for text, _ in change(state, module)) for module in modules]


def _change_pieces(change: ModuleChange) -> list[Piece]:
    if change.verdict != "changed":
        mark = "+" if change.verdict == "added" else "−"
        return [(f"{mark} {change.verdict}", change.verdict)]
    words = [f"was {change.class_before.rpartition('.')[2]}"] if change.class_before else []
    words += [_slot_change(slot) for slot in change.slots]
    # A changed shape usually means changed settings, and says more.
    if change.extra_before is not None and not words:
        words.append(f"was ({change.extra_before})")
    return [(harmless("≠ " + ", ".join(words)), "changed")]


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
