"""Tables of what was measured, with a line for each module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torchglass.analyse.rows import Measured, Row, full_name
from torchglass.records.model import Model
from torchglass.views.formats import harmless, shorten
from torchglass.views.tables import Column
from torchglass.views.text.fitting import Cells
from torchglass.views.text.frame import framed
from torchglass.views.text.guides import guides

M = TypeVar("M", bound=Measured)
R = TypeVar("R")
W = TypeVar("W")

_LONGEST_NAME = 60


def module_table(
    rows: Sequence[Row[M]],
    columns: Sequence[Column[M, W]],
    whole: W,
    below: Sequence[str],
    room: int | None = None,
) -> str:
    """The modules below their headings, then what is to be said of the whole."""
    names = [
        guide + shorten(harmless(row.name), _LONGEST_NAME)
        for row, guide in zip(rows, guides(rows, "─"), strict=True)
    ]
    measured = [row.measured for row in rows]
    texts = (column_cells(column, measured, whole) for column in columns)
    return framed([Cells(["Module", *names], right=False), *texts], below, room=room)


def column_cells(column: Column[R, W], rows: Sequence[R], whole: W) -> Cells:
    """A column with a cell for each row."""
    texts = [column.title, *(column.text(row, whole) for row in rows)]
    return Cells(texts, column.right, column.spare)


def path_text(path: str | None, model: Model) -> str:
    """Where a module is, in no more than the room that there is for it."""
    return shorten(harmless(full_name(path, model)), _LONGEST_NAME)


def class_text(measured: Measured, model: Model) -> str:
    """The class of a module; none for one made as the model ran, and for what is no module's."""
    module = None if measured.path is None else model.find(measured.path)
    return "" if module is None else harmless(module.kind)
