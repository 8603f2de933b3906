"""Traces and explanations as HTML without scripts."""

from __future__ import annotations

from collections.abc import Iterator

from torchglass.analyse.failure.failure import Failure
from torchglass.analyse.trace import TraceStructure, parameters_of
from torchglass.records.model import Model
from torchglass.records.trace import OpRecord
from torchglass.tables.export import html_text, stylesheet
from torchglass.views.failure_text import Part, PartRow, digest, headline, parts
from torchglass.views.formats import format_bytes, format_count, format_shape, format_time
from torchglass.views.model_text import Saved, ends, parameters, structure, tensors


def failure_fragment(failure: Failure) -> str:
    """What went wrong and what would fit; two lines where nothing did."""
    if not failure.error:
        inside = [f"<p>{html_text(line)}</p>" for line in digest(failure.anatomy)]
    else:
        who, what = headline(failure)
        inside = [f'<h3>{html_text(who)} <span class="error">{_lines(what)}</span></h3>']
        inside += (html for part in parts(failure) for html in _part(part))
    return "\n".join(
        [stylesheet("failure.css"), '<div class="torchglass-failure">', *inside, "</div>"]
    )


def _part(part: Part) -> Iterator[str]:
    yield f"<h4>{html_text(part.title)}</h4>"
    if part.listed:
        yield "<ul>" + "".join(f"<li>{_lines(row[0])}</li>" for row in part.rows) + "</ul>"
    elif len(part.rows[0]) > 1:
        yield "<table><tbody>" + "".join(map(_row, part.rows)) + "</tbody></table>"
    else:
        yield from (f"<p>{_lines(row[0])}</p>" for row in part.rows)


def _row(row: PartRow) -> str:
    return "<tr>" + "".join(f"<td>{html_text(cell)}</td>" for cell in row) + "</tr>"


def _lines(content: str) -> str:
    """Text whose further lines are code, which keeps its indent."""
    return "<br>".join(
        f"<code>{html_text(line.strip())}</code>" if line.startswith("    ") else html_text(line)
        for line in content.split("\n")
    )


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


def trace_fragment(anatomy: TraceStructure, model: Model, saved: Saved) -> str:
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
            stylesheet("trace.css"),
            '<div class="torchglass-trace">',
            f"<h3>{html_text(record.model)}: forward pass</h3>",
            *([f'<p class="error">{html_text(record.error)}</p>'] if record.error else []),
            "<ul>",
            *(f"<li>{html_text(fact)}</li>" for fact in facts),
            "</ul>",
            f'<div class="layers"><table><thead><tr>{heads}</tr></thead><tbody>',
            *_trace_rows(anatomy),
            "</tbody></table></div></div>",
        ]
    )


def _trace_rows(anatomy: TraceStructure) -> Iterator[str]:
    longest = max((op.end_ns - op.start_ns for op in anatomy.record.ops), default=0)
    listed = [(place, anatomy.record.ops[op]) for place, op in enumerate(anatomy.listed)]
    first, left_out, last = ends(listed, _MOST_ROWS)
    for place, op in first:
        yield _trace_row(anatomy, place, op, longest)
    if left_out:
        yield f'<tr><td colspan="{len(_HEADINGS)}" class="quiet">… {left_out} more …</td></tr>'
    for place, op in last:
        yield _trace_row(anatomy, place, op, longest)


def _trace_row(anatomy: TraceStructure, place: int, op: OpRecord, longest: int) -> str:
    spec = op.outputs[0].spec if op.outputs else None
    calls = anatomy.modules(op.id)
    used = sum(parameter.elements for parameter in parameters_of(op).values())
    size = sum(value.spec.bytes for value in op.outputs)
    parents = ", ".join(str(anatomy.labels[parent]) for parent in op.parents)
    return (
        "<tr>"
        f'<td class="number quiet">{place}</td>'
        f"<td>{html_text(anatomy.labels[op.id])}</td>"
        f"<td>{html_text(format_shape(spec.shape) if spec else '')}</td>"
        f'<td class="quiet">{html_text(spec.dtype if spec else "")}</td>'
        f'<td class="number">{format_bytes(size)}</td>'
        f'<td class="number">{format_count(used) if used else ""}</td>'
        f'<td class="quiet">{html_text(anatomy.call_name(calls[-1]) if calls else "")}</td>'
        f'<td class="quiet">{html_text(parents)}</td>'
        f"{_time(op, longest)}"
        "</tr>"
    )


def _time(op: OpRecord, longest: int) -> str:
    taken = op.end_ns - op.start_ns
    if not taken:
        return "<td></td>"
    share = f"{taken / longest:.1%}"
    return f'<td class="number time" style="--share: {share}">{format_time(taken / 1e9)}</td>'
