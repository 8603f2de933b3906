from __future__ import annotations

import numpy as np

from tests.recorded import histogram, stats
from torchglass.records.run import Points, Series, SeriesId
from torchglass.records.step_points import FIELDS, point_values


def test_a_series_label_joins_path_and_name() -> None:
    assert Series(id=SeriesId(0), path="encoder.0", name="weight.grad").label == (
        "encoder.0.weight.grad"
    )
    assert Series(id=SeriesId(0), path="", name="loss").label == "loss"


def test_every_kind_of_point_is_a_tuple_of_values_in_field_order() -> None:
    assert point_values(0.5) == (0.5,)
    assert dict(zip(FIELDS["stats"], point_values(stats(3)), strict=True))["max"] == 3
    assert point_values(histogram(3)) == point_values(stats(3))


def test_a_column_is_found_by_its_name() -> None:
    series = Series(id=SeriesId(0), path="fc", name="output", kind="histogram")
    points = Points(series=series, steps=np.array([4]), values=np.array([point_values(stats(3))]))

    assert points.column("mean").tolist() == [3 / 7]
    assert len(points) == 1
