"""Steps of a run file as a Parquet file that others can read, and back, without any loss.

A segment has the columns of `store.arrow_columns`, and those of `SEGMENT_COLUMNS`. Rows are in the
order of series, then of steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torchglass.errors import StoreError
from torchglass.records.run import Series
from torchglass.records.step_points import FIELDS, BinColumns
from torchglass.store.arrow_columns import SCHEMA_COLUMNS, import_pyarrow, point_batch
from torchglass.store.step_blobs import (
    Blobs,
    pack_bin_columns,
    unpack,
    unpack_bin_columns,
)

SEGMENT_COLUMNS = {
    "rank": ("int32", "the rank that measured it"),
    "session": ("int32", "1 for the process that began the run, 2 for the first that resumed it"),
    "frame": ("int64", "the number of the step in the order of writing"),
    "time_ns": ("int64", "when the step was measured, in nanoseconds since 1970"),
}
"""What the rows of a segment have besides `SCHEMA_COLUMNS`."""

_GROUP_ROWS = 100_000
_STATS = FIELDS["stats"]


class StoredFrame(NamedTuple):
    """A row of the table "frames" of a run file."""

    id: int
    step: int
    time_ns: int
    session: int
    blob: bytes
    bins: bytes | None

    @property
    def bytes(self) -> int:
        """The size of its values."""
        return len(self.blob) + len(self.bins or b"")


def pack_segment(
    frames: Sequence[StoredFrame], known: Sequence[Series], *, run: str, rank: int
) -> bytes:
    """Some frames as a Parquet file; `known` are all the series that may be in them."""
    arrow = import_pyarrow()
    from pyarrow import parquet

    # In place of steps, the places of the frames: a step may occur twice.
    every = unpack(((at, frame.blob) for at, frame in enumerate(frames)), known, known)
    every = [points for points in every if len(points)]
    binned = [points.series for points in every if points.series.kind == "histogram"]
    bins = unpack_bin_columns(
        ((frame.blob, frame.bins) for frame in frames if frame.bins is not None), binned, known
    )
    facts = np.array([frame[:4] for frame in frames], np.int64).reshape(-1, 4)
    places = np.concatenate([np.empty(0, np.int64), *(points.steps for points in every)])
    every = [replace(points, steps=facts[points.steps, 1]) for points in every]
    batch = point_batch(run, every, bins, tuple(SCHEMA_COLUMNS))
    ids, _, times, sessions = facts[places].T
    more = {
        "rank": arrow.array(np.full(len(places), rank), arrow.int32()),
        "session": arrow.array(sessions, arrow.int32()),
        "frame": arrow.array(ids),
        "time_ns": arrow.array(times),
    }
    table = arrow.Table.from_batches([batch])
    for name, column in more.items():
        table = table.append_column(name, column)
    out = arrow.BufferOutputStream()
    parquet.write_table(table, out, compression="zstd", row_group_size=_GROUP_ROWS)
    packed: bytes = out.getvalue().to_pybytes()
    return packed


def unpack_segment(
    data: bytes, known: Sequence[Series], *, after: int = 0
) -> Iterator[StoredFrame]:
    """The frames of a segment with numbers above `after`, as in the run file they came from."""
    arrow = import_pyarrow()
    from pyarrow import parquet

    try:
        table = parquet.read_table(arrow.BufferReader(data))
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise StoreError(f"the segment is corrupt: {error}") from error
    # Compared by `in` and not by name alone: a column of another type is corrupt as well.
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    frames = columns["frame"].to_numpy()
    order = np.argsort(frames, kind="stable")
    order = order[np.searchsorted(frames[order], after, side="right") :]
    if not len(order):
        return
    ids = _series_ids(columns, known)[order]
    is_scalar = columns["value"].is_valid().to_numpy(zero_copy_only=False)[order]
    values, widths = _values(columns, order, is_scalar)
    bins = _bin_columns(columns, order)
    has_bins = columns["bin_exponent"].is_valid().to_numpy(zero_copy_only=False)[order]
    ends = np.concatenate([[0], np.cumsum(widths)])
    bins_before = np.concatenate([[0], np.cumsum(has_bins)])
    numbers = frames[order]
    starts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
    facts = {
        name: columns[name].to_numpy()[order][starts].tolist()
        for name in ("frame", "step", "time_ns", "session")
    }
    for start, stop, *row in zip(
        starts.tolist(), [*starts[1:].tolist(), len(order)], *facts.values(), strict=True
    ):
        head = np.concatenate([[stop - start], ids[start:stop]]).astype("<u4").tobytes()
        inside = np.arange(bins_before[start], bins_before[stop])
        blobs = Blobs(
            head + values[ends[start] : ends[stop]].tobytes(),
            pack_bin_columns(bins.take(inside)) if len(inside) else None,
        )
        yield StoredFrame._make([*row, *blobs])


def _series_ids(columns: Mapping[str, Any], known: Sequence[Series]) -> npt.NDArray[np.int64]:
    """The id of the series of each row."""
    places = {(each.path, each.name, each.kind): each.id for each in known}
    coded = [_dictionary(columns[name]) for name in ("path", "name", "kind")]
    codes = np.stack([indices for indices, _ in coded])
    distinct, inverse = np.unique(codes, axis=1, return_inverse=True)
    texts = [texts for _, texts in coded]
    try:
        found = [
            places[texts[0][path], texts[1][name], texts[2][kind]]
            for path, name, kind in distinct.T.tolist()
        ]
    except KeyError as error:
        raise StoreError(f"the segment has a series that the run does not have: {error}") from error
    return np.array(found, np.int64)[inverse.reshape(-1)]


def _dictionary(column: Any) -> tuple[npt.NDArray[np.int64], list[str]]:
    coded = column if hasattr(column, "indices") else column.dictionary_encode()
    return coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), (
        coded.dictionary.to_pylist()
    )


def _values(
    columns: Mapping[str, Any], order: npt.NDArray[np.int64], is_scalar: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The values of all rows one after the other, and how many each row has."""
    table = np.empty((len(order), len(_STATS)))
    for place, name in enumerate(_STATS):
        table[:, place] = _filled(columns[name])[order]
    table[is_scalar, 0] = _filled(columns["value"])[order][is_scalar]
    widths = np.where(is_scalar, 1, len(_STATS))
    inside = np.arange(len(_STATS)) < widths[:, None]
    return table[inside].astype("<f8", copy=False), widths


def _bin_columns(columns: Mapping[str, Any], order: npt.NDArray[np.int64]) -> BinColumns:
    """The histograms in the order of the rows."""
    has = columns["bin_exponent"].is_valid().to_numpy(zero_copy_only=False)
    counts = columns["bin_counts"]
    lengths = _filled(counts.value_lengths())[has].astype(np.int64)
    every = BinColumns(
        _filled(columns["bin_exponent"])[has].astype(np.int64),
        _filled(columns["bin_first"])[has].astype(np.int64),
        lengths,
        counts.flatten().to_numpy(),
    )
    places = np.cumsum(has) - 1
    return every.take(places[order[has[order]]])


def _filled(column: Any) -> npt.NDArray[Any]:
    """A column with 0 in place of null; whole numbers stay whole."""
    filled: npt.NDArray[Any] = column.fill_null(0).to_numpy(zero_copy_only=False)
    return filled
