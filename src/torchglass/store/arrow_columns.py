"""The points of a run as Arrow columns: the documented schema of tables and Parquet files.

A row is one point: one quantity of one module at one step. `SCHEMA_COLUMNS` lists the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchglass.errors import ViewError
from torchglass.records.run import Points, Series
from torchglass.records.step_points import FIELDS, BinColumns

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

BIN_COLUMNS = ("bin_exponent", "bin_first", "bin_counts")
_NAMES = ("run", "path", "name", "kind")
_WHOLE = ("count", "nan", "inf")


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


def point_batch(
    run: str, every: Sequence[Points], bins: BinColumns | None, columns: Sequence[str]
) -> pa.RecordBatch:
    """The points of some series as rows, in the order of series, then of points.

    `bins` are those of all points of histograms; None if no column of bins is wanted.
    """
    arrow = import_pyarrow()
    series, lengths = [points.series for points in every], [len(points) for points in every]
    arrays = []
    for column in columns:
        if column in _NAMES:
            arrays.append(_names(arrow, column, run, series, lengths))
        elif column == "step":
            arrays.append(arrow.array(np.concatenate([_NO_STEPS, *(p.steps for p in every)])))
        elif column in BIN_COLUMNS and bins is not None:
            arrays.append(_bin_array(arrow, column, bins, every))
        else:
            arrays.append(_numbers(arrow, column, every))
    batch: pa.RecordBatch = arrow.record_batch(arrays, schema=arrow_schema(columns))
    return batch


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
