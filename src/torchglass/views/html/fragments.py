"""Summaries, traces and explanations as HTML without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from importlib.resources import files

from torchglass.analyse.failure.failure import Failure
from torchglass.analyse.summary import SummaryReport, SummaryRow
from torchglass.analyse.trace import Anatomy, parameters_of
from torchglass.records.model import Model
from torchglass.records.trace import OpRecord
from torchglass.views.failure_words import Part, PartRow, digest, headline, parts
from torchglass.views.formats import format_bytes, format_count, format_shape, format_time, harmless
from torchglass.views.model_facts import Saved, ends, facts, notes, parameters, structure, tensors
from torchglass.views.summary_columns import COLUMNS, Column, row_name


def text(content: object) -> str:
    """Anything as text that no browser takes for markup."""
    return escape(harmless(str(content)))


@cache
def style(name: str) -> str:
    """A stylesheet of this package, to stand in the page itself."""
    return f"<style>\n{files(__package__).joinpath(name).read_text(encoding='utf-8')}</style>"


def failure_fragment(failure: Failure) -> str:
    """What went wrong and what would fit; two lines where nothing did."""
    if not failure.error:
        inside = [f"<p>{text(line)}</p>" for line in digest(failure.anatomy)]
    else:
        who, what = headline(failure)
        inside = [f'<h3>{text(who)} <span class="error">{_lines(what)}</span></h3>']
        inside += (html for part in parts(failure) for html in _part(part))
    return "\n".join([style("failure.css"), '<div class="torchglass-failure">', *inside, "</div>"])


def _part(part: Part) -> Iterator[str]:
    yield f"<h4>{text(part.title)}</h4>"
    if part.listed:
        yield "<ul>" + "".join(f"<li>{_lines(row[0])}</li>" for row in part.rows) + "</ul>"
    elif len(part.rows[0]) > 1:
        yield "<table><tbody>" + "".join(map(_row, part.rows)) + "</tbody></table>"
    else:
        yield from (f"<p>{_lines(row[0])}</p>" for row in part.rows)


def _row(row: PartRow) -> str:
    return "<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>"


def _lines(content: str) -> str:
    """Text whose further lines are code, which keeps its indent."""
    return "<br>".join(
        f"<code>{text(line.strip())}</code>" if line.startswith("    ") else text(line)
        for line in content.split("\n")
    )


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


def _cells(row: SummaryRow, report: SummaryReport, columns: Sequence[Column]) -> str:
    name = escape(row_name(row, report.model))
    lead = f'<span class="name" style="--depth: {row.depth}"><b>{name}</b></span>'
    return lead + "".join(_cell(column, row, report) for column in columns)


def _cell(column: Column, row: SummaryRow, report: SummaryReport) -> str:
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


_MOST_ROWS = 1_000
_HEADINGS = (
    ("", "number"),
    ("Layer", ""),
    ("Shape", ""),
    ("Type", ""),
    ("Size", "number"),
    ("Params", "number"),
    ("Module", ""),
    ("Parents", ""),
    ("Time", "number"),
)


def trace_fragment(anatomy: Anatomy, model: Model, saved: Saved) -> str:
    """What the pass was, and a row for each of its ops."""
    record = anatomy.record
    facts = (
        structure(anatomy, model),
        tensors(anatomy, saved),
        parameters(anatomy),
        f"{format_time((record.end_ns - record.start_ns) / 1e9)} elapsed",
    )
    heads = "".join(f'<th class="{kind}">{title}</th>' for title, kind in _HEADINGS)
    return "\n".join(
        [
            style("trace.css"),
            '<div class="torchglass-trace">',
            f"<h3>{text(record.model)}: forward pass</h3>",
            *([f'<p class="error">{text(record.error)}</p>'] if record.error else []),
            "<ul>",
            *(f"<li>{text(fact)}</li>" for fact in facts),
            "</ul>",
            f'<div class="layers"><table><thead><tr>{heads}</tr></thead><tbody>',
            *_trace_rows(anatomy),
            "</tbody></table></div></div>",
        ]
    )


def _trace_rows(anatomy: Anatomy) -> Iterator[str]:
    longest = max((op.end_ns - op.start_ns for op in anatomy.record.ops), default=0)
    listed = [(place, anatomy.record.ops[op]) for place, op in enumerate(anatomy.listed)]
    first, left_out, last = ends(listed, _MOST_ROWS)
    for place, op in first:
        yield _trace_row(anatomy, place, op, longest)
    if left_out:
        yield f'<tr><td colspan="{len(_HEADINGS)}" class="quiet">… {left_out} more …</td></tr>'
    for place, op in last:
        yield _trace_row(anatomy, place, op, longest)


def _trace_row(anatomy: Anatomy, place: int, op: OpRecord, longest: int) -> str:
    spec = op.outputs[0].spec if op.outputs else None
    calls = anatomy.modules(op.id)
    used = sum(parameter.elements for parameter in parameters_of(op).values())
    size = sum(value.spec.bytes for value in op.outputs)
    parents = ", ".join(str(anatomy.labels[parent]) for parent in op.parents)
    return (
        "<tr>"
        f'<td class="number quiet">{place}</td>'
        f"<td>{text(anatomy.labels[op.id])}</td>"
        f"<td>{text(format_shape(spec.shape) if spec else '')}</td>"
        f'<td class="quiet">{text(spec.dtype if spec else "")}</td>'
        f'<td class="number">{format_bytes(size)}</td>'
        f'<td class="number">{format_count(used) if used else ""}</td>'
        f'<td class="quiet">{text(anatomy.call_name(calls[-1]) if calls else "")}</td>'
        f'<td class="quiet">{text(parents)}</td>'
        f"{_time(op, longest)}"
        "</tr>"
    )


def _time(op: OpRecord, longest: int) -> str:
    taken = op.end_ns - op.start_ns
    if not taken:
        return "<td></td>"
    share = f"{taken / longest:.1%}"
    return f'<td class="number time" style="--share: {share}">{format_time(taken / 1e9)}</td>'
