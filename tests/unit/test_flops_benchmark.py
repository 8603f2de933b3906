"""The benchmark of FLOPs runs on small models and has a reading for each contender."""

from __future__ import annotations

from benchmarks import flops
from benchmarks.models import MLP
from benchmarks.rows import OURS


def test_every_contender_is_measured() -> None:
    found = flops.time_step(MLP.small, rounds=1)

    assert list(found) == ["alone", "an empty mode", OURS, "FlopCounterMode"]
    assert all(len(samples) == 1 for samples in found.values())


def test_the_goals_match_the_specification() -> None:
    assert [case.goal for case in flops.TOPIC.cases] == [1.10, 1.15, None]
