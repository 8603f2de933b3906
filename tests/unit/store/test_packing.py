from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.recorded import stats
from torchglass.records.series import Point, Series, SeriesId, numbers
from torchglass.records.tensors import Stats
from torchglass.store.packing import pack, unpack

LOSS = Series(id=SeriesId(0), path="", name="loss")
WEIGHT = Series(id=SeriesId(7), path="fc", name="weight", kind="stats")
RATE = Series(id=SeriesId(300), path="", name="rate")
KNOWN = [LOSS, WEIGHT, RATE]

number = st.floats(allow_nan=False)
scalar_points = st.fixed_dictionaries(
    {},
    optional={
        LOSS.id: number,
        WEIGHT.id: st.builds(
            Stats, count=st.integers(0, 2**53), min=number, max=number, mean=number, std=number
        ),
        RATE.id: number,
    },
)


@given(st.lists(scalar_points))
def test_every_point_comes_back_at_its_step(frames: list[dict[SeriesId, Point]]) -> None:
    blobs = [(step, pack(points)) for step, points in enumerate(frames)]

    unpacked = unpack(blobs, KNOWN, KNOWN)

    for points in unpacked:
        expected = {
            step: numbers(frame[points.series.id])
            for step, frame in enumerate(frames)
            if points.series.id in frame
        }
        assert dict(zip(points.steps.tolist(), map(tuple, points.values), strict=True)) == expected


def test_a_blob_has_an_id_for_each_series_and_eight_bytes_for_each_number() -> None:
    blob = pack({LOSS.id: 0.5, WEIGHT.id: stats(4)})

    assert len(blob) == 4 + 2 * 4 + (1 + 7) * 8


def test_what_is_not_finite_survives() -> None:
    blobs = [(0, pack({LOSS.id: math.nan})), (1, pack({LOSS.id: -math.inf}))]

    (points,) = unpack(blobs, [LOSS], KNOWN)

    np.testing.assert_array_equal(points.column("value"), [math.nan, -math.inf])


def test_a_series_that_was_never_measured_is_empty_but_has_its_columns() -> None:
    (points,) = unpack([(0, pack({LOSS.id: 1.0}))], [WEIGHT], KNOWN)

    assert len(points) == 0
    assert points.values.shape == (0, 7)
