"""A summary as HTML that needs no script and nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from torchglass.analyse.model.summary import Row, SummaryReport
from torchglass.views.columns import COLUMNS, Column, row_name
from torchglass.views.facts import facts, notes
from torchglass.views.html.parts import style, text

_OPEN_LEVELS = 2
_WIDEST = 36
_ROOM = 4
"""Characters of a column: the most that there may be, and how many more than needed."""
_OPEN_ALL = 60
"""Up to so many rows nothing is folded at first."""


def summary_page(report: SummaryReport, columns: Sequence[Column]) -> str:
    """One file to keep, to send, or to open anywhere; light or dark as the reader has it."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{text(report.model.name)}</title>\n{style('page.css')}\n"
        f"</head>\n<body>\n{summary_fragment(report, columns)}\n</body>\n</html>\n"
    )


def summary_fragment(report: SummaryReport, columns: Sequence[Column]) -> str:
    """The same for the inside of a page, such as a notebook, in the colours that it has."""
    return "\n".join(
        [
            style("summary.css"),
            f'<div class="torchglass" style="--columns: {_tracks(report, columns)}">',
            f"<h1>{text(report.model.name)}</h1>",
            f'<p class="origin">{text(report.model.origin or report.model.root.class_name)}</p>',
            "<dl>",
            *_facts(report),
            "</dl>",
            '<div class="rows">',
            _head(columns),
            *_rows(report, columns),
            "</div>",
            *_notes(report),
            "</div>",
        ]
    )


def _facts(report: SummaryReport) -> Iterator[str]:
    for fact in facts(report):
        small = f"<small>{text(fact.meaning)}</small>" if fact.meaning else ""
        label = fact.label.strip().capitalize()
        yield f"<div><dt>{text(label)}</dt><dd>{text(fact.text)}{small}</dd></div>"


def _notes(report: SummaryReport) -> list[str]:
    items = [f"<li>{text(note)}</li>" for note in notes(report)]
    return ["<ul>", *items, "</ul>"] if items else []


def _head(columns: Sequence[Column]) -> str:
    titles = "".join(f'<span class="{_kind(column)}">{column.title}</span>' for column in columns)
    return f'<div class="row head"><span>Module</span>{titles}</div>'


def _rows(report: SummaryReport, columns: Sequence[Column]) -> Iterator[str]:
    """Rows with others below them fold; the tree is closed again step by step as it rises."""
    rows = report.rows
    levels = _OPEN_LEVELS if len(rows) > _OPEN_ALL else len(rows)
    unclosed = 0
    for row, after in zip(rows, (*rows[1:], None), strict=True):
        cells = _cells(row, report, columns)
        if after is not None and after.depth > row.depth:
            opened = " open" if row.depth < levels else ""
            yield f'<details{opened}><summary class="row">{cells}</summary>'
            unclosed += 1
        else:
            yield f'<div class="row">{cells}</div>'
            rise = unclosed if after is None else row.depth - after.depth
            if rise:
                yield "</details>" * rise
                unclosed -= rise


def _cells(row: Row, report: SummaryReport, columns: Sequence[Column]) -> str:
    name = escape(row_name(row, report.model))
    lead = f'<span class="name" style="--depth: {row.depth}"><b>{name}</b></span>'
    return lead + "".join(_cell(column, row, report) for column in columns)


def _cell(column: Column, row: Row, report: SummaryReport) -> str:
    content = escape(column.text(row, report))
    if column is not COLUMNS["share"] or not content:
        return f'<span class="{_kind(column)}">{content}</span>'
    share = row.total.parameters / report.counts.total.parameters
    return f'<span class="cell number share" style="--share: {share:.1%}">{content}</span>'


def _kind(column: Column) -> str:
    return "cell number" if column.right else "cell"


def _tracks(report: SummaryReport, columns: Sequence[Column]) -> str:
    """The widths of the columns. Rows are grids of their own, so the widest text is found here."""
    widest = (
        max(len(column.title), *(len(column.text(row, report)) for row in report.rows))
        for column in columns
    )
    return "minmax(240px, 1fr) " + " ".join(f"{min(size + _ROOM, _WIDEST)}ch" for size in widest)
