"""The benchmark of memory runs on small models and has a reading for each contender."""

from __future__ import annotations

import pytest

from benchmarks import memory
from benchmarks.models import MLP
from benchmarks.rows import OURS


@pytest.mark.parametrize(
    ("tracker", "contenders"),
    [
        (True, ["alone", OURS, "torch.profiler", "MemTracker"]),
        (False, ["alone", OURS, "torch.profiler"]),
    ],
)
def test_every_contender_is_measured(tracker: bool, contenders: list[str]) -> None:
    found = memory.measure_step(MLP.small, rounds=1, tracker=tracker)

    assert list(found) == contenders
    assert all(len(samples) == 1 for samples in found.values())


def test_every_row_has_a_unique_name() -> None:
    names = [case.name for case in memory.TOPIC.cases]

    assert len(set(names)) == len(names) == 5
