"""The values of a run as columns: Arrow tables and Parquet files, which other tools read.

A row is one point: one quantity of one module at one step. Rows are in the order of series, then
of steps, so that a reader of one curve skips all others. `SCHEMA_COLUMNS` lists the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchglass.errors import ViewError
from torchglass.records.run import FIELDS, Points, Reader, Series
from torchglass.store.readers import FileReader
from torchglass.store.step_blobs import BinColumns
from torchglass.tables.export import File, in_its_folder

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_COLUMNS = {
    "run": ("string", "the name of the run: its file without .glass"),
    "step": ("int64", "the step"),
    "path": ("string", 'the module; "" for the whole model'),
    "name": ("string", 'what was measured there: "loss", "weight.grad"'),
    "kind": ("string", '"scalar", "stats" or "histogram"'),
    "value": ("double", "the value of a scalar; null for the other kinds"),
    "count": ("int64", "the number of values of a tensor; null for a scalar, as all below"),
    "min": ("double", "the lowest value"),
    "max": ("double", "the highest value"),
    "mean": ("double", "the mean"),
    "std": ("double", "the standard deviation"),
    "nan": ("int64", "the number of NaN"),
    "inf": ("int64", "the number of Inf"),
    "bin_exponent": ("int16", "a bin of the histogram is 2**bin_exponent wide"),
    "bin_first": ("int64", "bin i begins at (bin_first + i) * 2**bin_exponent"),
    "bin_counts": ("list<int64>", "the values in each bin; null without a histogram"),
}
"""The columns, their types, and what they are."""

_BINS = ("bin_exponent", "bin_first", "bin_counts")
_NAMES = ("run", "path", "name", "kind")
_WHOLE = ("count", "nan", "inf")
_MOST_ROWS = 4_000_000
"""Rows that are in memory at a time, unless one series has more."""
_MOST_ROWS_WITH_BINS = 1_000_000
_GROUP_ROWS = 100_000
"""Rows of a part of a Parquet file that can be skipped."""


def import_pyarrow() -> Any:
    """pyarrow, or an error that says how to get it."""
    try:
        import pyarrow
    except ImportError as error:
        raise ViewError(
            "columns need pyarrow: pip install 'torchglass[arrow]'; to_csv works without"
        ) from error
    return pyarrow


def arrow_schema(columns: Sequence[str] = tuple(SCHEMA_COLUMNS)) -> pa.Schema:
    """The types of the columns."""
    arrow = import_pyarrow()
    kinds = {
        "string": arrow.dictionary(arrow.int32(), arrow.string()),
        "int64": arrow.int64(),
        "int16": arrow.int16(),
        "double": arrow.float64(),
        "list<int64>": arrow.list_(arrow.field("item", arrow.int64())),
    }
    return arrow.schema([(name, kinds[SCHEMA_COLUMNS[name][0]]) for name in columns])


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
        rows = _MOST_ROWS_WITH_BINS if set(_BINS) & set(self.columns) else _MOST_ROWS
        most = max(rows // max(self.reader.last_step() + 1, 1), 1)
        for start in range(0, len(series), most):
            yield self._batch(series[start : start + most])

    def _batch(self, series: Sequence[Series]) -> pa.RecordBatch:
        arrow = import_pyarrow()
        ids = [each.id for each in series]
        every = self.reader.points_of(ids)
        lengths = [len(points) for points in every]
        bins = self._bins(series) if set(_BINS) & set(self.columns) else None
        arrays = []
        for column in self.columns:
            if column in _NAMES:
                arrays.append(_names(arrow, column, self.name, series, lengths))
            elif column == "step":
                arrays.append(arrow.array(np.concatenate([_NO_STEPS, *(p.steps for p in every)])))
            elif column in _BINS and bins is not None:
                arrays.append(_bin_array(arrow, column, bins, every))
            else:
                arrays.append(_numbers(arrow, column, every))
        batch: pa.RecordBatch = arrow.record_batch(arrays, schema=arrow_schema(self.columns))
        return batch

    def _bins(self, series: Sequence[Series]) -> BinColumns:
        wanted = [each for each in series if each.kind == "histogram"]
        if isinstance(self.reader, FileReader):
            return self.reader.bin_columns(wanted)
        found = self.reader.histograms_of([each.id for each in wanted])
        return BinColumns.of(found)


_NO_STEPS = np.empty(0, np.int64)
_Numbers = npt.NDArray[np.float64]


def _names(
    arrow: Any, column: str, run: str, series: Sequence[Series], lengths: Sequence[int]
) -> pa.Array:
    texts = [run if column == "run" else str(getattr(each, column)) for each in series]
    distinct = list(dict.fromkeys(texts))
    places = {text: place for place, text in enumerate(distinct)}
    indices = np.repeat(np.array([places[text] for text in texts], np.int32), lengths)
    return arrow.DictionaryArray.from_arrays(arrow.array(indices), arrow.array(distinct, "string"))


def _numbers(arrow: Any, column: str, every: Sequence[Points]) -> pa.Array:
    """One field of all points; null for those that do not have it."""
    has = [column in FIELDS[points.series.kind] for points in every]
    parts = [
        points.column(column) if there else np.zeros(len(points))
        for points, there in zip(every, has, strict=True)
    ]
    values: _Numbers = np.concatenate([np.empty(0), *parts])
    missing = np.repeat(~np.array(has, bool), [len(points) for points in every])
    if column in _WHOLE:
        return arrow.array(values.astype(np.int64), mask=missing)
    return arrow.array(values, mask=missing)


def _bin_array(arrow: Any, column: str, bins: BinColumns, every: Sequence[Points]) -> pa.Array:
    """A column of the histograms; they are in the order of the points that have some."""
    has = np.repeat(
        np.array([points.series.kind == "histogram" for points in every], bool),
        [len(points) for points in every],
    )
    if has.sum() != len(bins.exponents):
        # A run that is being written has more by now than when its points were read.
        raise ViewError("the run changed while it was read; read it again")
    if column == "bin_counts":
        ends = np.concatenate([[0], np.cumsum(bins.lengths)])
        starts = np.zeros(len(has) + 1, np.int64)
        starts[1:][has] = ends[1:]
        starts = np.maximum.accumulate(starts)
        offsets = arrow.array(starts.astype(np.int32), mask=np.append(~has, False))
        return arrow.ListArray.from_arrays(offsets, arrow.array(bins.counts, arrow.int64()))
    values = np.zeros(len(has), np.int64)
    values[has] = bins.exponents if column == "bin_exponent" else bins.firsts
    kind = arrow.int16() if column == "bin_exponent" else arrow.int64()
    return arrow.array(values, kind, mask=~has)


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


def all_batches(runs: Sequence[RunColumns]) -> pa.RecordBatchReader:
    """The rows of several runs as one stream."""
    arrow = import_pyarrow()
    schema = arrow_schema(runs[0].columns)
    batches = chain.from_iterable(run.batches() for run in runs)
    found: pa.RecordBatchReader = arrow.RecordBatchReader.from_batches(schema, batches)
    return found
