"""Text tables with one row per module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from torchglass.analyse.module_rows import Measured, ModuleRow, full_name
from torchglass.records.model import Model
from torchglass.views.formats import NOT_RUN, harmless, shorten
from torchglass.views.table_columns import Column, Look
from torchglass.views.text.layout import Cells, framed, guides, wrapped

M = TypeVar("M", bound=Measured)
R = TypeVar("R")
W = TypeVar("W")

_LONGEST_NAME = 60
_MORE_TENSORS = re.compile(r"\S \+\d+$")
_MOST_ROWS = 100
"""Of a table whose depth nobody named."""


def module_table(
    rows: Sequence[ModuleRow[M]],
    columns: Sequence[Column[M, W]],
    whole: W,
    below: Sequence[str],
    look: Look,
) -> str:
    """The modules below their headings, then what is to be said of the whole."""
    every, rows = rows, _readable(rows, look)
    hidden = _hidden_line(every, rows, look)
    names = [
        guide + shorten(harmless(row.name), _LONGEST_NAME)
        for row, guide in zip(rows, guides(rows, "─"), strict=True)
    ]
    measured = [row.measured for row in rows]
    cells = [column_cells(column, measured, whole) for column in columns]
    signs = _sign_lines(text for column in cells for text in column.texts[1:])
    named = Cells(["Module", *names], right=False)
    return framed([named, *cells], [*signs, *hidden], below, room=look.room)


def _sign_lines(texts: Iterable[str]) -> list[str]:
    """What the signs in some cells mean, of those that are there."""
    every = set(texts)
    not_run = [f"{NOT_RUN}: not called in this forward"] if NOT_RUN in every else []
    more = any(_MORE_TENSORS.search(text) for text in every)
    return [*not_run, *(["+1: one more output tensor"] if more else [])]


def _readable(rows: Sequence[ModuleRow[M]], look: Look) -> Sequence[ModuleRow[M]]:
    """All rows; of a long table those down to the depth that can be read at once."""
    if look.depth is not None or len(rows) <= _MOST_ROWS:
        return rows
    depth = readable_depth([row.depth for row in rows])
    return [row for row in rows if row.depth <= depth] if depth else rows[:_MOST_ROWS]


def readable_depth(depths: Sequence[int]) -> int:
    """The depth down to which a tree has about a hundred rows; 0 if its first level has more."""
    deepest = max(depths, default=0)
    levels = range(deepest, 0, -1)
    return next((level for level in levels if sum(d <= level for d in depths) <= _MOST_ROWS), 0)


def _hidden_line(
    every: Sequence[ModuleRow[M]], shown: Sequence[ModuleRow[M]], look: Look
) -> list[str]:
    """How many rows are left out, and how to see them."""
    if len(shown) == len(every):
        return []
    deepest = max((row.measured.path or "").count(".") + 1 for row in every)
    line = (
        f"{len(shown)} of {len(every):,} rows; depth={deepest} (--depth {deepest}) shows all, "
        'sort="self" (--sort self) the largest first'
    )
    return wrapped(line, look.room)


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
