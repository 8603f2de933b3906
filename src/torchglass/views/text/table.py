"""A summary as a table of plain text."""

from __future__ import annotations

from collections.abc import Sequence

from torchglass.analyse.model.summary import SummaryReport
from torchglass.views.columns import Column, row_name
from torchglass.views.facts import facts, notes
from torchglass.views.formats import pad, shorten, width
from torchglass.views.text.guides import guides

_GAP = "  "
_LONGEST_NAME = 60


def table_text(report: SummaryReport, columns: Sequence[Column]) -> str:
    """The rows of a report below their headings, then its totals and notes."""
    names = (
        guide + shorten(row_name(row, report.model), _LONGEST_NAME)
        for row, guide in zip(report.rows, guides(report.rows, "─"), strict=True)
    )
    table = [["Module", *names]]
    table += [
        [column.title, *(column.text(row, report) for row in report.rows)] for column in columns
    ]
    aligned = [
        align(cells, right=right)
        for cells, right in zip(table, [False, *(column.right for column in columns)], strict=True)
    ]
    heading, *lines = (_GAP.join(cells).rstrip() for cells in zip(*aligned, strict=True))
    totals = _fact_lines(report)
    rule = "─" * max(width(line) for line in (heading, *lines, *totals))
    remarks = [rule, *found] if (found := notes(report)) else []
    return "\n".join([rule, heading, rule, *lines, rule, *totals, *remarks, rule])


def align(cells: Sequence[str], *, right: bool) -> list[str]:
    """Cells of a column, all as wide as the widest."""
    longest = max(map(width, cells))
    return [pad(cell, longest, right=right) for cell in cells]


def _fact_lines(report: SummaryReport) -> list[str]:
    found = facts(report)
    labels = align([fact.label for fact in found], right=False)
    return [
        f"{label}{_GAP}{fact.text}" + (f": {fact.meaning}" if fact.meaning else "")
        for label, fact in zip(labels, found, strict=True)
    ]
