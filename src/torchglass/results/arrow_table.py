"""The values of a run as columns: Arrow tables and Parquet files, which other tools read.

Rows are in the order of series, then of steps, so that a reader of one curve skips all others.
`store.arrow_columns` has the schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchglass.records.run import Reader, Series
from torchglass.records.step_points import BinColumns
from torchglass.store.arrow_columns import (
    BIN_COLUMNS,
    SCHEMA_COLUMNS,
    arrow_schema,
    import_pyarrow,
    point_batch,
)
from torchglass.store.readers import FileReader
from torchglass.tables.export import File, in_its_folder

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_ROWS = 4_000_000
"""Rows that are in memory at a time, unless one series has more."""
_MOST_ROWS_WITH_BINS = 1_000_000
_GROUP_ROWS = 100_000
"""Rows of a part of a Parquet file that can be skipped."""


@dataclass(frozen=True)
class RunColumns:
    """What is read of one run."""

    reader: Reader
    name: str
    """What the column "run" says."""
    series: Sequence[Series] | None = None
    """The wanted series; None for all."""
    columns: Sequence[str] = tuple(SCHEMA_COLUMNS)

    def stream(self) -> pa.RecordBatchReader:
        """The rows as a stream, of which a part is in memory at a time."""
        arrow = import_pyarrow()
        schema = arrow_schema(self.columns)
        found: pa.RecordBatchReader = arrow.RecordBatchReader.from_batches(schema, self.batches())
        return found

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in parts."""
        series = list(self.reader.series() if self.series is None else self.series)
        rows = _MOST_ROWS_WITH_BINS if set(BIN_COLUMNS) & set(self.columns) else _MOST_ROWS
        most = max(rows // max(self.reader.last_step() + 1, 1), 1)
        for start in range(0, len(series), most):
            yield self._batch(series[start : start + most])

    def _batch(self, series: Sequence[Series]) -> pa.RecordBatch:
        every = self.reader.points_of([each.id for each in series])
        bins = self._bins(series) if set(BIN_COLUMNS) & set(self.columns) else None
        return point_batch(self.name, every, bins, self.columns)

    def _bins(self, series: Sequence[Series]) -> BinColumns:
        wanted = [each for each in series if each.kind == "histogram"]
        if isinstance(self.reader, FileReader):
            return self.reader.bin_columns(wanted)
        found = self.reader.histograms_of([each.id for each in wanted])
        return BinColumns.of([one for histograms in found for one in histograms.bins])


def write_parquet(columns: RunColumns, file: File) -> Path:
    """Write a run as one Parquet file, completely or not at all."""
    import_pyarrow()
    from pyarrow import parquet

    path = in_its_folder(file)
    part = path.with_name(f".{path.name}.part")
    try:
        with parquet.ParquetWriter(part, arrow_schema(columns.columns), compression="zstd") as out:
            for batch in columns.batches():
                out.write_batch(batch, row_group_size=_GROUP_ROWS)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path
