"""What a comparison with another model tells of a module, line by line."""

from __future__ import annotations

from collections.abc import Iterator

from torchglass.analyse.comparing import ModuleChange, SlotChange
from torchglass.records.model import Module
from torchglass.records.tensors import TensorSpec
from torchglass.views.columns import shape_text
from torchglass.views.formats import harmless
from torchglass.views.tui.panels.drawing import Cell, Row, heading, paragraph, table, text
from torchglass.views.tui.subject import Subject
from torchglass.views.tui.tree.texts import distance_text

_BESIDE = {
    "added": "only in the new model",
    "removed": "only in the old model",
    "changed": "old → new",
}


def describe_change(subject: Subject, module: Module, width: int) -> Iterator[Row]:
    """What became of a module; nothing where it is the same or nothing is compared."""
    comparison = subject.comparison
    if comparison is None:
        return
    change = comparison.changes.get(module.path)
    inside = comparison.below.get(module.path, 0)
    if change is not None:
        yield heading(change.verdict, _BESIDE[change.verdict])
        if change.verdict == "changed":
            yield from _differences(change, width)
    elif inside:
        yield heading("no direct changes")
    if inside:
        yield text(f"{inside:,} changed below")


def _differences(change: ModuleChange, width: int) -> Iterator[Row]:
    if change.class_before:
        yield from paragraph(f"class before: {harmless(change.class_before)}", width)
    if change.extra_before is not None:
        yield from paragraph(f"settings before: {harmless(change.extra_before) or 'none'}", width)
    yield from map(Row, table(_filled([_cells(slot) for slot in change.slots])))


def _filled(lines: list[list[Cell]]) -> list[list[Cell]]:
    """The lines without the columns in which nothing stands."""
    columns = [column for column in zip(*lines, strict=True) if any(cell.text for cell in column)]
    return [list(line) for line in zip(*columns, strict=True)]


def _cells(slot: SlotChange) -> list[Cell]:
    same = slot.before == slot.after
    return [
        Cell(harmless(slot.name), "name"),
        Cell("" if same else _spec(slot.before), "shape"),
        Cell("" if same else "→", "muted"),
        Cell(_spec(slot.after), "shape"),
        Cell("" if slot.distance is None else distance_text(slot.distance), "number"),
    ]


def _spec(spec: TensorSpec | None) -> str:
    return "nothing" if spec is None else f"{shape_text(spec)} {harmless(spec.dtype)}"
