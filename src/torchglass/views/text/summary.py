"""A model as a text table or a tree.

ResNet(
├── 11.7M parameters
├── conv1: Conv2d(3→64, 7×7) [9.4K params]
├── layer1: Sequential [148.0K params]
│   └── 0: BasicBlock [74.0K params]
└── fc: Linear(512→1000) [513.0K params]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torchglass.analyse.summary import SummaryReport, SummaryRow
from torchglass.tables.text import (
    Cells,
    column_cells,
    fact_lines,
    framed,
    guides,
    missing_note,
    shortened,
    wrapped,
)
from torchglass.views.formats import SAME_AS, format_count, harmless, shorten, width
from torchglass.views.model_facts import also_in_file, facts, notes
from torchglass.views.module_signature import brief
from torchglass.views.summary_columns import Column, output_text, row_name, same_as

_LONGEST_NAME = 60


def table_text(report: SummaryReport, columns: Sequence[Column], room: int | None = None) -> str:
    """The rows of a report below their headings, then its totals and notes."""
    names = (
        guide + shorten(row_name(row, report.model), _LONGEST_NAME)
        for row, guide in zip(report.rows, guides(report.rows, "─"), strict=True)
    )
    texts = (column_cells(column, report.rows, report) for column in columns)
    totals = fact_lines(
        [
            (fact.label, fact.text + (f": {fact.meaning}" if fact.meaning else ""))
            for fact in facts(report)
        ],
        room,
    )
    remarks = [line for note in notes(report) for line in wrapped(note, room)]
    return framed([Cells(["Module", *names], right=False), *texts], totals, remarks, room=room)


class _Way(NamedTuple):
    """One way to say what a row is."""

    text: str
    left_out: tuple[str, ...] = ()


def tree_text(report: SummaryReport, room: int | None = None) -> str:
    """The rows of a report, each with what its module does, what comes out and its parameters.

    With a room of so many terminal cells a row that is too long says less, and the end says what.
    """
    below = report.rows[1:]
    deepest = max((row.depth for row in below), default=0)
    # The lines of a deep tree would leave nothing for the names.
    arm = "──" if room is None or 2 * len("├── ") * deepest <= room else ""
    ways = [
        _fitting(guide, _ways(row, report), room)
        for row, guide in zip(below, guides(below, arm), strict=True)
    ]
    total = f"{'├' if ways else '└'}── {format_count(report.counts.total.parameters)} parameters"
    missing = missing_note((what for way in ways for what in way.left_out), room)
    beside = [line for note in also_in_file(report.model) for line in wrapped(note, room)]
    return "\n".join(
        [f"{harmless(report.model.name)}(", total, *(way.text for way in ways), *missing, *beside]
    )


def _fitting(guide: str, ways: Iterator[_Way], room: int | None) -> _Way:
    """The fullest way to say what a row is that there is room for; a name loses its middle last."""
    way = next(ways)
    while room is not None and width(guide + way.text) > room:
        shorter = next(ways, None)
        if shorter is None:
            return _Way(shortened(guide + way.text, room), way.left_out)
        way = shorter
    return _Way(guide + way.text, way.left_out)


def _ways(row: SummaryRow, report: SummaryReport) -> Iterator[_Way]:
    """What a row is, in full and then in fewer and fewer words, at last its name alone."""
    module, model = row.module, report.model
    name = shorten(row_name(row, model), _LONGEST_NAME)
    other = same_as(row, model)
    if module.alias_of is not None:
        yield _Way(f"{name}: {harmless(module.kind)} {SAME_AS} {other}")
        yield _Way(f"{name} {SAME_AS} {other}", ("classes",))
        yield _Way(f"{name} {SAME_AS}", ("classes", "whose they are"))
        return
    is_one = len(row.members) == 1
    kind = f"{name}: {harmless(module.kind)}" if is_one else name
    what = f"{name}: {brief(module.kind, module.extra)}" if is_one else name
    shape = f" → {output_text(row, report)}" if row.calls else ""
    params = f" [{format_count(row.total.parameters)} params"
    tied, problem = (", tied" if other else ""), ("  !" if module.problem else "")
    whole_tied = f"{tied} to {other}" if other else ""
    whole_problem = f"{problem} {harmless(module.problem)}" if module.problem else ""
    yield _Way(f"{what}{shape}{params}{whole_tied}]{whole_problem}")
    less = [word for word, there in (("what is tied", tied), ("problems", problem)) if there]
    yield _Way(f"{what}{shape}{params}{tied}]{problem}", tuple(less))
    less += ["settings"] * (what != kind)
    yield _Way(f"{kind}{shape}{params}{tied}]{problem}", tuple(less))
    less += ["classes"] * (kind != name)
    yield _Way(f"{name}{shape}{params}{tied}]{problem}", tuple(less))
    less += ["shapes"] * bool(shape)
    yield _Way(f"{name}{params}{tied}]{problem}", tuple(less))
    yield _Way(f"{name}{problem}", (*less, "parameters"))
