"""The points of one step as one blob, and chosen series out of many blobs.

A blob is, little-endian: the number of series n (uint32), their ids (n × uint32), then the numbers
of each (float64), as many as `FIELDS` names for its kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from torchglass.records.series import FIELDS, Point, Points, Series, SeriesId, numbers

_ID = np.dtype("<u4")
_NUMBER = np.dtype("<f8")


class _Place(NamedTuple):
    """Where the numbers of a wanted series stand in blobs that begin alike."""

    wanted: int
    start: int
    stop: int


def pack(points: Mapping[SeriesId, Point]) -> bytes:
    """The points of one step as a blob."""
    head = np.array([len(points), *points], _ID)
    body = np.fromiter(chain.from_iterable(map(numbers, points.values())), _NUMBER)
    return head.tobytes() + body.tobytes()


def unpack(
    frames: Iterable[tuple[int, bytes]], wanted: Sequence[Series], known: Sequence[Series]
) -> list[Points]:
    """The points of each wanted series, from the steps and blobs of frames.

    `known` are all the series that may be in the blobs.
    """
    order = {series.id: index for index, series in enumerate(wanted)}
    widths = {series.id: len(FIELDS[series.kind]) for series in known}
    # Most steps measure the same series: where those stand is worked out once for each head.
    places: dict[bytes, list[_Place]] = {}
    steps: list[list[int]] = [[] for _ in wanted]
    pieces: list[list[bytes]] = [[] for _ in wanted]
    for step, blob in frames:
        head = blob[: _ID.itemsize * (1 + int.from_bytes(blob[: _ID.itemsize], "little"))]
        if head not in places:
            places[head] = _find(head, order, widths)
        for index, start, stop in places[head]:
            steps[index].append(step)
            pieces[index].append(blob[start:stop])
    return [
        Points(
            series=series,
            steps=np.array(steps[index], np.int64),
            values=np.frombuffer(b"".join(pieces[index]), _NUMBER)
            .reshape(-1, widths[series.id])
            .astype(np.float64, copy=False),
        )
        for index, series in enumerate(wanted)
    ]


def _find(
    head: bytes, order: Mapping[SeriesId, int], widths: Mapping[SeriesId, int]
) -> list[_Place]:
    places = []
    start = len(head)
    for series in map(SeriesId, np.frombuffer(head, _ID)[1:].tolist()):
        stop = start + widths[series] * _NUMBER.itemsize
        if series in order:
            places.append(_Place(order[series], start, stop))
        start = stop
    return places
