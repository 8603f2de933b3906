"""The story of a forward as HTML for a notebook: no script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from torchglass.analyse.failure.story import Failure
from torchglass.views.failure_words import Part, Row, digest, headline, parts
from torchglass.views.html.parts import style, text


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


def _row(row: Row) -> str:
    return "<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>"


def _lines(content: str) -> str:
    """Text whose further lines are code, which keeps its indent."""
    return "<br>".join(
        f"<code>{text(line.strip())}</code>" if line.startswith("    ") else text(line)
        for line in content.split("\n")
    )
