"""What every verb that measures returns: a table to print, or to write as CSV, JSON or HTML."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, get_args

from torchglass.analyse.sibling_order import MeasureSort
from torchglass.errors import LookupFailedError, ViewError
from torchglass.records.model import Model, paths_above
from torchglass.results.result import Result
from torchglass.tables.export import (
    File,
    HtmlRow,
    csv_text,
    html_page,
    tree_fragment,
    written,
)
from torchglass.tables.text import (
    NOT_RUN,
    Column,
    Fact,
    column_texts,
    csv_rows,
    fact_lines,
    framed,
    harmless,
    left_out,
    name_column,
    name_text,
    note_lines,
    readable_depth,
    select_columns,
    table_text,
    wrapped,
)
from torchglass.targets.names import near_or_all

if TYPE_CHECKING:
    from torchglass.records.measures import ReportRecord
    from torchglass.records.trace import CallRecord


class HasPath(Protocol):
    """What was measured of one module."""

    @property
    def path(self) -> str | None:
        """Where the module is; None for what belongs to no module."""


M = TypeVar("M", bound=HasPath)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ModuleRow(Generic[M]):
    """One line of a table: a module, or what belongs to none, with its place in the tree."""

    measured: M
    name: str
    depth: int
    last: bool
    """Whether no sibling follows."""


def check_order(sort: str | None, depth: int | None, sorts: Any = MeasureSort) -> None:
    """Raise for an unknown order or a negative depth; `sorts` is the type of the orders."""
    if sort is not None and sort not in get_args(sorts):
        raise ViewError(f"sort must be one of {', '.join(get_args(sorts))}, not {sort!r}")
    if depth is not None and depth < 0:
        raise ViewError(f"depth must be 0 or more, not {depth}")


def paths_of(model: Model, measured: Iterable[str]) -> Iterable[str]:
    """The paths of all modules, each once, then of those that were created while the model ran."""
    known = (module.path for module in model.modules if module.alias_of is None)
    return dict.fromkeys([*known, *measured])


def ranked(
    measured: Iterable[M], model: Model, size: Callable[[M], int], depth: int | None
) -> list[ModuleRow[M]]:
    """One list of all modules down to a depth, the largest first."""
    levels = ((one, one.path.count(".") + 1 if one.path else 0) for one in measured)
    shown = [one for one, level in levels if depth is None or level <= depth]
    shown.sort(key=size, reverse=True)
    return [ModuleRow(one, full_name(one.path, model), 0, True) for one in shown]


def tree(
    measured: Iterable[M], model: Model, size: Callable[[M], int] | None, depth: int | None
) -> list[ModuleRow[M]]:
    """The tree of modules down to a depth; with a size, the largest of siblings comes first."""
    below: dict[str | None, list[M]] = {}
    for one in measured:
        # What belongs to no module is a child of the model.
        parent = "" if one.path is None else one.path.rpartition(".")[0] if one.path else None
        below.setdefault(parent, []).append(one)
    if size is not None:
        for siblings in below.values():
            siblings.sort(key=size, reverse=True)
    rows: list[ModuleRow[M]] = []
    waiting = [ModuleRow(root, model.name, 0, True) for root in below.get(None, ())]
    while waiting:
        row = waiting.pop()
        rows.append(row)
        if row.measured.path is None or (depth is not None and row.depth >= depth):
            continue
        for child in reversed(children := below.get(row.measured.path, [])):
            name = full_name(child.path, model).rpartition(".")[2]
            waiting.append(ModuleRow(child, name, row.depth + 1, child is children[-1]))
    return rows


def full_name(path: str | None, model: Model) -> str:
    """The path of a module; the name of the model for the model itself."""
    return "unattributed" if path is None else path or model.name


_MORE_TENSORS = re.compile(r"\S \+\d+$")
_MOST_ROWS = 100
"""In a table without a chosen depth."""


class Report(Result):
    """What a verb that measures returns: print it for a table, or export it."""

    def tree_record(self) -> ReportRecord | None:
        """The report as the explorer lays it over the tree of modules; None if it cannot."""
        return None

    @property
    @abstractmethod
    def title(self) -> str:
        """What a page of it is called: the name of the model."""

    @abstractmethod
    def table(self, *, width: int | None = None) -> str:
        """The report as a text table; with a `width`, columns that do not fit are left out."""

    def text(self, *, width: int | None = None) -> str:
        """The table, as `table` makes it without further options."""
        return self.table(width=width)

    @abstractmethod
    def _csv(self) -> tuple[Sequence[str], Iterable[Iterable[Any]]]:
        """The headings and the rows of a CSV file."""

    @abstractmethod
    def _repr_html_(self) -> str: ...

    def to_csv(self, file: File | None = None) -> str:
        """The report as CSV, also written to `file` if one is given."""
        return written(csv_text(*self._csv()), file)

    def to_html(self, file: File | None = None) -> str:
        """The report as a self-contained page, also written to `file` if one is given."""
        return written(html_page(self.title, self._repr_html_()), file)

    def save(self, file: File) -> Path:
        """Write the report in the format of the file: .json, .csv, .html, or else text."""
        path = Path(file)
        writers = {".json": self.to_json, ".csv": self.to_csv, ".html": self.to_html}
        if path.suffix.lower() in writers:
            writers[path.suffix.lower()](path)
        else:
            written(f"{self.table()}\n", path)
        return path

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
        """Facts about the whole model."""

    @abstractmethod
    def _notes(self) -> list[str]:
        """Notes below the table."""

    @abstractmethod
    def _is_listed(self, row: M, sort: MeasureSort | None) -> bool:
        """Whether a sorted list has a row for a module, and a tree one for what no module owns."""

    @abstractmethod
    def op_table(self, count: int | None = 20, *, width: int | None = None) -> str:
        """The largest ops as a table; a `count` of None shows all."""

    def __getitem__(self, path: str) -> M:
        return self.rows[path]

    @property
    def title(self) -> str:
        """The name of the model."""
        return self.model.name

    @property
    def answer(self) -> str:
        """What the reader wants to know in one sentence, if there is one."""
        return ""

    def tree_record(self) -> ReportRecord:
        """The report as the explorer lays it over the tree: a row for each module."""
        from torchglass.results.tree_record import cells, headings, tree_record

        hidden = ("path", "class")
        columns = [one for one in select_columns(self._columns(), None) if one.key not in hidden]
        rows = {path: cells(columns, row) for path, row in self.rows.items()}
        return tree_record(
            self,
            modules=rows,
            entries=[((path,), row, False) for path, row in rows.items()],
            module_columns=headings(columns),
            columns=headings(columns),
            facts=self._facts(),
            notes=self._notes(),
        )

    def table(
        self,
        *,
        sort: MeasureSort | None = None,
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
        deepest = max((row.measured.path or "").count(".") + 1 for row in every)
        sorting = ', sort="self" (--sort self) the largest first'
        hidden = hidden_line(shown, every, deepest, width, sorting)
        return framed([names, *texts], [*signs, *hidden], self._below(width), room=width)

    def _text_to_shorten(self, lines: int, width: int | None) -> str:
        # What does not fit as a tree is a list of the largest.
        text = self.table(width=width)
        return text if text.count("\n") < lines else self.table(sort="self", width=width)

    def module_rows(
        self, *, depth: int | None = None, sort: MeasureSort | None = None
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
            Column("path", value=lambda row: full_name(row.path, self.model)),
            Column("class", "Class", self._kind, False, spare, value=self._class),
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


class ListReport(Report, Generic[R]):
    """An answer in one sentence, and the list that it comes from; print it for a table."""

    entries: Sequence[R]
    """What the table lists, a line each."""
    _most_rows = _MOST_ROWS

    @property
    @abstractmethod
    def answer(self) -> str:
        """What the reader wants to know, in one sentence."""

    @abstractmethod
    def _columns(self) -> Sequence[Column[R]]:
        """The columns, in the order of a CSV file; the first one names the entry."""

    def _facts(self) -> list[Fact]:
        """Facts about the whole."""
        return []

    def _notes(self) -> list[str]:
        """How it was measured, and what it cannot know."""
        return []

    def _paths(self, entry: R) -> Sequence[str]:
        """The modules that an entry is about."""
        return ()

    def _is_suggested(self, entry: R) -> bool:
        """Whether the report suggests to do what an entry is about."""
        return False

    def _module_columns(self) -> Sequence[Column[Sequence[R]]]:
        """The columns beside the tree of modules: each sums up the entries of one module."""
        return ()

    def tree_record(self) -> ReportRecord:
        """The report as the explorer lays it over the tree: its entries by module."""
        from torchglass.results.tree_record import cells, headings, tree_record

        every, beside = select_columns(self._columns(), None), self._module_columns()
        columns = [one for one in every if one.key != "suggested"]
        return tree_record(
            self,
            modules={path: cells(beside, rows) for path, rows in self._by_module().items()},
            entries=[
                (tuple(self._paths(one)), cells(columns, one), self._is_suggested(one))
                for one in self.entries
            ],
            module_columns=headings(beside),
            columns=headings(columns),
            facts=self._facts(),
            notes=self._notes(),
        )

    def _by_module(self) -> Mapping[str, Sequence[R]]:
        """The entries about each module, or about a module inside it."""
        found: dict[str, list[R]] = {}
        for entry in self.entries:
            paths = self._paths(entry)
            for path in {above for one in paths for above in (one, *paths_above(one), "")}:
                found.setdefault(path, []).append(entry)
        return found

    def table(self, *, width: int | None = None) -> str:
        """The answer, then the table; with a `width`, columns that do not fit are left out."""
        facts = self._facts()
        below = [*(fact_lines(facts, width) if facts else ()), *note_lines(self._notes(), width)]
        columns, rows = self._printed()
        shown = rows[: self._most_rows]
        table = table_text(columns, shown, left_out(rows, shown), below, room=width)
        return "\n".join([*wrapped(harmless(self.answer), width), table])

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers."""
        names, rows = self._csv()
        return {
            "title": self.title,
            "answer": self.answer,
            "entries": [dict(zip(names, row, strict=True)) for row in rows],
            "notes": self._notes(),
        }

    def _csv(self) -> tuple[Sequence[str], Iterable[Iterable[Any]]]:
        return csv_rows(self._columns(), self.entries)

    def _printed(self) -> tuple[Sequence[Column[Any]], Sequence[Any]]:
        """The columns and rows of the table that people read; CSV and JSON have all entries."""
        return select_columns(self._columns(), None), self.entries

    def _repr_html_(self) -> str:
        (name, *columns), every = self._printed()
        rows = [HtmlRow(one, name.text(one), 0) for one in every]
        heading = name.heading
        return tree_fragment(
            self.title, self.answer, self._facts(), columns, rows, self._notes(), heading
        )


def largest(
    columns: Iterable[Column[R]], rows: Sequence[R], count: int | None, room: int | None
) -> str:
    """The first rows of a list as a table, and how many more there are."""
    shown = rows[:count]
    return table_text(columns, shown, left_out(rows, shown), room=room)


def fraction(part: float, whole: float) -> float | None:
    """A part of a whole; None for a whole of 0."""
    return part / whole if whole else None


def _sign_lines(texts: Iterable[str]) -> list[str]:
    """What the signs in the cells mean, of those that are there."""
    every = set(texts)
    not_run = [f"{NOT_RUN}: not called in this forward"] if NOT_RUN in every else []
    more = any(_MORE_TENSORS.search(text) for text in every)
    return [*not_run, *(["+1: one more output tensor"] if more else [])]


def _readable(rows: Sequence[ModuleRow[M]]) -> Sequence[ModuleRow[M]]:
    """All rows; for a long table, those down to a readable depth."""
    if len(rows) <= _MOST_ROWS:
        return rows
    depth = readable_depth([row.depth for row in rows])
    return [row for row in rows if row.depth <= depth] if depth else rows[:_MOST_ROWS]


def hidden_line(
    shown: Sequence[object], every: Sequence[object], depth: int, room: int | None, more: str = ""
) -> list[str]:
    """How many rows are left out, and the depth that shows all."""
    line = f"{len(shown)} of {len(every):,} rows; depth={depth} (--depth {depth}) shows all{more}"
    return wrapped(line, room) if len(shown) < len(every) else []
