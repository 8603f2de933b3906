from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorded import histogram
from torchglass.records.model import Histogram
from torchglass.records.step_points import BinColumns, HistogramTable, PointTable

HISTOGRAMS = [histogram(1), histogram(2), histogram(3)]


def test_a_table_of_points_is_a_mapping_to_single_points() -> None:
    points = PointTable(["a", "b", "c"], HistogramTable.of(HISTOGRAMS), {"loss": 0.5})

    assert dict(points) == {**dict(zip("abc", HISTOGRAMS, strict=True)), "loss": 0.5}
    assert len(points) == 4
    with pytest.raises(KeyError):
        points["d"]


@given(st.lists(st.sampled_from(range(3))))
def test_any_rows_of_a_table_can_be_taken(rows: list[int]) -> None:
    taken = HistogramTable.of(HISTOGRAMS).take(np.array(rows, np.intp))

    assert list(taken) == [HISTOGRAMS[row] for row in rows]


def test_joined_tables_have_all_histograms_in_order() -> None:
    parts = [HistogramTable.of(HISTOGRAMS[:1]), HistogramTable.of(HISTOGRAMS[1:])]

    assert list(HistogramTable.joined(parts)) == HISTOGRAMS


def test_how_many_values_are_minus_infinity_is_kept() -> None:
    masked = replace(HISTOGRAMS[0], stats=replace(HISTOGRAMS[0].stats, inf=3, negative_inf=2))
    table = HistogramTable.joined(
        [HistogramTable.of(HISTOGRAMS), HistogramTable.of([masked])]
    ).take(np.array([3, 0]))

    assert [table.stats_at(row).negative_inf for row in range(2)] == [2, 0]


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=5))
def test_empty_bins_at_the_ends_are_dropped(counts: list[list[int]]) -> None:
    exponents, firsts = np.full(len(counts), 2), np.full(len(counts), 10)

    trimmed = BinColumns.trimmed(exponents, firsts, np.array(counts))

    for bins, row in zip(trimmed.each(), counts, strict=True):
        places = [place for place, count in enumerate(row) if count]
        inside = slice(min(places), max(places) + 1) if places else slice(0)
        assert bins.counts == tuple(row[inside])
        assert (bins.exponent, bins.first) == ((2, 10 + min(places)) if places else (0, 0))


def test_a_histogram_is_the_same_in_a_table_with_counts_of_any_size() -> None:
    large = Histogram(exponent=0, first=0, counts=(2**40, 0, 7), stats=HISTOGRAMS[0].stats)

    assert list(HistogramTable.of([HISTOGRAMS[1], large])) == [HISTOGRAMS[1], large]
