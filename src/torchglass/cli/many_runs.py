"""The commands that read many runs at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from cyclopts import Parameter
from cyclopts.validators import Number

from torchglass.cli.options import (
    AS_TABLE,
    LOOKING,
    Debug,
    Flag,
    TableOptions,
    app,
    tell,
    terminal_width,
)
from torchglass.errors import TargetError

if TYPE_CHECKING:
    from torchglass.results.runs import RunGroups, RunTable

_CLEAR = "\x1b[H\x1b[J"
_FOLLOW_SECONDS = 1.0

Names = Annotated[str, Parameter(show_default=False)]


@app.command(group=LOOKING, usage="Usage: torchglass runs [OPTIONS] [FOLDER]")
def runs(
    folder: Path = Path("runs"),
    /,
    *,
    where: Names = "",
    sort: Names = "",
    group: Names = "",
    columns: Names = "",
    rows: Annotated[int, Parameter(validator=Number(gte=1))] = 100,
    follow: Flag = False,
    output: TableOptions = AS_TABLE,
    debug: Debug = False,
) -> None:
    """List the runs in a folder: how each ended, its verdict, its loss and its settings.

    ```
    torchglass runs
    torchglass runs runs --where "lr < 1e-3 and state == 'finished'" --sort loss
    torchglass runs runs --group optimizer,lr
    torchglass runs runs --columns name,lr,accuracy,notes --json
    ```

    Parameters
    ----------
    folder
        The folder, or its URL (`s3://bucket/runs`); its subfolders are included.
    where
        Only runs that pass: comparisons of facts, settings (`config=` of `tg.watch`) and logged
        values. Put names with other characters in backquotes.
    sort
        Sort by this value; `-loss` puts the highest first.
    group
        One line for all runs with the same value of these, separated by commas.
    columns
        The columns to show, separated by commas.
    rows
        Maximum number of runs to print.
    follow
        Keep the table up to date until Ctrl-C.
    """
    output.check()
    from torchglass.results.runs import RunFolder

    listed = RunFolder(folder)

    def read() -> RunTable | RunGroups:
        table = listed.table()
        table = table.where(where) if where else table
        table = table.sort(sort) if sort else table
        table = table.select(*_names(columns)) if columns else table
        return table.group(*_names(group)) if group else table

    if follow:
        _follow(lambda: _text(read(), rows))
    result = read()
    output.show(result, text=None if output.brief else _text(result, rows))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _text(result: RunTable | RunGroups, rows: int) -> str:
    from torchglass.results.runs import RunTable

    if isinstance(result, RunTable):
        return result.table(width=terminal_width(), rows=rows)
    return result.table(width=terminal_width())


def _follow(read: Callable[[], str]) -> NoReturn:
    """Print a text again whenever it changes, until Ctrl-C."""
    shown = ""
    while True:
        text = read()
        if text != shown:
            shown = text
            print(f"{_CLEAR}{text}", flush=True)
        time.sleep(_FOLLOW_SECONDS)


@app.command(group=LOOKING, usage="Usage: torchglass query [OPTIONS] SQL [RUNS...]")
def query(
    sql: str,
    /,
    *runs: Path,
    output: TableOptions = AS_TABLE,
    debug: Debug = False,
) -> None:
    """Ask runs in SQL: `points` has a row for each series and step, `runs` one for each run.

    ```
    torchglass query "SELECT run, min(value) FROM points WHERE name = 'loss' GROUP BY run" runs
    torchglass query "SELECT name, loss FROM runs ORDER BY loss LIMIT 5" runs
    torchglass query "SELECT step, std FROM points WHERE path = 'fc' AND name = 'weight'" exported
    ```

    A query only reads. It needs DuckDB: `pip install 'torchglass[query]'`.

    Parameters
    ----------
    sql
        One SELECT.
    runs
        Run files, folders of runs, or what `torchglass export` wrote. Default: `runs`.
    """
    from torchglass.api.runs import query as answer

    output.check()
    output.show(answer(sql, *runs))


@app.command(group=LOOKING, usage="Usage: torchglass ship [OPTIONS] RUN [URL]")
def ship(run: Path, url: str = "", /, *, debug: Debug = False) -> None:
    """Copy a run file to an object store, or the rest of one whose training could not ship it.

    ```
    torchglass ship runs/mnist.glass s3://bucket/mnist
    torchglass ship runs/mnist-1a2b3c4d.glass
    ```

    Only what the store does not have is copied. Open the run there with any command:
    `torchglass explore s3://bucket/mnist`.

    Parameters
    ----------
    run
        The run file.
    url
        Where to, such as `s3://bucket/run`. Default: the `save=` of the training.
    """
    from torchglass.records.urls import url_of
    from torchglass.store.shipper import ship_file

    place = url_of(url)
    if url and place is None:
        raise TargetError(f"{url} is not a URL such as s3://bucket/run")

    def on_part(shipped: int, steps: int) -> None:
        if shipped < steps:
            tell(f"{shipped:,} of {steps:,} steps")

    tell(f"{run} is in {ship_file(run, place, on_part)}")


@app.command(group=LOOKING, usage="Usage: torchglass export --parquet DIR [OPTIONS] [RUNS...]")
def export(*runs: Path, parquet: Path, debug: Debug = False) -> None:
    """Write runs as Parquet files, which pandas, polars, DuckDB and others read.

    ```
    torchglass export runs --parquet exported
    torchglass export runs/mnist.glass --parquet exported
    ```

    It writes `points/NAME.parquet` for each run, and `runs.parquet`, the table of all runs.

    Parameters
    ----------
    runs
        Run files or folders of runs. Default: `runs`.
    parquet
        The folder to write to.
    """
    from torchglass.results.query import export_parquet

    for file in export_parquet(runs or [Path("runs")], parquet):
        tell(f"wrote {file}")
