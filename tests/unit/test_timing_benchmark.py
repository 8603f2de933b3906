"""The benchmark of timing runs on small models and has a reading for each contender."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import timing
from benchmarks.measure import Times
from benchmarks.models import MLP
from benchmarks.rows import OURS


@pytest.mark.parametrize(
    ("measure", "options", "contenders"),
    [
        (timing.time_forward, {"ops": False}, ["alone", OURS]),
        (timing.time_forward, {"ops": True}, ["alone", OURS, "torch.profiler"]),
        (timing.time_step, {}, ["alone", OURS, "torch.profiler"]),
    ],
)
def test_every_contender_is_measured(
    measure: Callable[..., Times], options: dict[str, Any], contenders: list[str]
) -> None:
    found = measure(MLP.small, rounds=1, **options)

    assert list(found) == contenders
    assert all(len(samples) == 1 for samples in found.values())


def test_every_row_has_a_unique_name() -> None:
    names = [case.name for case in timing.TOPIC.cases]

    assert len(set(names)) == len(names) == 9
