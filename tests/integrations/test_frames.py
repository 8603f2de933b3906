"""What a frame tells other tools, and what is kept of a long training."""

from __future__ import annotations

from itertools import pairwise

import pytest

from torchglass.api.backends import NamedFrame, Thinned, bins_of, numbers_of
from torchglass.records.model import Histogram, Stats
from torchglass.records.run import Series, SeriesId

LOSS = Series(id=SeriesId(0), path="", name="loss")


def measured(step: int) -> NamedFrame:
    return NamedFrame(step, 0, [(LOSS, 1.0)])


@pytest.mark.parametrize("length", [1, 7, 100, 1001])
def test_a_long_run_is_sampled_evenly_up_to_its_end(length: int) -> None:
    kept = Thinned(most_points=10)

    for step in range(length):
        kept.add(measured(step))

    steps = [each.step for each in kept]
    gaps = {later - earlier for earlier, later in pairwise(steps[:-1])}
    assert steps[0] == 0
    assert steps[-1] == length - 1
    assert len(steps) <= 11
    assert len(gaps) <= 1


def test_bins_are_merged_down_to_the_limit() -> None:
    stats = Stats(count=8, min=0, max=7, mean=3.5, std=2.4)
    histogram = Histogram(exponent=0, first=0, counts=(1, 2, 3, 4, 5, 6), stats=stats)

    counts, edges = bins_of(histogram, 3)

    assert counts.tolist() == [3, 7, 11]
    assert edges.tolist() == [0, 2, 4, 6]


def test_nan_counts_of_a_histogram_become_scalars() -> None:
    stats = Stats(count=3, min=0, max=0, mean=0, std=0, nan=2)
    histogram = Histogram(exponent=0, first=0, counts=(1,), stats=stats)

    assert numbers_of("x", histogram) == {"x.nan": 2}
    assert numbers_of("x", stats) == {"x.min": 0, "x.max": 0, "x.mean": 0, "x.std": 0}
