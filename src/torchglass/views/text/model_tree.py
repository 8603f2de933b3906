"""A model as a tree.

ResNet(
├── 11.7M parameters
├── conv1: Conv2d(3→64, 7×7) [9.4K params]
├── layer1: Sequential [148.0K params]
│   └── 0: BasicBlock [74.0K params]
└── fc: Linear(512→1000) [513.0K params]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchglass.analyse.summary import SummaryReport, SummaryRow
from torchglass.records.model import Model
from torchglass.tables.text import guides, missing_note, name_text, shortened, wrapped
from torchglass.views.formats import NOT_RUN, SAME_AS, first_shape, format_count, harmless, width
from torchglass.views.model_facts import also_in_file
from torchglass.views.module_signature import brief

NO_TENSOR = "no tensor"


def row_name(row: SummaryRow, model: Model) -> str:
    """What a row is called: its name, or "12 × Block (0–11)" for identical siblings."""
    module = row.module
    if row.depth == 0:
        return harmless(model.name)
    if len(row.members) == 1:
        return harmless(module.name)
    last = model[row.members[-1]]
    return (
        f"{len(row.members)} × {harmless(module.kind)} ({harmless(f'{module.name}–{last.name}')})"
    )


def same_as(row: SummaryRow, model: Model) -> str:
    """The first path of a module that has several, or of a tensor it shares; else ""."""
    if row.module.alias_of is not None:
        return harmless(model[row.module.alias_of].path) or "the model itself"
    if not row.tied_to:
        return ""
    more = f" +{len(row.tied_to) - 1}" if len(row.tied_to) > 1 else ""
    return harmless(row.tied_to[0]) + more


def output_text(row: SummaryRow, report: SummaryReport) -> str:
    """The shape that comes out of a module, "–" where it did not run; "" without a forward."""
    if not row.calls:
        return unseen_text(row, report)
    calls = f" · {len(row.calls)} calls" if len(row.calls) > 1 else ""
    return (first_shape(row.calls[0].outputs) or NO_TENSOR) + calls


def unseen_text(row: SummaryRow, report: SummaryReport) -> str:
    """What stands for the shapes of a module that was not called."""
    return NOT_RUN if report.ran and row.module.alias_of is None else ""


class _RowText(NamedTuple):
    """One text to describe a row."""

    text: str
    left_out: tuple[str, ...] = ()


def tree_text(report: SummaryReport, room: int | None = None) -> str:
    """The rows of a report, each with its module's settings, output shape and parameters.

    Rows that do not fit into the width say less; the last line says what is missing.
    """
    below = report.rows[1:]
    deepest = max((row.depth for row in below), default=0)
    # The guides of a deep tree would leave no room for the names.
    arm = "──" if room is None or 2 * len("├── ") * deepest <= room else ""
    texts = [
        _fitting(guide, _row_texts(row, report), room)
        for row, guide in zip(below, guides(below, arm), strict=True)
    ]
    total = f"{'├' if texts else '└'}── {format_count(report.counts.total.parameters)} parameters"
    missing = missing_note((what for text in texts for what in text.left_out), room)
    beside = [line for note in also_in_file(report.model) for line in wrapped(note, room)]
    lines = (text.text for text in texts)
    return "\n".join([f"{harmless(report.model.name)}(", total, *lines, *missing, *beside])


def _fitting(guide: str, texts: Iterator[_RowText], room: int | None) -> _RowText:
    """The longest description of a row that fits; a name loses its middle last."""
    text = next(texts)
    while room is not None and width(guide + text.text) > room:
        shorter = next(texts, None)
        if shorter is None:
            return _RowText(shortened(guide + text.text, room), text.left_out)
        text = shorter
    return _RowText(guide + text.text, text.left_out)


def _row_texts(row: SummaryRow, report: SummaryReport) -> Iterator[_RowText]:
    """Descriptions of a row, from the full one to its name alone."""
    module, model = row.module, report.model
    name = name_text(row_name(row, model))
    other = same_as(row, model)
    if module.alias_of is not None:
        yield _RowText(f"{name}: {harmless(module.kind)} {SAME_AS} {other}")
        yield _RowText(f"{name} {SAME_AS} {other}", ("classes",))
        yield _RowText(f"{name} {SAME_AS}", ("classes", "whose they are"))
        return
    is_one = len(row.members) == 1
    kind = f"{name}: {harmless(module.kind)}" if is_one else name
    what = f"{name}: {brief(module.kind, module.extra)}" if is_one else name
    shape = f" → {output_text(row, report)}" if row.calls else ""
    params = f" [{format_count(row.total.parameters)} params"
    tied, problem = (", tied" if other else ""), ("  !" if module.problem else "")
    whole_tied = f"{tied} to {other}" if other else ""
    whole_problem = f"{problem} {harmless(module.problem)}" if module.problem else ""
    yield _RowText(f"{what}{shape}{params}{whole_tied}]{whole_problem}")
    less = [word for word, there in (("what is tied", tied), ("problems", problem)) if there]
    yield _RowText(f"{what}{shape}{params}{tied}]{problem}", tuple(less))
    less += ["settings"] * (what != kind)
    yield _RowText(f"{kind}{shape}{params}{tied}]{problem}", tuple(less))
    less += ["classes"] * (kind != name)
    yield _RowText(f"{name}{shape}{params}{tied}]{problem}", tuple(less))
    less += ["shapes"] * bool(shape)
    yield _RowText(f"{name}{params}{tied}]{problem}", tuple(less))
    yield _RowText(f"{name}{problem}", (*less, "parameters"))
