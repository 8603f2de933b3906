"""The verbs over many runs: `runs` lists a folder, `query` asks them in SQL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchglass.results.query import QueryResult
    from torchglass.results.runs import RunTable


def runs(folder: str | os.PathLike[str] = "runs") -> RunTable:
    """List the runs in a folder and in its subfolders, the latest first.

    What was read is kept in a small file in the folder, `.torchglass-runs.sqlite`, so that next
    time only new and changed runs are read. The ranks of one run are one row.

    Args:
        folder: The folder, or its URL in an object store, such as "s3://bucket/experiments".

    Returns:
        A `RunTable`: print it, or use `.where("lr < 1e-3")`, `.sort("loss")`,
        `.group("optimizer")`, `.select("name", "lr", "loss")`, `.open(0)`, `.to_pandas()`.

    Raises:
        TargetError: The folder does not exist.

    Example:
        >>> import torch
        >>> import torchglass as tg
        >>> relu = torch.nn.ReLU()
        >>> for lr in (0.1, 0.01):
        ...     with tg.watch(relu, save=f"tries/{lr}.glass", config={"lr": lr}) as watcher:
        ...         watcher.log("loss", 10 * lr)
        ...         watcher.step()
        >>> found = runs("tries").where("lr < 0.05")
        >>> [run.path for run in found]
        ['0.01.glass']
        >>> found.open(0)["loss"].values
        array([0.1])
    """
    from torchglass.results.runs import RunFolder

    return RunFolder(Path(folder).expanduser()).table()


def query(sql: str, *targets: str | os.PathLike[str]) -> QueryResult:
    """Ask runs in SQL, with DuckDB: `pip install 'torchglass[query]'`.

    The table `points` has a row for each series and step, `runs` one for each run. A query only
    reads. Of run files, only the series and columns that the query needs are read.

    Args:
        sql: One SELECT.
        *targets: Run files, folders of runs, URLs of either, or what `torchglass export --parquet`
            wrote. Without any: the folder "runs".

    Returns:
        A `QueryResult`: print it, or use `.entries`, `.to_csv()`, `.to_json()`.

    Raises:
        ViewError: DuckDB is not installed, or the query is wrong or would write.
        TargetError: A target does not exist.
        StoreError: A run cannot be read.

    Example:
        >>> import torch
        >>> import torchglass as tg
        >>> with tg.watch(torch.nn.ReLU(), save="asked/run.glass") as watcher:
        ...     for loss in (2.0, 1.0):
        ...         watcher.log("loss", loss)
        ...         watcher.step()
        >>> query("SELECT step, value FROM points WHERE name = 'loss'", "asked").entries
        ((0, 2.0), (1, 1.0))
    """
    from torchglass.results.query import query as answer

    return answer(sql, [Path(target).expanduser() for target in targets or ("runs",)])
