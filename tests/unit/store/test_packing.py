from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.recorded import histogram, stats
from torchglass.records.model import Histogram, Stats
from torchglass.records.run import Frame, Series, SeriesId
from torchglass.records.step_points import HistogramTable, Point, PointTable, point_values
from torchglass.store.step_blobs import Blobs, pack, unpack, unpack_histograms

LOSS = Series(id=SeriesId(0), path="", name="loss")
WEIGHT = Series(id=SeriesId(7), path="fc", name="weight", kind="stats")
RATE = Series(id=SeriesId(300), path="", name="rate")
OUTPUT = Series(id=SeriesId(8), path="fc", name="output", kind="histogram")
INPUT = Series(id=SeriesId(9), path="fc", name="input.0", kind="histogram")
KNOWN = [LOSS, WEIGHT, RATE, OUTPUT, INPUT]

number = st.floats(allow_nan=False)
any_stats = st.builds(
    Stats, count=st.integers(0, 2**53), min=number, max=number, mean=number, std=number
)
any_histogram = st.builds(
    Histogram,
    exponent=st.integers(-1100, 1100),
    first=st.integers(-(2**60), 2**60),
    counts=st.lists(st.integers(0, 300) | st.integers(0, 2**62), max_size=80).map(tuple),
    stats=any_stats,
)
any_points = st.fixed_dictionaries(
    {},
    optional={
        LOSS.id: number,
        WEIGHT.id: any_stats,
        OUTPUT.id: any_histogram,
        RATE.id: number,
        INPUT.id: any_histogram,
    },
)


def packed(points: dict[SeriesId, Point]) -> Blobs:
    return pack(Frame(step=0, time_ns=0, points=points))


@given(st.lists(any_points))
def test_every_point_round_trips_at_its_step(frames: list[dict[SeriesId, Point]]) -> None:
    blobs = [(step, packed(points).numbers) for step, points in enumerate(frames)]

    unpacked = unpack(blobs, KNOWN, KNOWN)

    for points in unpacked:
        expected = {
            step: point_values(frame[points.series.id])
            for step, frame in enumerate(frames)
            if points.series.id in frame
        }
        assert dict(zip(points.steps.tolist(), map(tuple, points.values), strict=True)) == expected


@given(st.lists(any_points))
def test_every_histogram_round_trips_at_its_step(frames: list[dict[SeriesId, Point]]) -> None:
    blobs = [
        (step, numbers, bins)
        for step, points in enumerate(frames)
        for numbers, bins in [packed(points)]
        if bins is not None
    ]

    for series in (INPUT, OUTPUT):
        (found,) = unpack_histograms(blobs, [series], KNOWN)

        expected = {
            step: points[series.id] for step, points in enumerate(frames) if series.id in points
        }
        assert dict(zip(found.steps.tolist(), found.bins, strict=True)) == expected


@given(st.dictionaries(st.sampled_from([OUTPUT.id, INPUT.id]), any_histogram), number)
def test_a_table_of_points_is_packed_like_single_points(
    histograms: dict[SeriesId, Histogram], loss: float
) -> None:
    table = PointTable([*histograms], HistogramTable.of([*histograms.values()]), {LOSS.id: loss})

    assert pack(Frame(step=0, time_ns=0, points=table)) == packed({**histograms, LOSS.id: loss})


def test_a_series_without_bins_has_no_histograms() -> None:
    numbers, bins = packed({WEIGHT.id: stats(1), OUTPUT.id: histogram(1)})
    assert bins is not None

    (found,) = unpack_histograms([(0, numbers, bins)], [WEIGHT], KNOWN)

    assert len(found) == 0


def test_small_counts_take_a_byte_each() -> None:
    few, many = (
        Histogram(exponent=0, first=0, counts=(200,) * number, stats=stats(1))
        for number in (100, 1_100)
    )
    short, long = packed({OUTPUT.id: few}).bins, packed({OUTPUT.id: many}).bins

    assert short is not None
    assert long is not None
    assert len(long) - len(short) == 1_000


def test_a_blob_has_an_id_per_series_and_eight_bytes_per_value() -> None:
    blob = packed({LOSS.id: 0.5, WEIGHT.id: stats(4)})

    assert blob.bins is None
    assert len(blob.numbers) == 4 + 2 * 4 + (1 + 7) * 8


def test_non_finite_values_round_trip() -> None:
    blobs = [
        (0, packed({LOSS.id: math.nan}).numbers),
        (1, packed({LOSS.id: -math.inf}).numbers),
    ]

    (points,) = unpack(blobs, [LOSS], KNOWN)

    np.testing.assert_array_equal(points.column("value"), [math.nan, -math.inf])


def test_an_unmeasured_series_is_empty_but_has_its_columns() -> None:
    (points,) = unpack([(0, packed({LOSS.id: 1.0}).numbers)], [WEIGHT], KNOWN)

    assert len(points) == 0
    assert points.values.shape == (0, 7)
