"""JSON, CSV and HTML files: their text, and the paths they are written to."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from torchglass.tables.text import Column, Fact, harmless


def json_text(plain: Any) -> str:
    """JSON in ASCII, so that any name can be written anywhere."""
    return json.dumps(plain, indent=2)


def typed_shape(shape: Sequence[int] | None) -> str:
    """A shape as it is typed on the command line: "1x3x224x224"."""
    return "?" if shape is None else "x".join(map(str, shape)) or "scalar"


def csv_text(headings: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A line of headings, and a line for each row; None leaves its cell empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    return text.getvalue()


def without_ending(file: str | os.PathLike[str], *endings: str) -> Path:
    """A path without its file ending, if that is one of these: "lr0.1" has none.

    >>> without_ending("insight.json", "json").name, without_ending("lr0.1", "json").name
    ('insight', 'lr0.1')
    """
    path = Path(file)
    if path.suffix.removeprefix(".").lower() in endings:
        return path.with_suffix("")
    return path


def in_its_folder(file: str | os.PathLike[str]) -> Path:
    """The path of a file to write; its folder is created if needed."""
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        folder = str(path.parent)
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None
    return path


File = str | os.PathLike[str]


def written(text: str, file: File | None) -> str:
    """The text, also written to a file if one is given."""
    if file is not None:
        in_its_folder(file).write_text(text, encoding="utf-8")
    return text


R = TypeVar("R")

_OPEN_LEVELS = 2
_OPEN_ALL = 60
"""Up to this many rows nothing is collapsed at first."""
_WIDEST = 36
_ROOM = 4
"""Characters of a column: the maximum, and the margin."""


class HtmlRow(NamedTuple, Generic[R]):
    """A row of a tree: the record of its cells, its name and its depth."""

    row: R
    name: str
    depth: int


def html_text(content: object) -> str:
    """Anything as escaped text."""
    return escape(harmless(str(content)))


@cache
def stylesheet(name: str) -> str:
    """A stylesheet of this package, for the page itself."""
    from importlib.resources import files

    return f"<style>\n{files(__package__).joinpath(name).read_text(encoding='utf-8')}</style>"


def html_page(title: str, fragment: str) -> str:
    """A self-contained page that follows the light or dark theme of the browser."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{html_text(title)}</title>\n{stylesheet('page.css')}\n"
        f"</head>\n<body>\n{fragment}\n</body>\n</html>\n"
    )


def tree_fragment(
    title: str,
    origin: str,
    facts: Iterable[Fact],
    columns: Sequence[Column[R]],
    rows: Sequence[HtmlRow[R]],
    notes: Iterable[str],
    heading: str = "Module",
) -> str:
    """A tree with columns, its facts above and its notes below, in the colors of the page."""
    items = [f"<li>{html_text(note)}</li>" for note in notes]
    titles = "".join(f'<span class="{_kind(one)}">{one.heading}</span>' for one in columns)
    return "\n".join(
        [
            stylesheet("tree.css"),
            f'<div class="torchglass" style="--columns: {_tracks(columns, rows)}">',
            f"<h1>{html_text(title)}</h1>",
            f'<p class="origin">{html_text(origin)}</p>',
            "<dl>",
            *map(_fact, facts),
            "</dl>",
            '<div class="rows">',
            f'<div class="row head"><span>{html_text(heading)}</span>{titles}</div>',
            *_rows(columns, rows),
            "</div>",
            *(["<ul>", *items, "</ul>"] if items else []),
            "</div>",
        ]
    )


def _fact(fact: Fact) -> str:
    small = f"<small>{html_text(fact.meaning)}</small>" if fact.meaning else ""
    label = fact.label.strip().capitalize()
    return f"<div><dt>{html_text(label)}</dt><dd>{html_text(fact.text)}{small}</dd></div>"


def _rows(columns: Sequence[Column[R]], rows: Sequence[HtmlRow[R]]) -> Iterator[str]:
    """The rows; those with rows below them can be collapsed."""
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
    """The widths of the columns. They are computed here because each row is a separate grid."""
    widest = (
        max(len(column.heading), *(len(column.text(each.row)) for each in rows))
        for column in columns
    )
    return "minmax(240px, 1fr) " + " ".join(f"{min(size + _ROOM, _WIDEST)}ch" for size in widest)
