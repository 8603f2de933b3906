"""A summary as a table of plain text."""

from __future__ import annotations

from collections.abc import Sequence

from torchglass.analyse.model.summary import SummaryReport
from torchglass.views.columns import Column, row_name
from torchglass.views.facts import facts, notes
from torchglass.views.formats import shorten
from torchglass.views.text.frame import fact_lines, lined_up, rule_for
from torchglass.views.text.guides import guides

_LONGEST_NAME = 60


def table_text(report: SummaryReport, columns: Sequence[Column]) -> str:
    """The rows of a report below their headings, then its totals and notes."""
    names = (
        guide + shorten(row_name(row, report.model), _LONGEST_NAME)
        for row, guide in zip(report.rows, guides(report.rows, "─"), strict=True)
    )
    texts = (
        ([column.title, *(column.text(row, report) for row in report.rows)], column.right)
        for column in columns
    )
    heading, *lines = lined_up([(["Module", *names], False), *texts])
    totals = fact_lines(
        [
            (fact.label, fact.text + (f": {fact.meaning}" if fact.meaning else ""))
            for fact in facts(report)
        ]
    )
    rule = rule_for([heading, *lines, *totals])
    remarks = [rule, *found] if (found := notes(report)) else []
    return "\n".join([rule, heading, rule, *lines, rule, *totals, *remarks, rule])
