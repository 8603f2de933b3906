"""A recorded run, opened: its status, and its series as numpy, pandas or CSV.

    with open_run("runs/today.glass") as run:
    print(run)
    loss = run["loss"]
    plot(loss.steps, loss.values)
    heat_map(run["fc.output"].histograms.counts)

A folder or a pattern opens all ranks of a distributed run as one, `run.ranks` each of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from torchglass.analyse import histograms
from torchglass.errors import TargetError, ViewError
from torchglass.records.findings import Finding, Findings
from torchglass.records.model import Histogram, Histograms, Model, join_path
from torchglass.records.run import (
    ConfigValue,
    Points,
    RunEntry,
    RunRecord,
    RunStatus,
    Series,
    Session,
)
from torchglass.records.step_points import FIELDS
from torchglass.records.urls import url_of
from torchglass.results import arrow_table, ranks
from torchglass.results.files import open_readers, ranks_beside
from torchglass.results.ranks import RankReport, RanksReader
from torchglass.store.readers import FileReader
from torchglass.tables.export import csv_text, written

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class SeriesColumn(NamedTuple):
    """One field of one series over steps."""

    name: str
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]

    def by_step(self) -> dict[int, float]:
        """Its values by step; for a repeated step, the later value."""
        return dict(zip(self.steps.tolist(), self.values.tolist(), strict=True))


def columns_of(points: Iterable[Points]) -> list[SeriesColumn]:
    """A column for each field of each series: "loss", "fc.weight.mean"."""
    return [
        SeriesColumn(
            each.series.label if len(fields) == 1 else join_path(each.series.label, field),
            each.steps,
            each.column(field),
        )
        for each in points
        for fields in [FIELDS[each.series.kind]]
        for field in fields
    ]


def to_csv(columns: Sequence[SeriesColumn], path: str | PathLike[str] | None) -> str:
    """A line for each step, as text, and in a file if a path is given."""
    cells = [column.by_step() for column in columns]
    lines = ([step, *(each.get(step, "") for each in cells)] for step in _all_steps(columns))
    return written(csv_text(["step", *(column.name for column in columns)], lines), path)


def to_pandas(columns: Sequence[SeriesColumn]) -> pd.DataFrame:
    """A row for each step."""
    pandas = import_pandas()
    table = {column.name: pandas.Series(column.by_step()) for column in columns}
    frame: pd.DataFrame = pandas.DataFrame(
        table, index=pandas.Index(_all_steps(columns), name="step")
    )
    return frame


def import_pandas() -> Any:
    """pandas, or an error that says how to get it."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ViewError(
            "a data frame needs pandas: pip install 'torchglass[pandas]'; to_csv works without"
        ) from error
    return pd


def _all_steps(columns: Sequence[SeriesColumn]) -> list[int]:
    return sorted({step for column in columns for step in column.steps.tolist()})


Numbers = npt.NDArray[np.float64]


class SavedHistograms:
    """A histogram for each step: `counts[i, j]` values lie between `edges[j]` and `edges[j + 1]`.

    The common grid is as fine as that of the coarsest step. Each single histogram, by its index,
    has its own grid and the exact statistics.
    """

    def __init__(self, record: Histograms) -> None:
        self._record = record

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """The steps at which they were taken."""
        return self._record.steps

    @property
    def edges(self) -> Numbers:
        """The edges of the bins, one more than there are bins."""
        return self._grid.edges

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """A row for each step, a column for each bin."""
        return histograms.on_grid(self._record.bins, self._grid)

    def quantiles(self, *fractions: float) -> Numbers:
        """The quantiles of each step: a row per step, a column per fraction."""
        found = [histograms.quantiles(each, fractions) for each in self._record.bins]
        return np.array(found, np.float64).reshape(-1, len(fractions))

    def shown(self, bins: int = 64, *, reject: float = 0.0) -> tuple[Numbers, Numbers]:
        """Edges and counts for a plot of at most `bins` bins, without outliers.

        The fraction `reject` of all values may lie outside. A step with a coarse grid does not
        make the others coarser: its counts are spread over the bins.
        """
        edges = histograms.display_grid(self._record.bins, bins, reject=reject).edges
        rows = [histograms.rebinned(each, edges) for each in self._record.bins]
        return edges, np.array(rows, np.float64).reshape(len(rows), len(edges) - 1)

    def merged(self) -> Histogram:
        """All steps as one."""
        return histograms.merged(self._record.bins)

    def to_csv(self, path: str | PathLike[str] | None = None) -> str:
        """A line for each step, a column for each bin, named by its lower edge."""
        rows = zip(self.steps.tolist(), self.counts.tolist(), strict=True)
        headings = ["step", *map(str, self.edges[:-1].tolist())]
        return written(csv_text(headings, ([step, *counts] for step, counts in rows)), path)

    def to_pandas(self) -> pd.DataFrame:
        """A row for each step, a column for each bin, named by the interval it spans."""
        pandas = import_pandas()
        frame: pd.DataFrame = pandas.DataFrame(
            self.counts,
            index=pandas.Index(self.steps, name="step"),
            columns=pandas.IntervalIndex.from_breaks(self.edges, closed="left"),
        )
        return frame

    def __getitem__(self, index: int) -> Histogram:
        return self._record.bins[index]

    def __iter__(self) -> Iterator[Histogram]:
        return iter(self._record.bins)

    def __len__(self) -> int:
        return len(self._record)

    def __repr__(self) -> str:
        label = self._record.series.label
        if not len(self.edges) > 1:
            return f"<histograms of {label}: none>"
        low, high = self.edges[[0, -1]]
        return (
            f"<histograms of {label} at {len(self)} steps: {len(self.edges) - 1} bins "
            f"from {low:g} to {high:g}>"
        )

    @cached_property
    def _grid(self) -> histograms.DyadicGrid:
        return histograms.common_grid(self._record.bins)


def open_run(path: str | PathLike[str]) -> SavedRun:
    """Open a run file, finished or still being written; a folder or a pattern for all its ranks."""
    readers = open_readers(path)
    return SavedRun(readers[0] if len(readers) == 1 else RanksReader(readers))


def open_entry(folder: Path, entry: RunEntry) -> SavedRun:
    """Open a run that a table lists; with several ranks all of them."""
    path = folder / entry.path
    if entry.ranks == 1 or url_of(folder) is not None:
        return open_run(path)
    return SavedRun(RanksReader(ranks_beside(path)))


class SavedSeries:
    """One quantity over steps. Its values are read from the file on first use."""

    def __init__(self, reader: FileReader | RanksReader, record: Series) -> None:
        self.record = record
        self._reader = reader

    @property
    def label(self) -> str:
        """Its full name: "encoder.0.weight.grad"."""
        return self.record.label

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of each point: ("value",), or "count", "min", "max", "mean" and so on."""
        return FIELDS[self.record.kind]

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """The steps at which it was measured."""
        return self._points.steps

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """A value per step; for statistics a row per step, with a column for each of `fields`."""
        values = self._points.values
        return values[:, 0] if self.record.kind == "scalar" else values

    def column(self, field: str) -> npt.NDArray[np.float64]:
        """One of `fields` over steps: `series.column("mean")`."""
        if field not in self.fields:
            raise TargetError(
                f"{self.label} has no field {field!r}; its fields are {', '.join(self.fields)}"
            )
        return self._points.column(field)

    @cached_property
    def histograms(self) -> SavedHistograms:
        """Its histogram at each step; empty where only statistics were recorded."""
        return SavedHistograms(self._reader.histograms(self.record.id))

    def to_csv(self, path: str | PathLike[str] | None = None) -> str:
        """A line for each step, as text, and in a file if a path is given."""
        return to_csv(self._columns(), path)

    def to_pandas(self) -> pd.DataFrame:
        """A row for each step, a column for each of `fields`."""
        return to_pandas(self._columns())

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        what = "a number" if self.record.kind == "scalar" else ", ".join(self.fields)
        bins = " and bins" if self.record.kind == "histogram" else ""
        return f"<series {self.label}: {what}{bins} at {_steps(len(self))}>"

    @cached_property
    def _points(self) -> Points:
        return self._reader.points(self.record.id)

    def _columns(self) -> list[SeriesColumn]:
        return [SeriesColumn(field, self.steps, self.column(field)) for field in self.fields]


@final
class SavedRun:
    """A run file, or those of all ranks of a run, open for reading."""

    def __init__(self, reader: FileReader | RanksReader) -> None:
        self.reader = reader

    @property
    def path(self) -> Path:
        """The file, or the folder of the files of all ranks."""
        return self.reader.path

    @property
    def ranks(self) -> Mapping[int, SavedRun]:
        """The run of each rank by its number; for a single file, only itself."""
        if isinstance(self.reader, FileReader):
            return {self.run.rank: self}
        return {rank: SavedRun(reader) for rank, reader in self.reader.ranks.items()}

    def compare_ranks(self) -> RankReport:
        """Compare the ranks: which is slow, which stopped, which has NaN and since when."""
        readers = {rank: run.reader for rank, run in self.ranks.items()}
        return ranks.report(
            {rank: each for rank, each in readers.items() if isinstance(each, FileReader)}
        )

    @property
    def run(self) -> RunRecord:
        """What recorded this run, where and when."""
        return self.reader.run()

    @property
    def config(self) -> Mapping[str, ConfigValue]:
        """The settings that were passed to `watch`; nested ones have dotted names."""
        return self.run.config

    @property
    def notes(self) -> str:
        """The notes that were passed to `watch`."""
        return self.run.notes

    @property
    def git_commit(self) -> str:
        """The commit that was checked out where the program ran; "" outside of a repository."""
        return self.run.git_commit

    @property
    def model(self) -> Model:
        """The structure of the model that was watched."""
        return self.reader.model()

    @property
    def series(self) -> dict[str, SavedSeries]:
        """What was measured, by label, in the order in which it was first seen."""
        # Reversed, so that of two series with one label the first wins.
        found = {each.label: SavedSeries(self.reader, each) for each in reversed(self._records())}
        return dict(reversed(found.items()))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The problems, in the order in which they were found."""
        found = self.reader.document(Findings)
        return found.findings if found is not None else ()

    @property
    def last_step(self) -> int:
        """The latest step, -1 before the first."""
        return self.reader.last_step()

    @property
    def status(self) -> RunStatus:
        """The state of the run: a text, with its parts as `.state`, `.step` and `.error`.

        It is "running", "finished", "stopped by RuntimeError at step 40", "interrupted at step 40",
        "killed", or "stalled for 40 s" where the process is alive and makes no steps. With
        several ranks it is the worst status.
        """
        return self.reader.status()

    @property
    def finished(self) -> bool:
        """Whether the training ended normally; otherwise `status` says what happened."""
        return self.reader.finished() and not self.status.has_failed

    @property
    def dropped(self) -> int:
        """Steps that are missing because the disk was too slow or full."""
        return self.reader.dropped()

    @property
    def thinned(self) -> int:
        """Steps that were removed again to keep the file small."""
        return self.reader.thinned()

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The processes that wrote to it: the one that began it and those that resumed it.

        One that has `abandoned_from` set is a branch: training began again before its end.
        """
        return self.reader.sessions()

    def at_session(self, number: int) -> SavedRun:
        """The run as it was at the end of a session, including what was abandoned later."""
        if not 1 <= number <= len(self.sessions) or not isinstance(self.reader, FileReader):
            raise TargetError(f"{self.path} has no session {number}")
        return SavedRun(FileReader(self.reader.path, session=number))

    def to_csv(self, path: str | PathLike[str] | None = None) -> str:
        """All series side by side, a line for each step, as text, and in a file if one is named."""
        return to_csv(self._columns(), path)

    def to_pandas(self) -> pd.DataFrame:
        """All series side by side: "loss", "fc.weight.mean", … by step."""
        return to_pandas(self._columns())

    def to_arrow(self) -> pa.Table:
        """All values as an Arrow table, a row for each series and step.

        Returns:
            The table. Its columns are listed in the documentation of columns.

        Raises:
            ViewError: pyarrow is not installed.
        """
        return self._arrow().stream().read_all()

    def to_parquet(self, path: str | PathLike[str]) -> Path:
        """Write all values as a Parquet file, with the columns of `to_arrow`.

        Args:
            path: The file.

        Returns:
            Its path.

        Raises:
            ViewError: pyarrow is not installed.
        """
        return arrow_table.write_parquet(self._arrow(), path)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The columns of `to_arrow` as a stream: polars, DuckDB and pandas read a run as it is."""
        return self._arrow().stream().__arrow_c_stream__(requested_schema)

    def _arrow(self) -> arrow_table.RunColumns:
        return arrow_table.RunColumns(self.reader, self.path.name.removesuffix(".glass"))

    def close(self) -> None:
        """Close the file."""
        self.reader.close()

    def __getitem__(self, label: str) -> SavedSeries:
        series = self.series
        if label not in series:
            raise TargetError(_no_such_series(label, list(series)))
        return series[label]

    def __contains__(self, label: object) -> bool:
        return label in self.series

    def __iter__(self) -> Iterator[str]:
        return iter(self.series)

    def __len__(self) -> int:
        return len(self.series)

    def __enter__(self) -> SavedRun:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def facts(self) -> list[str]:
        """The size of the run and how it ended, in a few words each."""
        facts = [
            f"{len(self)} series",
            _steps(self.last_step + 1),
            f"{len(self.ranks)} ranks" if len(self.ranks) > 1 else "",
            self.status.full,
            _resumed(self.sessions),
            f"{_steps(self.dropped)} left out" if self.dropped else "",
            f"{_steps(self.thinned)} thinned out" if self.thinned else "",
        ]
        return list(filter(None, facts))

    def __str__(self) -> str:
        from torchglass.results.run_report import run_text

        return run_text(self)

    def __repr__(self) -> str:
        return f"<run {self.run.name}: {', '.join(self.facts())} ({self.path})>"

    def _records(self) -> Sequence[Series]:
        return self.reader.series()

    def _columns(self) -> list[SeriesColumn]:
        return columns_of(self.reader.points_of([series.id for series in self._records()]))


def _no_such_series(label: str, labels: Sequence[str]) -> str:
    close = difflib.get_close_matches(label, labels, n=3)
    if close:
        return f"no series is called {label!r}; did you mean {' or '.join(close)}?"
    if not labels:
        return f"no series is called {label!r}; the run has none yet"
    shown = ", ".join(labels[:5]) + (", …" if len(labels) > 5 else "")
    return f"no series is called {label!r}; there are {shown}"


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def _resumed(sessions: Sequence[Session]) -> str:
    """How often a run was resumed, "" if it never was."""
    if len(sessions) < 2:
        return ""
    times = "once" if len(sessions) == 2 else f"{len(sessions) - 1} times"
    again = sum(session.abandoned_from is not None for session in sessions)
    return f"resumed {times}" + (f" ({again} from an earlier step)" if again else "")
