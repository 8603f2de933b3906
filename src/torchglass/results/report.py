"""What every verb that measures returns: printed as a table, and written as CSV, JSON or HTML."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeVar

from torchglass.analyse.module_rows import (
    HasPath,
    ModuleRow,
    Sort,
    check_order,
    full_name,
    paths_of,
    ranked,
    tree,
)
from torchglass.errors import LookupFailedError
from torchglass.records.model import Model
from torchglass.records.trace import CallRecord
from torchglass.tables.column import Column, csv_rows, file_column, select_columns
from torchglass.tables.files import File, csv_text, json_text, written
from torchglass.tables.html import HtmlRow, page, tree_fragment
from torchglass.tables.text import (
    Fact,
    column_texts,
    fact_lines,
    framed,
    left_out,
    name_column,
    name_text,
    note_lines,
    readable_depth,
    table_text,
    wrapped,
)
from torchglass.targets.names import near_or_all
from torchglass.views.formats import NOT_RUN, harmless

M = TypeVar("M", bound=HasPath)
R = TypeVar("R")

_MORE_TENSORS = re.compile(r"\S \+\d+$")
_MOST_ROWS = 100
"""Of a table whose depth nobody chose."""


class Report(ABC):
    """What a verb returns: print it for a table, or export it."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What a page of it is called: the name of the model."""

    @abstractmethod
    def table(self, *, width: int | None = None) -> str:
        """The report as a text table; with a `width`, columns that do not fit are left out."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers."""

    @abstractmethod
    def _csv(self) -> tuple[Sequence[str], Iterable[Iterable[Any]]]:
        """The headings and the rows of a CSV file."""

    @abstractmethod
    def _repr_html_(self) -> str: ...

    def to_json(self, file: File | None = None) -> str:
        """The report as JSON, also written to `file` if one is named."""
        return written(json_text(self.to_dict()), file)

    def to_csv(self, file: File | None = None) -> str:
        """The report as CSV, also written to `file` if one is named."""
        return written(csv_text(*self._csv()), file)

    def to_html(self, file: File | None = None) -> str:
        """The report as a self-contained page, also written to `file` if one is named."""
        return written(page(self.title, self._repr_html_()), file)

    def save(self, file: File) -> Path:
        """Write the report as its file ending says: .json, .csv, .html, or else text."""
        path = Path(file)
        writers = {".json": self.to_json, ".csv": self.to_csv, ".html": self.to_html}
        if path.suffix.lower() in writers:
            writers[path.suffix.lower()](path)
        else:
            written(f"{self.table()}\n", path)
        return path

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return self.table()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._repr_html_()}


class RowsByPath(dict[str, M]):
    """What was measured of each module, by its path."""

    def __missing__(self, path: str) -> M:
        raise LookupFailedError(f"no module {path!r} was measured{near_or_all(str(path), self)}")


class ModuleReport(Report, Generic[M]):
    """What was measured of each module and op of a model; print it for a table."""

    model: Model
    rows: Mapping[str, M]
    """What was measured of each module, by its path; the model itself is ""."""
    unattributed: M
    """What belongs to no module, such as the loss."""
    calls: Sequence[CallRecord] = ()
    """The module calls of one forward, for the shapes."""
    _total_size: str
    _self_size: str
    """The attributes that rows are sorted by."""

    @abstractmethod
    def _columns(self) -> Sequence[Column[M]]:
        """The columns of modules, in the order of a CSV file."""

    @abstractmethod
    def _facts(self) -> list[Fact]:
        """What is said about the whole model."""

    @abstractmethod
    def _notes(self) -> list[str]:
        """What a reader has to know besides."""

    @abstractmethod
    def _is_listed(self, row: M, sort: Sort | None) -> bool:
        """Whether a row belongs into a list of modules, or what no module owns into a tree."""

    @abstractmethod
    def op_table(self, count: int | None = 20, *, width: int | None = None) -> str:
        """The largest ops as a table; a `count` of None shows all."""

    def __getitem__(self, path: str) -> M:
        return self.rows[path]

    @property
    def title(self) -> str:
        """The name of the model."""
        return self.model.name

    def table(
        self,
        *,
        sort: Sort | None = None,
        depth: int | None = None,
        columns: Iterable[str] | None = None,
        width: int | None = None,
    ) -> str:
        """The modules as a table: as a tree, or the largest first.

        Args:
            sort: "total" puts the largest of siblings first, "self" the largest of all modules.
            depth: How many levels below the model are shown.
            columns: Keys of the columns to show.
            width: Terminal columns to fit into; what is left out is named below the table.
        """
        every = self.module_rows(depth=depth, sort=sort)
        shown = every if depth is not None else _readable(every)
        texts = column_texts(
            select_columns(self._columns(), columns), [row.measured for row in shown]
        )
        signs = _sign_lines(text for column in texts for text in column.texts[1:])
        names = name_column(shown, (harmless(row.name) for row in shown))
        above = [*signs, *_hidden_line(every, shown, width)]
        return framed([names, *texts], above, self._below(width), room=width)

    def module_rows(
        self, *, depth: int | None = None, sort: Sort | None = None
    ) -> list[ModuleRow[M]]:
        """The modules as a tree, or with `sort="self"` as one list, the largest first."""
        check_order(sort, depth)
        rows, rest = self.rows, self.unattributed
        if sort == "self":
            listed = [row for row in (*rows.values(), rest) if self._is_listed(row, sort)]
            return ranked(listed, self.model, attrgetter(self._self_size), depth)
        # A module that was not measured has a row of zeros.
        blank: Callable[..., M] = type(rest)
        every = [rows.get(path) or blank(path=path) for path in paths_of(self.model, rows)]
        if self._is_listed(rest, sort):
            every.append(rest)
        return tree(every, self.model, attrgetter(self._total_size) if sort else None, depth)

    def _below(self, room: int | None) -> list[str]:
        """The lines below the table."""
        return [*fact_lines(self._facts(), room), *note_lines(self._notes(), room)]

    def _csv(self) -> tuple[Sequence[str], Iterable[Iterable[Any]]]:
        """A line for each module, and a last one for what no module owns."""
        return csv_rows(self._columns(), (*self.rows.values(), self.unattributed))

    def _repr_html_(self) -> str:
        rows = self.module_rows()
        return tree_fragment(
            self.model.name,
            self.model.origin or self.model.root.class_name,
            self._facts(),
            select_columns(self._columns(), None),
            [HtmlRow(row.measured, harmless(row.name), row.depth) for row in rows],
            self._notes(),
        )

    def _first_columns(self, spare: int) -> list[Column[M]]:
        """The path and the class of a module."""
        return [
            file_column("path", lambda row: full_name(row.path, self.model)),
            Column("class", "Class", self._kind, False, spare, csv="class", value=self._class),
        ]

    @cached_property
    def _first_calls(self) -> Mapping[str, CallRecord]:
        return {call.path: call for call in reversed(self.calls)}

    def _class(self, row: HasPath) -> str | None:
        """The full class name; None for a module made in the forward, and for no module."""
        module = None if row.path is None else self.model.find(row.path)
        return None if module is None else module.class_name

    def _kind(self, row: HasPath) -> str:
        return harmless((self._class(row) or "").rpartition(".")[2])

    def _path_text(self, path: str | None) -> str:
        return name_text(full_name(path, self.model))


def largest(
    columns: Iterable[Column[R]], rows: Sequence[R], count: int | None, room: int | None
) -> str:
    """The first rows of a list as a table, and how many more there are."""
    shown = rows[:count]
    return table_text(columns, shown, left_out(rows, shown), room=room)


def _sign_lines(texts: Iterable[str]) -> list[str]:
    """What the signs in the cells mean, of those that are there."""
    every = set(texts)
    not_run = [f"{NOT_RUN}: not called in this forward"] if NOT_RUN in every else []
    more = any(_MORE_TENSORS.search(text) for text in every)
    return [*not_run, *(["+1: one more output tensor"] if more else [])]


def _readable(rows: Sequence[ModuleRow[M]]) -> Sequence[ModuleRow[M]]:
    """All rows; of a long table those down to a depth that can be read at once."""
    if len(rows) <= _MOST_ROWS:
        return rows
    depth = readable_depth([row.depth for row in rows])
    return [row for row in rows if row.depth <= depth] if depth else rows[:_MOST_ROWS]


def _hidden_line(
    every: Sequence[ModuleRow[M]], shown: Sequence[ModuleRow[M]], room: int | None
) -> list[str]:
    """How many rows are left out, and how to see them."""
    if len(shown) == len(every):
        return []
    deepest = max((row.measured.path or "").count(".") + 1 for row in every)
    line = (
        f"{len(shown)} of {len(every):,} rows; depth={deepest} (--depth {deepest}) shows all, "
        'sort="self" (--sort self) the largest first'
    )
    return wrapped(line, room)
