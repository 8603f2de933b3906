"""The bins of all histograms of one step as one blob, and one histogram out of it.

Little-endian: the number of histograms n (uint32), their exponents (n × int16), their first bins
(n × int64), how many bins each has (n × uint32); then all counts one after the other, each as one
byte, where 255 stands for a count in a list of uint16 that follows, in which 65535 stands for a
count in a list of int64 that follows. Most counts are small: compression would make the blob a
third smaller, but take twice the time of all the rest.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torchglass.records.histogram import Histogram

_LENGTH = np.dtype("<u4")
_EXPONENT = np.dtype("<i2")
_FIRST = np.dtype("<i8")
_SMALL, _MIDDLE, _LARGE = np.dtype("u1"), np.dtype("<u2"), np.dtype("<i8")
_NOT_SMALL, _NOT_MIDDLE = 0xFF, 0xFFFF


class Grid(NamedTuple):
    """The bins of one histogram."""

    exponent: int
    first: int
    counts: tuple[int, ...]


def pack(histograms: Sequence[Histogram]) -> bytes:
    """The bins of all histograms of a step. Raises struct.error for what no grid should hold."""
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
    """The counts of all histograms if all of them are small, as those of a sample are."""
    counts: list[int] = []
    for histogram in histograms:
        counts += histogram.counts
    try:
        # A bytearray takes in a list twice as fast as bytes do.
        packed = bytearray(counts)
    except ValueError:
        return None
    return None if _NOT_SMALL in packed else packed


def _in_lists(histograms: Sequence[Histogram]) -> bytes:
    # An array takes in a tuple much faster than numpy does.
    counts = np.frombuffer(b"".join([array("q", each.counts) for each in histograms]), np.int64)
    middle = counts[counts >= _NOT_SMALL]
    large = middle[middle >= _NOT_MIDDLE]
    columns = (
        np.minimum(counts, _NOT_SMALL).astype(_SMALL),
        np.minimum(middle, _NOT_MIDDLE).astype(_MIDDLE),
        large.astype(_LARGE),
    )
    return b"".join([column.tobytes() for column in columns])


def unpack(blob: bytes, index: int) -> Grid:
    """The bins of the histogram that was packed at this index."""
    number = int.from_bytes(blob[: _LENGTH.itemsize], "little")
    exponents = np.frombuffer(blob, _EXPONENT, number, _LENGTH.itemsize)
    firsts = np.frombuffer(blob, _FIRST, number, _LENGTH.itemsize + exponents.nbytes)
    at_lengths = _LENGTH.itemsize + exponents.nbytes + firsts.nbytes
    lengths = np.frombuffer(blob, _LENGTH, number, at_lengths)
    start = int(lengths[:index].sum())
    small = np.frombuffer(blob, _SMALL, int(lengths.sum()), at_lengths + lengths.nbytes)
    rest = blob[at_lengths + lengths.nbytes + small.nbytes :]
    return Grid(
        exponent=int(exponents[index]),
        first=int(firsts[index]),
        counts=tuple(_counts(small, rest, slice(start, start + int(lengths[index]))).tolist()),
    )


def _counts(small: npt.NDArray[np.uint8], rest: bytes, part: slice) -> npt.NDArray[np.int64]:
    """Some of the counts of a step; `rest` are the lists of those that are larger than a byte."""
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
