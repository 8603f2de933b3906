"""The tree as text, JSON, CSV or HTML, written as all tables are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from textual.app import App

from torchglass.tables.export import HtmlRow, csv_text, html_page, json_text, tree_fragment
from torchglass.tables.text import Column, TextColumn, column_texts, csv_rows, file_column, lined_up
from torchglass.views.formats import harmless
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.tree.column_values import RowModules
from torchglass.views.tui.tree.columns import TreeColumn
from torchglass.views.tui.windows import screenshot


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
    names = ["  " * line.depth + _name(table, line.row) for line in table.lines]
    columns = column_texts(_columns(table), table.lines)
    return "\n".join(lined_up([TextColumn(["name", *names], right=False), *columns])) + "\n"


def to_json(table: TreeTable) -> str:
    """The path, class and values of each row; names include the unit."""
    headings, rows = _file_rows(table)
    modules = [dict(zip(headings, row, strict=True)) for row in rows]
    return json_text({"model": table.state.model.name, "modules": modules}) + "\n"


def to_csv(table: TreeTable) -> str:
    """The path, class and values of each row."""
    return csv_text(*_file_rows(table))


def to_html(table: TreeTable) -> str:
    """One page without external resources."""
    rows = [HtmlRow(line, _name(table, line.row), line.depth) for line in table.lines]
    name = table.state.model.name
    return html_page(name, tree_fragment(name, table.state.run.name, (), _columns(table), rows, ()))


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


def _columns(table: TreeTable) -> list[Column[TreeLine]]:
    """The columns of the tree as those of any table."""

    def to_read(column: TreeColumn) -> Column[TreeLine]:
        return Column(
            column.id,
            column.title,
            lambda line: column.text(table.state, line.row).strip(),
            right=column.right,
            csv=column.file_heading,
            value=lambda line: column.value(table.state, line.row),
        )

    return [to_read(column) for column in table.columns]


def _file_rows(table: TreeTable) -> tuple[list[str], list[list[Any]]]:
    first: list[Column[TreeLine]] = [
        file_column("path", lambda line: line.row[0].path),
        file_column("class", lambda line: line.row[0].class_name),
    ]
    others = [column for column in _columns(table) if column.key != "class"]
    return csv_rows([*first, *others], table.lines)


def _name(table: TreeTable, row: RowModules) -> str:
    if row[0].parent is None:
        return harmless(table.state.model.name)
    repeats = f"{len(row)} × " if len(row) > 1 else ""
    return repeats + harmless(row[0].name)


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
