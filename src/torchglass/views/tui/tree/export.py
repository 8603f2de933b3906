"""The tree as text, JSON, CSV or HTML."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from textual.app import App

from torchglass.views.formats import harmless, pad, width
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.tree.column_values import RowModules
from torchglass.views.tui.tree.columns import TreeColumn
from torchglass.views.tui.windows import screenshot

_STYLE = """
:root { color-scheme: light dark; }
body { font: 14px/1.5 ui-sans-serif, system-ui, sans-serif; margin: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .15rem .75rem; white-space: pre; }
th { border-bottom: 1px solid; } .right { text-align: right; }
tr:hover { background: color-mix(in srgb, currentColor 8%, transparent); }
"""


class TreeLine(NamedTuple):
    """A row of the tree and its depth."""

    row: RowModules
    depth: int


class TreeTable(NamedTuple):
    """What the tree shows."""

    state: ExplorerState
    columns: Sequence[TreeColumn]
    lines: Sequence[TreeLine]


def to_text(table: TreeTable) -> str:
    """A text table with indented names."""
    cells = [["name", *(column.title for column in table.columns)], *_texts(table)]
    widths = [max(map(width, column)) for column in zip(*cells, strict=True)]
    right = [False, *(column.right for column in table.columns)]
    lines = (
        "  ".join(pad(text, cells, right=at_right) for text, cells, at_right in cells_of)
        for cells_of in (zip(line, widths, right, strict=True) for line in cells)
    )
    return "\n".join(line.rstrip() for line in lines) + "\n"


def to_json(table: TreeTable) -> str:
    """The path, class and values of each row; names include the unit."""
    titles = _headings(table)
    rows = [dict(zip(titles, values, strict=True)) for values in _values(table)]
    model = table.state.model
    return json.dumps({"model": model.name, "modules": rows}, indent=1) + "\n"


def to_csv(table: TreeTable) -> str:
    """The path, class and values of each row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_headings(table))
    writer.writerows(_values(table))
    return text.getvalue()


def to_html(table: TreeTable) -> str:
    """One page without external resources."""
    model = escape(harmless(table.state.model.name))
    heads = ["<th>name</th>", *(_cell("th", c.title, c.right) for c in table.columns)]
    body = "\n".join(
        f"<tr>{_cell('td', texts[0], False)}"
        + "".join(
            _cell("td", text, column.right)
            for text, column in zip(texts[1:], table.columns, strict=True)
        )
        + "</tr>"
        for texts in _texts(table)
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{model}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{model}</h1>\n<table>\n<thead><tr>{''.join(heads)}</tr>"
        f"</thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</html>\n"
    )


FORMATS: Mapping[str, tuple[str, Callable[[TreeTable], str]]] = {
    "text": (".txt", to_text),
    "JSON": (".json", to_json),
    "CSV": (".csv", to_csv),
    "HTML": (".html", to_html),
}


def new_file(folder: Path, name: str, suffix: str) -> Path:
    """A path in a folder that does not exist yet."""
    stem = "".join(char if char.isalnum() or char in "-_." else "_" for char in name) or "model"
    names = (f"{stem}-{number}" if number > 1 else stem for number in count(1))
    return next(path for each in names if not (path := folder / f"{each}{suffix}").exists())


def _headings(table: TreeTable) -> list[str]:
    beside = [column.file_heading for column in table.columns if column.id != "class"]
    return ["path", "class", *beside]


def _texts(table: TreeTable) -> list[list[str]]:
    return [
        [
            "  " * line.depth + _name(table, line.row),
            *(column.text(table.state, line.row).strip() for column in table.columns),
        ]
        for line in table.lines
    ]


def _name(table: TreeTable, row: RowModules) -> str:
    module = row[0]
    if module.parent is None:
        return harmless(table.state.model.name)
    repeats = f"{len(row)} × " if len(row) > 1 else ""
    return repeats + harmless(module.name)


def _values(table: TreeTable) -> list[list[float | str | None]]:
    return [
        [
            line.row[0].path,
            line.row[0].class_name,
            *(
                column.value(table.state, line.row)
                for column in table.columns
                if column.id != "class"
            ),
        ]
        for line in table.lines
    ]


def _cell(tag: str, text: str, right: bool) -> str:
    return (
        f'<{tag} class="right">{escape(text)}</{tag}>'
        if right
        else f"<{tag}>{escape(text)}</{tag}>"
    )


_PICTURE = "SVG"


def choices() -> list[tuple[str, str]]:
    """The export formats, and what each contains."""
    tables = [(name, f"{name:5} rows and columns of the tree") for name in FORMATS]
    return [*tables, (_PICTURE, f"{_PICTURE:5} screenshot")]


def save(app: App[Any], table: TreeTable, format: str) -> str:
    """Export the table, or a screenshot; the message for the user."""
    suffix, write = FORMATS.get(format, (f".{_PICTURE.lower()}", None))
    path = new_file(Path.cwd(), table.state.model.name, suffix)
    try:
        text = write(table) if write else screenshot(app)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        return f"Cannot write {path}: {error.strerror}"
    return f"Wrote {path.name}"
