from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchglass.analyse.histograms import (
    DyadicGrid,
    common_grid,
    display_grid,
    grid_of,
    merged,
    on_grid,
    quantiles,
    rebinned,
)
from torchglass.records.model import Histogram, Stats


def stats_of(values: npt.NDArray[np.float64]) -> Stats:
    finite = values[np.isfinite(values)]
    some = len(finite) > 0
    return Stats(
        count=len(values),
        min=float(finite.min()) if some else math.nan,
        max=float(finite.max()) if some else math.nan,
        mean=float(finite.mean()) if some else math.nan,
        std=float(finite.std(ddof=1)) if len(finite) > 1 else 0.0 if some else math.nan,
        nan=int(np.isnan(values).sum()),
        inf=int(np.isinf(values).sum()),
    )


def histogram_of(values: Sequence[float], exponent: int) -> Histogram:
    """The histogram of numbers on the grid of one width."""
    numbers = np.array(values, np.float64)
    cells = np.floor(np.ldexp(numbers[np.isfinite(numbers)], -exponent)).astype(np.int64)
    first = int(cells.min()) if len(cells) else 0
    counts = np.bincount(cells - first).tolist() if len(cells) else ()
    return Histogram(exponent=exponent, first=first, counts=tuple(counts), stats=stats_of(numbers))


# The smallest of all numbers are nothing once they are halved, in the reference here, too.
some_numbers = st.lists(
    st.floats(-1e3, 1e3, allow_subnormal=False)
    | st.sampled_from([math.nan, math.inf, -math.inf, 0.0]),
    max_size=30,
)
some_histograms = st.lists(st.builds(histogram_of, some_numbers, st.integers(-3, 6)), max_size=5)


@given(some_numbers, st.integers(-3, 6), st.integers(0, 12))
def test_halving_bins_equals_counting_in_wider_bins(
    values: list[float], exponent: int, halvings: int
) -> None:
    expected = histogram_of(values, exponent + halvings)

    (wide,) = on_grid([histogram_of(values, exponent)], grid_of(expected))

    assert tuple(wide.tolist()) == expected.counts


@given(st.lists(some_numbers, min_size=1, max_size=4), st.integers(-3, 6))
def test_merging_equals_counting_all_values_at_once(
    parts: list[list[float]], exponent: int
) -> None:
    together = merged([histogram_of(part, exponent) for part in parts], most_bins=10**6)

    whole = histogram_of([value for part in parts for value in part], exponent)
    assert together.counts == whole.counts
    assert not together.counts or together.first == whole.first
    for field in ("count", "nan", "inf"):
        assert getattr(together.stats, field) == getattr(whole.stats, field)
    for field in ("min", "max", "mean", "std"):
        assert getattr(together.stats, field) == pytest.approx(
            getattr(whole.stats, field), abs=1e-9, nan_ok=True
        )


@given(some_histograms, st.integers(0, 5))
def test_the_order_of_merging_does_not_matter(parts: list[Histogram], split: int) -> None:
    at_once = merged(parts)

    by_halves = merged([merged(parts[:split]), merged(parts[split:])])

    assert (by_halves.counts, by_halves.stats.count) == (at_once.counts, at_once.stats.count)
    assert not at_once.counts or (by_halves.exponent, by_halves.first) == (
        at_once.exponent,
        at_once.first,
    )


@given(some_histograms)
def test_no_value_is_lost_in_merging(parts: list[Histogram]) -> None:
    assert sum(merged(parts).counts) == sum(sum(part.counts) for part in parts)


def test_distant_histograms_merge_into_a_grid_with_few_bins() -> None:
    near, far = histogram_of([0.0, 0.5], -10), histogram_of([1e30], -10 + 90)

    together = merged([near, far], most_bins=64)

    assert len(together.counts) <= 64
    assert sum(together.counts) == 3


def test_merging_no_histograms_gives_an_empty_one() -> None:
    nothing = merged([])

    assert nothing.counts == ()
    assert nothing.stats.count == 0
    assert math.isnan(nothing.stats.mean)


def test_a_grid_has_its_edges_at_multiples_of_its_width() -> None:
    assert DyadicGrid(exponent=-2, first=-1, length=3).edges.tolist() == [-0.25, 0.0, 0.25, 0.5]


def test_histograms_of_several_steps_are_rows_of_one_matrix() -> None:
    steps = [histogram_of([0, 1, 1, 5], 0), histogram_of([], 0), histogram_of([-2, 3], 1)]

    grid = common_grid(steps)

    assert grid == DyadicGrid(exponent=1, first=-1, length=4)
    assert on_grid(steps, grid).tolist() == [[0, 3, 0, 1], [0, 0, 0, 0], [1, 0, 1, 0]]


def test_rebinning_to_a_finer_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit into"):
        on_grid([histogram_of([0, 1], 3)], DyadicGrid(exponent=0, first=0, length=8))


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=200), st.floats(0, 1))
def test_a_quantile_is_exact_to_one_bin_width(values: list[float], fraction: float) -> None:
    histogram = histogram_of(values, -2)

    (found,) = quantiles(histogram, [fraction])

    exact = np.quantile(values, [fraction], method="inverted_cdf")[0]
    after = np.quantile(values, [min(1.0, fraction + 1 / len(values))], method="higher")[0]
    assert exact - 0.25 <= found <= after + 0.25
    assert histogram.stats.min <= found <= histogram.stats.max


def test_an_empty_histogram_has_no_quantile() -> None:
    assert np.isnan(quantiles(histogram_of([math.nan], 0), [0.5])).all()


def test_outliers_do_not_widen_the_display_and_are_kept() -> None:
    values = [*np.linspace(-1, 1, 998).tolist(), 900.0, -900.0]
    wild = histogram_of(values, -5)

    shown = display_grid([wild], bins=40, reject=0.01)

    assert shown.length <= 40
    assert -2 < shown.edges[0] < -0.9
    assert 0.9 < shown.edges[-1] < 2
    assert sum(wild.counts) == 1_000
    assert display_grid([wild], bins=40).edges[-1] > 900


def test_an_outlier_step_does_not_coarsen_the_others() -> None:
    calm = [histogram_of(np.linspace(-1, 0.99, 1_000).tolist(), -5) for _ in range(50)]
    wild = histogram_of(np.linspace(-1e6, 1e6, 1_000).tolist(), 15)

    shown = display_grid([*calm, wild], bins=64, reject=0.02)

    assert shown.exponent == -5
    assert rebinned(calm[0], shown.edges).tolist() == list(calm[0].counts)


def test_an_empty_histogram_has_an_empty_display() -> None:
    assert display_grid([histogram_of([], 0)], bins=10).length == 0
    assert rebinned(histogram_of([], 0), np.array([0.0, 1.0])).tolist() == [0]


def test_counts_are_spread_over_bins_with_any_edges() -> None:
    histogram = Histogram(exponent=1, first=0, counts=(4, 8), stats=stats_of(np.array([0.0])))

    assert rebinned(histogram, np.array([0.0, 1.0, 3.0, 4.0])).tolist() == [2.0, 6.0, 4.0]
    assert grid_of(histogram) == DyadicGrid(1, 0, 2)
