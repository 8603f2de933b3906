"""Series side by side, by step, as CSV and as data frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torchglass.errors import ViewError
from torchglass.export.texts import csv_text
from torchglass.records.model import join_path
from torchglass.records.series import FIELDS, Points
from torchglass.results.files import written

if TYPE_CHECKING:
    import pandas as pd


class Column(NamedTuple):
    """One number of one series over steps."""

    name: str
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]

    def by_step(self) -> dict[int, float]:
        """Its values; of a step that was taken twice the later one."""
        return dict(zip(self.steps.tolist(), self.values.tolist(), strict=True))


def columns_of(points: Iterable[Points]) -> list[Column]:
    """A column for each number of each series: "loss", "fc.weight.mean"."""
    return [
        Column(
            each.series.label if len(fields) == 1 else join_path(each.series.label, field),
            each.steps,
            each.column(field),
        )
        for each in points
        for fields in [FIELDS[each.series.kind]]
        for field in fields
    ]


def to_csv(columns: Sequence[Column], path: str | PathLike[str] | None) -> str:
    """A line for each step, as text, and in a file if a path is given."""
    cells = [column.by_step() for column in columns]
    lines = ([step, *(each.get(step, "") for each in cells)] for step in _all_steps(columns))
    return written(csv_text(["step", *(column.name for column in columns)], lines), path)


def to_pandas(columns: Sequence[Column]) -> pd.DataFrame:
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


def _all_steps(columns: Sequence[Column]) -> list[int]:
    return sorted({step for column in columns for step in column.steps.tolist()})
