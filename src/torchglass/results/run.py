"""A recorded run, opened: what it was, and its series as numpy, pandas or CSV. Needs no torch.

with open_run("runs/today.glass") as run:
    print(run)
    loss = run["loss"]
    plot(loss.steps, loss.values)
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterator, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
import numpy.typing as npt

from torchglass.errors import TargetError, ViewError
from torchglass.records.model import Model, join_path
from torchglass.records.run import Run
from torchglass.records.series import FIELDS, Points, Series
from torchglass.store.file import FileReader

if TYPE_CHECKING:
    import pandas as pd


def open_run(path: str | PathLike[str]) -> SavedRun:
    """Open a run file, finished or still being written."""
    return SavedRun(FileReader(Path(path)))


class SavedSeries:
    """One quantity over steps. Its numbers are read from the file on first use."""

    def __init__(self, reader: FileReader, record: Series) -> None:
        self.record = record
        self._reader = reader

    @property
    def label(self) -> str:
        """Its full name: "encoder.0.weight.grad"."""
        return self.record.label

    @property
    def fields(self) -> tuple[str, ...]:
        """What each point tells: ("value",), or "count", "min", "max", "mean" and so on."""
        return FIELDS[self.record.kind]

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """The steps at which it was measured."""
        return self._points.steps

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """A number for each step; for statistics a row, with a column for each of `fields`."""
        values = self._points.values
        return values[:, 0] if self.record.kind == "scalar" else values

    def column(self, field: str) -> npt.NDArray[np.float64]:
        """One of `fields` over steps: `series.column("mean")`."""
        if field not in self.fields:
            raise TargetError(
                f"{self.label} has no field {field!r}; its fields are {', '.join(self.fields)}"
            )
        return self._points.column(field)

    def to_csv(self, path: str | PathLike[str] | None = None) -> str:
        """A line for each step, as text, and in a file if a path is given."""
        return _to_csv(self._columns(), path)

    def to_pandas(self) -> pd.DataFrame:
        """A row for each step, a column for each of `fields`."""
        return _to_pandas(self._columns())

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        what = "a number" if self.record.kind == "scalar" else ", ".join(self.fields)
        return f"<series {self.label}: {what} at {_steps(len(self))}>"

    @cached_property
    def _points(self) -> Points:
        return self._reader.points(self.record.id)

    def _columns(self) -> list[_Column]:
        return [_Column(field, self.steps, self.column(field)) for field in self.fields]


@final
class SavedRun:
    """A run file that is open for reading."""

    def __init__(self, reader: FileReader) -> None:
        self.reader = reader

    @property
    def path(self) -> Path:
        """The file."""
        return self.reader.path

    @property
    def run(self) -> Run:
        """Who recorded this, where and when."""
        return self.reader.run()

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
    def last_step(self) -> int:
        """The latest step there is, -1 before the first."""
        return self.reader.last_step()

    @property
    def finished(self) -> bool:
        """Whether the writer closed the run; False while it goes on, or if it was killed."""
        return self.reader.finished()

    @property
    def dropped(self) -> int:
        """How many steps are missing because the disk was too slow or too full."""
        return self.reader.dropped()

    def to_csv(self, path: str | PathLike[str] | None = None) -> str:
        """All series side by side, a line for each step, as text, and in a file if one is named."""
        return _to_csv(self._columns(), path)

    def to_pandas(self) -> pd.DataFrame:
        """All series side by side: "loss", "fc.weight.mean", … by step."""
        return _to_pandas(self._columns())

    def close(self) -> None:
        """Let go of the file."""
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

    def __repr__(self) -> str:
        state = "finished" if self.finished else "not finished"
        lost = f", {_steps(self.dropped)} left out" if self.dropped else ""
        return (
            f"<run {self.run.name}: {len(self)} series, {_steps(self.last_step + 1)}, {state}{lost}"
            f" ({self.path})>"
        )

    def _records(self) -> Sequence[Series]:
        return self.reader.series()

    def _columns(self) -> list[_Column]:
        all_points = self.reader.points_of([series.id for series in self._records()])
        return [
            _Column(_column_name(points.series, field), points.steps, points.column(field))
            for points in all_points
            for field in FIELDS[points.series.kind]
        ]


class _Column(NamedTuple):
    name: str
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]

    def by_step(self) -> dict[int, float]:
        return dict(zip(self.steps.tolist(), self.values.tolist(), strict=True))


def _column_name(series: Series, field: str) -> str:
    return series.label if series.kind == "scalar" else join_path(series.label, field)


def _to_csv(columns: Sequence[_Column], path: str | PathLike[str] | None) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", *(column.name for column in columns)])
    cells = [column.by_step() for column in columns]
    for step in _all_steps(columns):
        writer.writerow([step, *(of_column.get(step, "") for of_column in cells)])
    if path is not None:
        Path(path).write_text(text.getvalue(), encoding="utf-8")
    return text.getvalue()


def _to_pandas(columns: Sequence[_Column]) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as error:
        raise ViewError(
            "a data frame needs pandas: pip install 'torchglass[pandas]'; to_csv works without"
        ) from error
    table = {column.name: pd.Series(column.by_step()) for column in columns}
    return pd.DataFrame(table, index=pd.Index(_all_steps(columns), name="step"))


def _all_steps(columns: Sequence[_Column]) -> list[int]:
    return sorted({step for column in columns for step in column.steps.tolist()})


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
