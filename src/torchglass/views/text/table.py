"""A summary as a table of plain text."""

from __future__ import annotations

from collections.abc import Sequence

from torchglass.analyse.model.summary import SummaryReport
from torchglass.views.columns import Column, row_name
from torchglass.views.facts import facts, notes
from torchglass.views.formats import shorten
from torchglass.views.text.fitting import Cells, wrapped
from torchglass.views.text.frame import fact_lines, framed
from torchglass.views.text.guides import guides
from torchglass.views.text.modules import column_cells

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
