"""What the explorer shows, written to a new file of the current folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual.app import App

from torchglass.views.tui.screenshot import screenshot
from torchglass.views.tui.tree.exporting import FORMATS, Line, Table, new_file
from torchglass.views.tui.tree.tree import ModuleTree

_PICTURE = "SVG"


def choices() -> list[tuple[str, str]]:
    """The formats, each with a word on what is written."""
    tables = [(name, f"{name:5} rows and columns of the tree") for name in FORMATS]
    return [*tables, (_PICTURE, f"{_PICTURE:5} screenshot")]


def save(app: App[Any], tree: ModuleTree, format: str) -> str:
    """Write what is shown in a format; what to tell the user of it."""
    suffix, write = FORMATS.get(format, (f".{_PICTURE.lower()}", None))
    path = new_file(Path.cwd(), tree.subject.model.name, suffix)
    try:
        text = write(_table(tree)) if write else screenshot(app)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        return f"Cannot write {path}: {error.strerror}"
    return f"Wrote {path.name}"


def _table(tree: ModuleTree) -> Table:
    model, depths = tree.subject.model, tree.subject.outline.depths
    modules = (model[row] for row in tree.arrangement.rows.tolist())
    lines = [Line(tree.arrangement.row(module), depths[module.id]) for module in modules]
    return Table(tree.subject, tree.columns, lines)
