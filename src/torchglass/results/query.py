"""SQL over runs: `points` has a row for each series and step, `runs` one for each run.

DuckDB reads Parquet files itself. Of run files it gets the series that the query can use: those are
found by asking DuckDB how it would run the query, and which rows it would drop first.
"""

from __future__ import annotations

import glob
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from os import fspath
from pathlib import Path
from typing import Any

from torchglass.errors import StoreError, TargetError, ViewError, warn
from torchglass.records.run import RunEntry, Series
from torchglass.records.urls import url_of
from torchglass.results.arrow_table import RunColumns, write_parquet
from torchglass.results.report import ListReport
from torchglass.results.run import SavedRun, open_entry
from torchglass.results.runs import RunFolder, RunTable, one_each, value_text
from torchglass.store.arrow_columns import SCHEMA_COLUMNS, arrow_schema, import_pyarrow
from torchglass.store.run_index import entry_of
from torchglass.store.store_index import stored_entries
from torchglass.tables.text import Column, plural

RUNS_FILE = "runs.parquet"
POINTS_FOLDER = "points"
_SUFFIX = ".parquet"
_LOCAL = "__local_points"
_MOST_ROWS = 1_000
_SERIES = ("run", "path", "name", "kind")
_QUOTED = re.compile(r"'(?:[^']|'')*'")


@dataclass(frozen=True)
class QueriedRun:
    """A run that a query may read. It is open while it is read: a folder may have thousands."""

    name: str
    folder: Path
    entry: RunEntry

    def series(self) -> Sequence[Series]:
        """Its series; none if it cannot be read."""
        try:
            with self._opened() as run:
                return run.reader.series()
        except StoreError as error:
            warn(f"left out: {error}")
            return ()

    def batches(self, series: Sequence[Series], columns: Sequence[str]) -> Iterator[Any]:
        """The rows of some series in parts."""
        with self._opened() as run:
            yield from RunColumns(run.reader, self.name, series, columns).batches()

    def _opened(self) -> SavedRun:
        return open_entry(self.folder, self.entry)


@dataclass(frozen=True)
class QuerySource:
    """What a query reads: run files, Parquet files, and a table of the runs."""

    runs: Sequence[QueriedRun]
    parquet: Sequence[str]
    table: Any
    """An Arrow table, or the path of a Parquet file; None if there is none."""


def import_duckdb() -> Any:
    """DuckDB, or an error that says how to get it."""
    try:
        import duckdb
    except ImportError as error:
        raise ViewError("a query needs DuckDB: pip install 'torchglass[query]'") from error
    return duckdb


def query(sql: str, targets: Sequence[Path]) -> QueryResult:
    """The answer to a query over run files, folders of runs, and folders of Parquet files."""
    duckdb = import_duckdb()
    with closing(duckdb.connect()) as connection:
        _expect_reading(duckdb, sql)
        source = _source(targets)
        _prepare(connection, source)
        try:
            if source.runs:
                _register_runs(connection, source.runs, sql)
            found = connection.execute(sql)
            names = [column[0] for column in found.description]
            return QueryResult(sql, names, found.fetchall())
        except duckdb.Error as error:
            raise ViewError(f"the query failed: {_first_lines(error)}") from error


def _expect_reading(duckdb: Any, sql: str) -> None:
    """Raise unless the query is one statement that only reads."""
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise ViewError(f"the query is wrong: {_first_lines(error)}") from error
    if len(statements) != 1:
        raise ViewError(f"a query is one SELECT, not {plural(len(statements), 'statement')}")
    kind = str(statements[0].type).rpartition(".")[2]
    if kind not in ("SELECT", "EXPLAIN"):
        raise ViewError(f"a query only reads: {kind} is not allowed, use SELECT")


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split("\n\n")[0].split())


def _source(targets: Sequence[Path]) -> QuerySource:
    runs: list[QueriedRun] = []
    parquet: list[str] = []
    tables: list[Any] = []
    for target in targets:
        files = parquet_files(target)
        if files:
            parquet += files
            if (target / RUNS_FILE).is_file():
                tables.append(str(target / RUNS_FILE))
            continue
        table = run_table(target)
        runs += [
            QueriedRun(entry.path.removesuffix(".glass"), table.folder, entry) for entry in table
        ]
        tables.append(_arrow(table))
    return QuerySource(runs, parquet, tables[0] if len(tables) == 1 else None)


def parquet_files(target: Path) -> list[str]:
    """The Parquet files of a target: a file, a pattern, or a folder that `export` wrote."""
    if target.suffix == _SUFFIX and target.is_file():
        return [str(target)]
    if target.is_dir():
        inside = target / POINTS_FOLDER if (target / POINTS_FOLDER).is_dir() else target
        found = sorted(inside.rglob(f"*{_SUFFIX}"))
        return [str(file) for file in found if file.name != RUNS_FILE]
    if not target.exists() and glob.has_magic(fspath(target)):
        found_names = glob.glob(fspath(target), recursive=True)  # noqa: PTH207 - may be absolute
        return sorted(name for name in found_names if name.endswith(_SUFFIX))
    return []


def run_table(target: Path) -> RunTable:
    """The runs of a folder, or the run of a file as a table of one."""
    if (url := url_of(target)) is not None:
        entries = list(one_each(stored_entries(url)))
        return RunTable(target.parent, entries) if entries else RunFolder(target).table()
    if target.is_dir():
        table = RunFolder(target).table()
        if table.unreadable:
            first = table.unreadable[0].unreadable
            warn(f"left out {plural(len(table.unreadable), 'file')}. The first: {first}")
        return table
    if not target.is_file():
        raise TargetError(f"there is no run file, folder or Parquet file {target}")
    entry = entry_of(target)
    if entry.unreadable:
        raise StoreError(entry.unreadable)
    return RunTable(target.parent, [entry])


def _arrow(table: RunTable) -> Any:
    """The table of runs for DuckDB; every column has one type."""
    pyarrow = import_pyarrow()
    names, rows = table._csv()
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in names]
    return pyarrow.table(
        {name: pyarrow.array(_one_type(each)) for name, each in zip(names, columns, strict=True)}
    )


def _one_type(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        return [None if one is None else float(one) for one in values] if float in kinds else values
    return values if len(kinds) == 1 else [None if one is None else str(one) for one in values]


def _prepare(connection: Any, source: QuerySource) -> None:
    """Make the tables, then let the query reach nothing else."""
    parts = []
    if source.runs:
        # A table without rows, until it is known which ones are wanted.
        connection.register(_LOCAL, arrow_schema().empty_table())
        parts.append(f"SELECT * FROM {_LOCAL}")
    if source.parquet:
        listed = ", ".join(_text(file) for file in source.parquet)
        names = ", ".join(f'"{name}"' for name in SCHEMA_COLUMNS)
        parts.append(f"SELECT {names} FROM read_parquet([{listed}])")
    if not parts:
        raise TargetError("there are no runs to query")
    connection.execute(f"CREATE VIEW points AS {' UNION ALL '.join(parts)}")
    files = [*source.parquet]
    if isinstance(source.table, str):
        connection.execute(f"CREATE VIEW runs AS SELECT * FROM read_parquet({_text(source.table)})")
        files.append(source.table)
    elif source.table is not None:
        connection.register("runs", source.table)
    connection.execute(f"SET allowed_paths = [{', '.join(map(_text, files))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _text(value: str) -> str:
    escaped = value.replace("'", "''")
    return f"'{escaped}'"


def _register_runs(connection: Any, runs: Sequence[QueriedRun], sql: str) -> None:
    """Give DuckDB the series and the columns of the runs that the query can use."""
    pyarrow = import_pyarrow()
    scans = list(_scans(connection, sql))
    if not scans:
        return  # It asks for the table of runs only.
    every = [(run, series) for run in runs for series in run.series()]
    rows = {
        "number": range(len(every)),
        "run": [run.name for run, _ in every],
        "path": [series.path for _, series in every],
        "name": [series.name for _, series in every],
        "kind": [series.kind for _, series in every],
    }
    connection.register("__series", pyarrow.table({key: list(rows[key]) for key in rows}))
    wanted = {number for scan in scans for number in _wanted(connection, scan)}
    columns = [name for name in SCHEMA_COLUMNS if any(name in scan.columns for scan in scans)] or [
        "step"
    ]
    chosen: defaultdict[int, list[Series]] = defaultdict(list)
    known = {id(run): run for run in runs}
    for number in sorted(wanted):
        run, series = every[number]
        chosen[id(run)].append(series)
    batches = (known[key].batches(series, columns) for key, series in chosen.items())
    connection.unregister("__series")
    connection.unregister(_LOCAL)
    found: Any = pyarrow.RecordBatchReader.from_batches(
        arrow_schema(columns), chain.from_iterable(batches)
    )
    if len(scans) > 1:
        found = found.read_all()
    connection.register(_LOCAL, _all_columns(connection, found, columns))


def _all_columns(connection: Any, found: Any, columns: Sequence[str]) -> Any:
    """The table with all columns that a view expects; those that nobody reads are null."""
    connection.register("__read_points", found)
    given = (
        f'"{name}"' if name in columns else f'NULL::{_sql_type(name)} AS "{name}"'
        for name in SCHEMA_COLUMNS
    )
    return connection.sql(f"SELECT {', '.join(given)} FROM __read_points")


def _sql_type(name: str) -> str:
    kinds = {"string": "VARCHAR", "int64": "BIGINT", "int16": "SMALLINT", "double": "DOUBLE"}
    return kinds.get(SCHEMA_COLUMNS[name][0], "BIGINT[]")


@dataclass(frozen=True)
class _Scan:
    """One place in the plan of a query that reads the points of run files."""

    columns: Sequence[str]
    conditions: Sequence[str]


def _scans(connection: Any, sql: str) -> Iterator[_Scan]:
    rows = connection.execute(f"EXPLAIN (FORMAT json) {sql}").fetchall()
    for _, plan in rows:
        for node in json.loads(plan):
            yield from _scans_below(node, ())


def _scans_below(node: dict[str, Any], above: Sequence[str]) -> Iterator[_Scan]:
    info = node.get("extra_info", {})
    own = _listed(info.get("Filters"))
    if node["name"].strip() == "FILTER":
        own += _listed(info.get("Expression"))
    if "ARROW_SCAN" in node["name"]:
        conditions = [part for one in (*above, *own) for part in _conjuncts(one)]
        yield _Scan(_listed(info.get("Projections")) or list(SCHEMA_COLUMNS), conditions)
    below = node.get("children", ())
    # A filter of a join or a union need not concern each of its parts.
    for child in below:
        yield from _scans_below(child, own if len(below) == 1 else ())


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) and value else list(value or ())


def _conjuncts(expression: str) -> list[str]:
    """The parts of "((a) AND (b))"; an expression of another form is one part."""
    inner = expression.strip()
    if not (inner.startswith("(") and inner.endswith(")")):
        return [expression]
    # Texts may have brackets and words of SQL.
    plain = _QUOTED.sub(lambda found: "x" * len(found[0]), inner)
    parts, depth, start = [], 0, 1
    for at, sign in enumerate(plain):
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and at < len(plain) - 1:
            return [expression]
        if depth == 1 and plain.startswith(" AND ", at):
            parts.append(inner[start:at])
            start = at + len(" AND ")
    return [*parts, inner[start:-1]]


def _wanted(connection: Any, scan: _Scan) -> set[int]:
    """The numbers of the series that pass the conditions on series."""
    duckdb = import_duckdb()
    wanted: set[int] | None = None
    for condition in scan.conditions:
        try:
            rows = connection.execute(f"SELECT number FROM __series WHERE {condition}").fetchall()
        except duckdb.Error:
            continue  # It is about steps or values, which DuckDB checks itself.
        found = {row[0] for row in rows}
        wanted = found if wanted is None else wanted & found
    if wanted is None:
        rows = connection.execute("SELECT number FROM __series").fetchall()
        wanted = {row[0] for row in rows}
    return wanted


def export_parquet(targets: Sequence[Path], folder: Path) -> Iterator[Path]:
    """Write runs as Parquet files: `points/NAME.parquet` each, and `runs.parquet` for all.

    Yields each file when it is complete.
    """
    arrow = import_pyarrow()
    tables = [run_table(target) for target in targets]
    for table in tables:
        for entry in table:
            name = entry.path.removesuffix(".glass")
            try:
                with open_entry(table.folder, entry) as run:
                    file = folder / POINTS_FOLDER / f"{name}{_SUFFIX}"
                    yield write_parquet(RunColumns(run.reader, name), file)
            except StoreError as error:
                warn(f"left out: {error}")
    if any(len(table) for table in tables):
        from pyarrow import parquet

        listed = arrow.concat_tables([_arrow(table) for table in tables], promote_options="default")
        parquet.write_table(listed, folder / RUNS_FILE)
        yield folder / RUNS_FILE


class QueryResult(ListReport[tuple[Any, ...]]):
    """The rows that answer a query.

    Args:
        sql: The query.
        names: The names of the columns.
        rows: The rows.
    """

    def __init__(self, sql: str, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        self.sql = sql
        self.names = tuple(names)
        self.entries = tuple(rows)

    @property
    def title(self) -> str:
        """The query."""
        return self.sql

    @property
    def answer(self) -> str:
        """How many rows there are."""
        return plural(len(self.entries), "row")

    def to_dict(self) -> dict[str, Any]:
        """The rows as dicts, lists, strings and numbers."""
        rows = [[_plain(value) for value in row] for row in self.entries]
        return {"title": self.sql, "answer": self.answer, "columns": list(self.names), "rows": rows}

    def _columns(self) -> Sequence[Column[tuple[Any, ...]]]:
        return [self._column(at, name) for at, name in enumerate(self.names)]

    def _column(self, at: int, name: str) -> Column[tuple[Any, ...]]:
        first = next((row[at] for row in self.entries if row[at] is not None), None)
        return Column(
            f"{at}",
            name or " ",
            lambda row: value_text(_plain(row[at])),
            not isinstance(first, str),
            csv=name,
            value=lambda row: row[at],
        )


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else str(value)
