from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchglass.analyse.histograms import merged
from torchglass.capture.tensor.histograms import ROOM, binned
from torchglass.records.model import Histogram, Stats
from torchglass.records.step_points import Bins

finite = st.floats(allow_nan=False, allow_infinity=False)
tame = st.floats(-1e6, 1e6)
normal = st.floats(-1e6, 1e6, allow_subnormal=False)
anything = st.floats()
bin_counts = st.integers(1, 64)


def edges(grid: Bins) -> np.ndarray:
    """The edges of a grid's bins, the last one included."""
    cells = np.arange(grid.first, grid.first + len(grid.counts) + 1, dtype=np.float64)
    return cells * 2.0**grid.exponent


def histogram(values: list[float], bins: int) -> Histogram:
    (grid,) = binned(np.array([values]), bins).each()
    numbers = np.array(values)
    stats = Stats(
        count=len(values),
        min=float(numbers.min()),
        max=float(numbers.max()),
        mean=float(numbers.mean()),
        std=float(numbers.std(ddof=1)) if len(values) > 1 else 0.0,
    )
    return Histogram(**grid._asdict(), stats=stats)


def total(one: Histogram) -> int:
    return sum(one.counts)


@given(st.lists(tame, min_size=1, max_size=60), bin_counts)
def test_counts_match_numpy_on_the_same_edges(values: list[float], bins: int) -> None:
    (grid,) = binned(np.array([values]), bins).each()

    # Half open bins, as numpy's but for its last one, which is closed.
    expected, _ = np.histogram(values, [*edges(grid), np.inf])
    below = sum(value < edges(grid)[0] for value in values)
    assert list(grid.counts) == expected[:-1].tolist()
    assert below + sum(grid.counts) + int(expected[-1]) == len(values)


@given(st.lists(anything, min_size=1, max_size=60), bin_counts)
def test_any_row_has_a_histogram_within_the_bin_limit(values: list[float], bins: int) -> None:
    (grid,) = binned(np.array([values]), bins).each()

    seen = [value for value in values if math.isfinite(value)]
    assert len(grid.counts) <= bins * ROOM
    assert sum(grid.counts) <= len(seen)
    assert all(count >= 0 for count in grid.counts)
    assert grid == Bins(0, 0, ()) or (grid.counts[0] and grid.counts[-1])


@given(st.lists(tame, min_size=1, max_size=99), bin_counts)
def test_below_a_hundred_values_none_is_excluded(values: list[float], bins: int) -> None:
    (grid,) = binned(np.array([values]), bins).each()

    assert sum(grid.counts) == len(values)


@given(
    st.lists(normal, min_size=2, max_size=40),
    st.lists(normal, min_size=2, max_size=40),
    bin_counts,
)
def test_the_sum_of_two_histograms_is_the_histogram_of_all_values(
    one: list[float], other: list[float], bins: int
) -> None:
    both = merged([histogram(one, bins), histogram(other, bins)], bins * ROOM)

    numbers = np.array([*one, *other])
    cells = np.floor(numbers / 2.0**both.exponent)
    counted = [int((cells == both.first + index).sum()) for index in range(len(both.counts))]
    assert list(both.counts) == counted
    assert total(both) == len(numbers)
    assert both.stats.count == len(numbers)
    assert both.stats.mean == pytest.approx(numbers.mean(), rel=1e-9, abs=1e-6)
    assert both.stats.std == pytest.approx(numbers.std(ddof=1), rel=1e-6, abs=1e-6)


@given(st.lists(st.lists(tame, min_size=2, max_size=9), min_size=3, max_size=6), bin_counts)
def test_the_order_of_adding_does_not_matter(parts: list[list[float]], bins: int) -> None:
    first, *rest = (histogram(part, bins) for part in parts)
    forwards = first
    for each in rest:
        forwards = merged([forwards, each], bins * ROOM)
    *others, last = (first, *rest)
    backwards = last
    for each in reversed(others):
        backwards = merged([each, backwards], bins * ROOM)

    assert (forwards.exponent, forwards.first) == (backwards.exponent, backwards.first)
    assert forwards.counts == backwards.counts


@given(st.lists(finite, min_size=2, max_size=20), st.lists(finite, min_size=2, max_size=20))
def test_histograms_of_any_two_sizes_can_be_added(one: list[float], other: list[float]) -> None:
    with np.errstate(all="ignore"):
        left, right = histogram(one, 30), histogram(other, 30)

    both = merged([left, right], 30 * ROOM)

    assert total(both) == total(left) + total(right)
    assert len(both.counts) <= 30 * ROOM


def test_an_empty_histogram_adds_nothing() -> None:
    one = histogram([1.0, 2.0, 3.0], 4)
    empty = Histogram(exponent=7, first=9, counts=(), stats=one.stats)

    assert merged([one, empty]).counts == merged([empty, one]).counts == one.counts


def test_rows_without_values_have_no_bins() -> None:
    nothing = Bins(0, 0, ())

    assert [*binned(np.zeros((2, 0)), 30).each()] == [nothing, nothing]
    assert [*binned(np.full((1, 5), np.nan), 30).each()] == [nothing]


def test_a_single_value_has_one_bin_around_it() -> None:
    for value in (0.0, 1.0, -3.75, 1e-300, -1e300, 5e-324):
        (grid,) = binned(np.full((1, 7), value), 30).each()

        assert grid.counts == (7,)
        low, high = edges(grid)
        assert low <= value < high


def test_one_percent_of_outliers_on_each_side_may_be_excluded() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    wild = np.where(np.arange(1000) % 101 == 0, 1e9, values)

    (tame_grid,) = binned(values[None], 30).each()
    (wild_grid,) = binned(wild[None], 30).each()

    assert wild_grid.exponent == tame_grid.exponent
    assert sum(wild_grid.counts) == 990


def test_a_spike_of_five_percent_is_not_an_outlier() -> None:
    values = np.where(np.arange(1000) % 20 == 0, 5.0, 1e-4)

    (grid,) = binned(values[None], 30).each()

    assert sum(grid.counts) == 1000
    assert grid.counts[-1] == 50
