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
from torchglass.views.tui.cells import Piece, squeeze
from torchglass.views.tui.explorer_state import FOUND, LOST, Flow, Subject
from torchglass.views.tui.tree.columns import Number


def held(number: Callable[[ModuleCounts], int]) -> Number:
    """What a module holds; None as long as it is being counted."""

    def of_module(subject: Subject, module: Module) -> float | None:
        counts = subject.counts(module)
        return None if counts is None else number(counts)

    return of_module


def flown(
    number: Callable[[Flow], float | None],
) -> Number:
    """What a module took to run."""
    return lambda subject, module: number(subject.flow(module))


def knows(field: str) -> Callable[[Subject], bool]:
    """Whether anything tells this field of a flow."""
    return lambda subject: subject.has_flow(field)


def seconds(nanoseconds: float) -> str:
    """A duration in the unit that suits it."""
    return format_time(nanoseconds / 1e9)


def bytes_of(specs: Iterable[TensorSpec]) -> int | None:
    """What tensors take; None where there are none."""
    sizes = [spec.bytes for spec in specs]
    return sum(sizes) if sizes else None


def update_series(subject: Subject, module: Module) -> Series | None:
    """How far an optimizer moves the parameters of a module."""
    updates = (one for one in subject.series_at(module) if one.name.endswith(".update"))
    return next(updates, None)


def update(subject: Subject, module: Module) -> float | None:
    """The last of these ratios."""
    series = update_series(subject, module)
    if series is None or not len(values := subject.values(series)):
        return None
    return float(values[-1])


def has_updates(subject: Subject) -> bool:
    """Whether any such ratio was recorded."""
    return any(one.name.endswith(".update") for one in subject.all_series())


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


def class_name(subject: Subject, module: Module) -> Sequence[Piece]:
    """The class without its package."""
    return [(harmless(module.kind), "class")]


def class_names(subject: Subject) -> Sequence[str]:
    """All classes that there are."""
    return [harmless(name.rpartition(".")[2]) for name in subject.outline.by_class]


def args(subject: Subject, module: Module) -> Sequence[Piece]:
    """What it was made with, in few signs."""
    return [(_settings(module), "args")]


def _settings(module: Module) -> str:
    whole = brief(module.kind, module.extra)
    return whole[len(harmless(module.kind)) :].strip("()")


def all_args(subject: Subject) -> Sequence[str]:
    """What any module was made with."""
    known = {(module.kind, module.extra): module for module in subject.model.modules}
    return [_settings(module) for module in known.values()]


def device(subject: Subject, module: Module) -> Sequence[Piece]:
    """Where its tensors and those of all in it are."""
    return [(_common(subject.devices(module)), "device")]


def dtype(subject: Subject, module: Module) -> Sequence[Piece]:
    """Of which types its parameters and those of all in it are."""
    return [(_common(subject.dtypes(module)), "dtype")]


def devices(subject: Subject) -> Sequence[str]:
    """All texts of devices."""
    return [_common(kinds) for kinds in set(subject.holdings.devices if subject.holdings else ())]


def dtypes(subject: Subject) -> Sequence[str]:
    """All texts of types."""
    return [_common(kinds) for kinds in set(subject.holdings.dtypes if subject.holdings else ())]


def _common(kinds: Sequence[str]) -> str:
    """What all have in common, two of them, or that there are more."""
    return harmless(", ".join(kinds)) if len(kinds) <= _KINDS else "mixed"


def _joined(words: Iterable[str]) -> str:
    return harmless("/".join(dict.fromkeys(words)))


def shapes(subject: Subject, module: Module) -> Sequence[Piece]:
    """The names and shapes of its tensors."""
    pieces: list[Piece] = []
    for slot in module.slots[:_SHAPES]:
        gap = ", " if pieces else ""
        pieces += [
            (f"{gap}{harmless(slot.name)} ", "slot"),
            (shape_text(slot.spec), "shape"),
        ]
    return pieces


def flow_dtype(subject: Subject, module: Module) -> Sequence[Piece]:
    """Of which types the tensors are that go through it."""
    flow = subject.flow(module)
    return [(_joined(spec.dtype for spec in (*flow.inputs, *flow.outputs) if spec.dtype), "dtype")]


def flow_dtypes(subject: Subject) -> Sequence[str]:
    """The types that go through any module."""
    return [flow_dtype(subject, module)[0][0] for module in subject.model.modules]


def trend(subject: Subject, module: Module) -> Sequence[Piece]:
    """How its most telling series moves, and where it is now."""
    series = subject.trend(module)
    if series is None or not len(values := subject.values(series)):
        return ()
    return [
        (f"{sparkline(squeeze(values, SPARK), SPARK):<{SPARK + 1}}", "spark"),
        (f"{format_value(values[-1]):<{VALUE}}", "value"),
    ]


def notes_of_row(subject: Subject, row: Sequence[Module]) -> Sequence[Piece]:
    """What is out of the ordinary about the first of some modules that has anything."""
    told = (drawn for module in row if (drawn := notes(subject, module))[0][0])
    return next(told, ())


def notes(subject: Subject, module: Module) -> Sequence[Piece]:
    """What is out of the ordinary about it."""
    note = harmless(subject.note(module))
    return [(note, "problem" if note.startswith((LOST, FOUND)) else "note")]


def change(subject: Subject, module: Module) -> Sequence[Piece]:
    """What became of it, and how much changed inside of it."""
    if subject.comparison is None:
        return ()
    change = subject.comparison.changes.get(module.path)
    inside = subject.comparison.below.get(module.path, 0)
    pieces = _told(change) if change else []
    if inside:
        pieces.append((f"{'  ' if pieces else ''}{inside:,} below", "share"))
    return pieces


def changes(subject: Subject) -> Sequence[str]:
    """What is told of all modules that changed, or have such in them."""
    if subject.comparison is None:
        return ()
    paths = {*subject.comparison.changes, *subject.comparison.below}
    modules = filter(None, map(subject.model.find, paths))
    return ["".join(text for text, _ in change(subject, module)) for module in modules]


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
