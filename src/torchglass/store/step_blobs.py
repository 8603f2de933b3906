"""The points and histograms of one step as blobs.

Little-endian: the number of histograms n (uint32), their exponents (n × int16), their first bins
(n × int64), their numbers of bins (n × uint32); then all counts one after the other, each as one
byte, where 255 stands for a count in a list of uint16 that follows, in which 65535 stands for a
count in a list of int64 that follows. Most counts are small: compression would make the blob a
third smaller, but take twice the time of everything else.

The numbers of a step are, little-endian: the number of series n (uint32), their ids (n × uint32),
then the values of each (float64), one per field of its kind in `FIELDS`. The bins, as described
above, are a separate blob, so that curves can be read without them.
"""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from torchglass.records.json_data import from_json_data, to_json_data
from torchglass.records.model import Histogram, Histograms, Stats
from torchglass.records.run import Frame, Points, Series, SeriesId
from torchglass.records.step_points import FIELDS, BinColumns, Bins, Point, PointTable

_LENGTH = np.dtype("<u4")
_EXPONENT = np.dtype("<i2")
_FIRST = np.dtype("<i8")
_SMALL, _MIDDLE, _LARGE = np.dtype("u1"), np.dtype("<u2"), np.dtype("<i8")
_NOT_SMALL, _NOT_MIDDLE = 0xFF, 0xFFFF


def pack_bins(histograms: Sequence[Histogram]) -> bytes:
    """The bins of all histograms of a step. Raises struct.error for values out of range."""
    number = len(histograms)
    head = struct.pack(
        f"<I{number}h{number}q{number}I",
        number,
        *[histogram.exponent for histogram in histograms],
        *[histogram.first for histogram in histograms],
        *[len(histogram.counts) for histogram in histograms],
    )
    return head + (_in_bytes(histograms) or _in_lists(histograms))


def _in_bytes(histograms: Sequence[Histogram]) -> bytearray | None:
    """The counts of all histograms if all of them fit in a byte, as those of a sample do."""
    counts: list[int] = []
    for histogram in histograms:
        counts += histogram.counts
    try:
        # Creating a bytearray from a list is twice as fast as bytes.
        packed = bytearray(counts)
    except ValueError:
        return None
    return None if _NOT_SMALL in packed else packed


def _in_lists(histograms: Sequence[Histogram]) -> bytes:
    # Creating an array from a tuple is much faster than with numpy.
    return _counts_in_lists(
        np.frombuffer(b"".join([array("q", each.counts) for each in histograms]), np.int64)
    )


def _counts_in_lists(counts: npt.NDArray[np.int64]) -> bytes:
    middle = counts[counts >= _NOT_SMALL]
    large = middle[middle >= _NOT_MIDDLE]
    columns = (
        np.minimum(counts, _NOT_SMALL).astype(_SMALL),
        np.minimum(middle, _NOT_MIDDLE).astype(_MIDDLE),
        large.astype(_LARGE),
    )
    return b"".join([column.tobytes() for column in columns])


def unpack_bins(blob: bytes, index: int) -> Bins:
    """The bins of the histogram that was packed at this index."""
    number = int.from_bytes(blob[: _LENGTH.itemsize], "little")
    exponents = np.frombuffer(blob, _EXPONENT, number, _LENGTH.itemsize)
    firsts = np.frombuffer(blob, _FIRST, number, _LENGTH.itemsize + exponents.nbytes)
    at_lengths = _LENGTH.itemsize + exponents.nbytes + firsts.nbytes
    lengths = np.frombuffer(blob, _LENGTH, number, at_lengths)
    start = int(lengths[:index].sum())
    small = np.frombuffer(blob, _SMALL, int(lengths.sum()), at_lengths + lengths.nbytes)
    rest = blob[at_lengths + lengths.nbytes + small.nbytes :]
    return Bins(
        exponent=int(exponents[index]),
        first=int(firsts[index]),
        counts=tuple(_counts(small, rest, slice(start, start + int(lengths[index]))).tolist()),
    )


def _counts(small: npt.NDArray[np.uint8], rest: bytes, part: slice) -> npt.NDArray[np.int64]:
    """Some of the counts of a step; `rest` has the counts that do not fit in a byte."""
    counts = small[part].astype(np.int64)
    is_middle = small == _NOT_SMALL
    if not is_middle[part].any():
        return counts
    middle = np.frombuffer(rest, _MIDDLE, np.count_nonzero(is_middle))
    skipped = np.count_nonzero(is_middle[: part.start])
    chosen = middle[skipped : skipped + np.count_nonzero(is_middle[part])].astype(np.int64)
    is_large = chosen == _NOT_MIDDLE
    if is_large.any():
        large = np.frombuffer(rest, _LARGE, offset=middle.nbytes)
        skipped = np.count_nonzero(middle[:skipped] == _NOT_MIDDLE)
        chosen[is_large] = large[skipped : skipped + np.count_nonzero(is_large)]
    counts[is_middle[part]] = chosen
    return counts


def pack_bin_columns(bins: BinColumns) -> bytes:
    """The bins of all histograms of a step, as `pack_bins` packs them."""
    columns = (
        np.array([len(bins.lengths)], _LENGTH),
        bins.exponents.astype(_EXPONENT),
        bins.firsts.astype(_FIRST),
        bins.lengths.astype(_LENGTH),
    )
    head = b"".join([column.tobytes() for column in columns])
    if bins.counts.dtype == _SMALL and not (bins.counts == _NOT_SMALL).any():
        return head + bins.counts.tobytes()
    return head + _counts_in_lists(bins.counts.astype(np.int64))


def unpack_all_bins(blob: bytes) -> BinColumns:
    """The bins of all histograms of a step."""
    number = int.from_bytes(blob[: _LENGTH.itemsize], "little")
    exponents = np.frombuffer(blob, _EXPONENT, number, _LENGTH.itemsize)
    firsts = np.frombuffer(blob, _FIRST, number, _LENGTH.itemsize + exponents.nbytes)
    at_lengths = _LENGTH.itemsize + exponents.nbytes + firsts.nbytes
    lengths = np.frombuffer(blob, _LENGTH, number, at_lengths)
    small = np.frombuffer(blob, _SMALL, int(lengths.sum()), at_lengths + lengths.nbytes)
    rest = blob[at_lengths + lengths.nbytes + small.nbytes :]
    counts = _counts(small, rest, slice(0, len(small))) if rest else small
    return BinColumns(
        exponents.astype(np.int64), firsts.astype(np.int64), lengths.astype(np.int64), counts
    )


R = TypeVar("R")

_MOST_GROWTH = 200
"""The largest accepted ratio of unpacked to packed size; ours are up to 60."""
_SMALL_DOCUMENT = 32 << 20

_ID = np.dtype("<u4")
_NUMBER = np.dtype("<f8")
_pack_number = struct.Struct("<d").pack
_unpack_number = struct.Struct("<d").unpack_from
_pack_stats = struct.Struct(f"<{len(FIELDS['stats'])}d").pack


class Blobs(NamedTuple):
    """One step, packed."""

    numbers: bytes
    bins: bytes | None
    """None if there is no histogram."""


_Whole = npt.NDArray[np.int64]
_Values = npt.NDArray[np.float64]


class _BlobSlice(NamedTuple):
    """The position of a wanted series in blobs with the same head."""

    wanted: int
    start: int
    stop: int


def pack(frame: Frame) -> Blobs:
    """The points of one step as blobs. Raises struct.error for values out of range."""
    points = frame.points
    if isinstance(points, PointTable):
        return _pack_table(points)
    head = struct.pack(f"<I{len(points)}I", len(points), *points)
    histograms = [point for point in points.values() if isinstance(point, Histogram)]
    return Blobs(
        b"".join([head, *map(_numbers, points.values())]),
        pack_bins(histograms) if histograms else None,
    )


def _pack_table(points: PointTable[SeriesId]) -> Blobs:
    histograms, numbers = points.histograms, points.numbers
    columns = (
        np.array([len(points)], _LENGTH),
        np.array([*points.histogram_keys, *numbers], _ID),
        histograms.stats.astype(_NUMBER, copy=False),
        np.array([*numbers.values()], _NUMBER),
    )
    return Blobs(
        b"".join([column.tobytes() for column in columns]),
        pack_bin_columns(histograms.bins) if len(histograms) else None,
    )


def _numbers(point: Point) -> bytes:
    """`records.run.point_values`, packed. Naming each field is twice as fast as a list."""
    stats = point.stats if isinstance(point, Histogram) else point
    if not isinstance(stats, Stats):
        return _pack_number(stats)
    return _pack_stats(
        stats.count, stats.min, stats.max, stats.mean, stats.std, stats.nan, stats.inf
    )


def pack_document(record: object) -> bytes:
    """A record of the whole run. Raises TypeError or ValueError if it is not plain data."""
    return zlib.compress(json.dumps(to_json_data(record)).encode())


def unpack_document(cls: type[R], packed: bytes) -> R:
    """The record of a class that was packed. Raises ValueError if it unpacks to far too much."""
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(packed, _MOST_GROWTH * len(packed) + _SMALL_DOCUMENT)
    if unpacker.unconsumed_tail:
        raise ValueError(f"a document of {len(packed):,} bytes unpacks to far too much data")
    return from_json_data(cls, json.loads(text))


def unpack(
    frames: Iterable[tuple[int, bytes]], wanted: Sequence[Series], known: Sequence[Series]
) -> list[Points]:
    """The points of each wanted series, from the steps and values of frames.

    `known` are all the series that may be in the blobs.
    """
    order = {series.id: index for index, series in enumerate(wanted)}
    widths = _widths(known)
    # Most steps measure the same series, so positions are computed once per head, and the wanted
    # values of a step are taken at once: a run may have thousands of series.
    groups: dict[bytes, _SameSeries] = {}
    group, head = None, b""
    for number, (step, blob) in enumerate(frames):
        if group is None or not blob.startswith(head):
            head = _head(blob)
            if head not in groups:
                groups[head] = _SameSeries(_find(head, order, widths), len(head))
            group = groups[head]
        group.add(number, step, blob)
    parts: list[list[tuple[_Whole, _Whole, _Values]]] = [[] for _ in wanted]
    for group in groups.values():
        for index, part in group.parts():
            parts[index].append(part)
    return [
        _in_order(series, parts[index], widths[series.id]) for index, series in enumerate(wanted)
    ]


class _SameSeries:
    """The wanted values of all steps that measured the same series."""

    def __init__(self, places: Sequence[_BlobSlice], start: int) -> None:
        self._places = places
        self._first = places[0].start if places else start
        self._last = places[-1].stop if places else start
        self._take: npt.NDArray[np.intp] | None = None
        """The wanted values among those between; None if all are."""
        if self._last - self._first > sum(place.stop - place.start for place in places):
            size = _NUMBER.itemsize
            taken = [at for place in places for at in range(place.start, place.stop, size)]
            self._take = (np.array(taken, np.intp) - self._first) // size
        self._numbers: list[int] = []
        self._steps: list[int] = []
        self._rows: list[bytes] = []

    def add(self, number: int, step: int, blob: bytes) -> None:
        if self._places:
            self._numbers.append(number)
            self._steps.append(step)
            row = blob[self._first : self._last]
            if self._take is not None:
                row = np.frombuffer(row, _NUMBER)[self._take].tobytes()
            self._rows.append(row)

    def parts(self) -> Iterator[tuple[int, tuple[_Whole, _Whole, _Values]]]:
        """For each wanted series its index, and its frames, steps and values."""
        if not self._rows:
            return
        numbers, steps = np.array(self._numbers, np.int64), np.array(self._steps, np.int64)
        values = np.frombuffer(b"".join(self._rows), _NUMBER).reshape(len(steps), -1)
        values = values.astype(np.float64)
        column = 0
        for place in self._places:
            width = (place.stop - place.start) // _NUMBER.itemsize
            own = np.ascontiguousarray(values[:, column : column + width])
            yield place.wanted, (numbers, steps, own)
            column += width


def _in_order(
    series: Series, parts: Sequence[tuple[_Whole, _Whole, _Values]], width: int
) -> Points:
    """The points of one series, in the order of the frames."""
    if not parts:
        return Points(series=series, steps=np.empty(0, np.int64), values=np.empty((0, width)))
    if len(parts) == 1:
        _, steps, values = parts[0]
        return Points(series=series, steps=steps, values=values)
    numbers, steps, values = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(numbers, kind="stable")
    return Points(series=series, steps=steps[order], values=values[order])


def unpack_histograms(
    frames: Iterable[tuple[int, bytes, bytes]], wanted: Sequence[Series], known: Sequence[Series]
) -> list[Histograms]:
    """The histograms of each wanted series, from the steps, values and bins of frames."""
    found: list[list[tuple[int, Histogram]]] = [[] for _ in wanted]
    order = {series.id: at for at, series in enumerate(wanted) if series.kind == "histogram"}
    widths = _widths(known)
    binned = {series.id for series in known if series.kind == "histogram"}
    places: dict[bytes, list[tuple[_BlobSlice, int]]] = {}
    for step, blob, packed in frames:
        head = _head(blob)
        if head not in places:
            in_order = [each for each in _ids(head) if each in binned]
            places[head] = [
                (place, in_order.index(wanted[place.wanted].id))
                for place in _find(head, order, widths)
            ]
        for (at, start, stop), index in places[head]:
            grid = unpack_bins(packed, index)
            histogram = Histogram(**grid._asdict(), stats=_stats(blob[start:stop]))
            found[at].append((step, histogram))
    return [
        Histograms(
            series=series,
            steps=np.array([step for step, _ in pairs], np.int64),
            bins=tuple(histogram for _, histogram in pairs),
        )
        for series, pairs in zip(wanted, found, strict=True)
    ]


def unpack_bin_columns(
    frames: Iterable[tuple[bytes, bytes]], wanted: Sequence[Series], known: Sequence[Series]
) -> BinColumns:
    """The bins of the wanted histograms, in the order of series, then of frames."""
    order = {series.id: at for at, series in enumerate(wanted)}
    binned = {series.id for series in known if series.kind == "histogram"}
    places: dict[bytes, tuple[_Whole, _Whole]] = {}
    parts: list[BinColumns] = []
    ranks: list[_Whole] = []
    for blob, packed in frames:
        head = _head(blob)
        if head not in places:
            there = [each for each in _ids(head) if each in binned]
            at = [index for index, each in enumerate(there) if each in order]
            rank = [order[each] for each in there if each in order]
            places[head] = np.array(at, np.int64), np.array(rank, np.int64)
        indices, rank_of = places[head]
        parts.append(unpack_all_bins(packed).take(indices))
        ranks.append(rank_of)
    if not parts:
        return BinColumns.of([])
    return BinColumns.joined(parts).take(np.argsort(np.concatenate(ranks), kind="stable"))


class LatestValues:
    """The last value of each scalar of the whole model, from packed steps."""

    def __init__(self, known: Mapping[str, tuple[int, float]]) -> None:
        self.by_name: dict[str, tuple[int, float]] = dict(known)
        """The step and the value."""
        self._series = 0
        self._places: dict[bytes, list[tuple[str, int]]] = {}

    def add(self, step: int, blob: bytes, series: Sequence[Series]) -> None:
        """Take the values of a step; `series` are all series so far."""
        if len(series) != self._series:
            self._series = len(series)
            self._places.clear()
        head = _head(blob)
        if head not in self._places:
            wanted = [each for each in series if not each.path and each.kind == "scalar"]
            order = {each.id: index for index, each in enumerate(wanted)}
            found = _find(head, order, _widths(series))
            self._places[head] = [(wanted[place.wanted].name, place.start) for place in found]
        for name, start in self._places[head]:
            self.by_name[name] = step, _unpack_number(blob, start)[0]


def _stats(blob: bytes) -> Stats:
    count, low, high, mean, std, nan, inf = np.frombuffer(blob, _NUMBER).tolist()
    return Stats(
        count=int(count), min=low, max=high, mean=mean, std=std, nan=int(nan), inf=int(inf)
    )


def _widths(known: Iterable[Series]) -> dict[SeriesId, int]:
    return {series.id: len(FIELDS[series.kind]) for series in known}


def _head(blob: bytes) -> bytes:
    return blob[: _ID.itemsize * (1 + int.from_bytes(blob[: _ID.itemsize], "little"))]


def _ids(head: bytes) -> list[SeriesId]:
    return [SeriesId(each) for each in np.frombuffer(head, _ID)[1:].tolist()]


def _find(
    head: bytes, order: Mapping[SeriesId, int], widths: Mapping[SeriesId, int]
) -> list[_BlobSlice]:
    places = []
    start = len(head)
    for series in _ids(head):
        stop = start + widths[series] * _NUMBER.itemsize
        if series in order:
            places.append(_BlobSlice(order[series], start, stop))
        start = stop
    return places
