from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchglass.capture.tensor.histograms import binned
from torchglass.capture.watch.ranks import Label, RankValues, _partners, total
from torchglass.records.model import Histogram, Stats

OUTPUT: Label = ("fc", "output", "histogram")
LOSS: Label = ("", "loss", "scalar")


def of_rank(rank: int, values: list[float], loss: float = 0.0) -> RankValues:
    numbers = np.array(values)
    (grid,) = binned(numbers[None], 30).each()
    stats = Stats(
        count=len(values),
        min=float(numbers.min()),
        max=float(numbers.max()),
        mean=float(numbers.mean()),
        std=float(numbers.std(ddof=1)),
    )
    histogram = Histogram(**grid._asdict(), stats=stats)
    return RankValues.of(rank, {OUTPUT: histogram, LOSS: loss}, seconds=1.0 + rank)


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20), min_size=2, max_size=6))
def test_reduced_statistics_cover_all_ranks(parts: list[list[float]]) -> None:
    whole = total((of_rank(rank, part, rank) for rank, part in enumerate(parts)), 30)

    numbers = np.concatenate(parts)
    point = whole.points()[OUTPUT]
    assert isinstance(point, Histogram)
    assert sum(point.counts) == point.stats.count == len(numbers)
    assert (point.stats.min, point.stats.max) == (numbers.min(), numbers.max())
    assert point.stats.mean == pytest.approx(numbers.mean(), rel=1e-9, abs=1e-9)
    assert point.stats.std == pytest.approx(numbers.std(ddof=1), rel=1e-6, abs=1e-6)
    assert whole.points()[LOSS] == pytest.approx((len(parts) - 1) / 2)


def test_the_slowest_rank_is_found() -> None:
    whole = total((of_rank(rank, [0.0, 1.0]) for rank in range(3)), 30)

    assert whole.about_ranks() == {
        ("", "ranks.slowest", "scalar"): 2.0,
        ("", "ranks.longest_seconds", "scalar"): 3.0,
        ("", "ranks.shortest_seconds", "scalar"): 1.0,
    }


def test_ranks_with_non_finite_values_are_found() -> None:
    spoiled = RankValues.of(3, {LOSS: float("nan")}, seconds=0.0)

    whole = of_rank(0, [1.0, 2.0]).plus(spoiled, 30)

    assert whole.spoiled == {LOSS: (3,)}


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8, 13, 1000])
def test_every_rank_sends_once_and_no_rank_receives_from_many(size: int) -> None:
    sent: list[tuple[int, int]] = []
    for rank in range(size):
        partners = list(_partners(rank, size))
        heard = [other for other in partners if other > rank]
        told = [other for other in partners if other < rank]
        sent += [(rank, other) for other in told]
        assert partners == heard + told
        assert len(told) == (rank > 0)
        assert len(heard) <= size.bit_length()

    assert sorted(rank for rank, _ in sent) == list(range(1, size))
    heard_from = {
        (other, rank) for rank in range(size) for other in _partners(rank, size) if other > rank
    }
    assert heard_from == set(sent)
