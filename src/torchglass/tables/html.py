"""Tables as HTML without scripts: a page of its own, or a fragment for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from html import escape
from typing import Generic, NamedTuple, TypeVar

from torchglass.tables.column import Column
from torchglass.tables.text import Fact
from torchglass.views.formats import harmless

R = TypeVar("R")

_OPEN_LEVELS = 2
_OPEN_ALL = 60
"""Up to this many rows nothing is collapsed at first."""
_WIDEST = 36
_ROOM = 4
"""Characters of a column: the most there may be, and how many more than needed."""


class HtmlRow(NamedTuple, Generic[R]):
    """A row of a tree: what its cells are made from, its name and its depth."""

    row: R
    name: str
    depth: int


def text(content: object) -> str:
    """Anything as text that no browser takes for markup."""
    return escape(harmless(str(content)))


@cache
def style(name: str) -> str:
    """A stylesheet of this package, for the page itself."""
    from importlib.resources import files

    return f"<style>\n{files(__package__).joinpath(name).read_text(encoding='utf-8')}</style>"


def page(title: str, fragment: str) -> str:
    """A self-contained file, light or dark as the reader prefers."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{text(title)}</title>\n{style('page.css')}\n"
        f"</head>\n<body>\n{fragment}\n</body>\n</html>\n"
    )


def tree_fragment(
    title: str,
    origin: str,
    facts: Iterable[Fact],
    columns: Sequence[Column[R]],
    rows: Sequence[HtmlRow[R]],
    notes: Iterable[str],
) -> str:
    """A tree with columns, its facts above and its notes below, in the colours of the page."""
    items = [f"<li>{text(note)}</li>" for note in notes]
    return "\n".join(
        [
            style("tree.css"),
            f'<div class="torchglass" style="--columns: {_tracks(columns, rows)}">',
            f"<h1>{text(title)}</h1>",
            f'<p class="origin">{text(origin)}</p>',
            "<dl>",
            *map(_fact, facts),
            "</dl>",
            '<div class="rows">',
            _head(columns),
            *_rows(columns, rows),
            "</div>",
            *(["<ul>", *items, "</ul>"] if items else []),
            "</div>",
        ]
    )


def _fact(fact: Fact) -> str:
    small = f"<small>{text(fact.meaning)}</small>" if fact.meaning else ""
    label = fact.label.strip().capitalize()
    return f"<div><dt>{text(label)}</dt><dd>{text(fact.text)}{small}</dd></div>"


def _head(columns: Sequence[Column[R]]) -> str:
    titles = "".join(f'<span class="{_kind(column)}">{column.heading}</span>' for column in columns)
    return f'<div class="row head"><span>Module</span>{titles}</div>'


def _rows(columns: Sequence[Column[R]], rows: Sequence[HtmlRow[R]]) -> Iterator[str]:
    """Rows with others below them collapse; the tree is closed level by level as it rises."""
    levels = _OPEN_LEVELS if len(rows) > _OPEN_ALL else len(rows)
    unclosed = 0
    for row, after in zip(rows, (*rows[1:], None), strict=True):
        cells = _cells(columns, row)
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


def _cells(columns: Sequence[Column[R]], row: HtmlRow[R]) -> str:
    name = escape(row.name)
    lead = f'<span class="name" style="--depth: {row.depth}"><b>{name}</b></span>'
    return lead + "".join(_cell(column, row.row) for column in columns)


def _cell(column: Column[R], row: R) -> str:
    content = escape(column.text(row))
    if column.bar is None or not content:
        return f'<span class="{_kind(column)}">{content}</span>'
    share = f"{column.bar(row):.1%}"
    return f'<span class="cell number share" style="--share: {share}">{content}</span>'


def _kind(column: Column[R]) -> str:
    return "cell number" if column.right else "cell"


def _tracks(columns: Sequence[Column[R]], rows: Sequence[HtmlRow[R]]) -> str:
    """The widths of the columns. Each row is a grid of its own, so they are computed here."""
    widest = (
        max(len(column.heading), *(len(column.text(each.row)) for each in rows))
        for column in columns
    )
    return "minmax(240px, 1fr) " + " ".join(f"{min(size + _ROOM, _WIDEST)}ch" for size in widest)
