from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.analyse.test_histograms import stats_of
from torchglass.analyse.histograms import joined
from torchglass.records.model import Stats

some_numbers = st.lists(st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf]), max_size=20)


@given(st.lists(some_numbers, max_size=5))
def test_merged_moments_equal_those_of_the_whole(parts: list[list[float]]) -> None:
    together = joined(stats_of(np.array(part, np.float64)) for part in parts)

    whole = stats_of(np.array([value for part in parts for value in part], np.float64))
    assert (together.count, together.nan, together.inf) == (whole.count, whole.nan, whole.inf)
    for field in ("min", "max", "mean", "std"):
        assert getattr(together, field) == pytest.approx(
            getattr(whole, field), rel=1e-9, abs=1e-6, nan_ok=True
        )


def test_a_small_standard_deviation_far_from_zero_is_kept() -> None:
    values = np.array([1e8, 1e8 + 1, 1e8 + 2])

    together = joined([stats_of(values), stats_of(values)])

    assert together.std == pytest.approx(np.concatenate([values, values]).std(ddof=1))


def test_moments_near_the_float_maximum_merge_without_an_error() -> None:
    huge = Stats(count=2, min=-1.7e308, max=1.7e308, mean=1e308, std=1.7e308)

    assert joined([huge, huge]).mean == 1e308
