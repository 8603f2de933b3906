"""What the benchmark of watching measures; how fast anything is, is not tested."""

from __future__ import annotations

import pytest

from benchmarks.models import MLP
from benchmarks.rows import OURS, Effort, Reading
from benchmarks.watching import TOPIC, soak, time_steps


@pytest.mark.slow
def test_plain_first_logged_and_unlogged_steps_are_timed() -> None:
    times = time_steps(OURS, MLP.small, rounds=2)

    assert list(times) == ["plain", "first", "logged", "unlogged"]
    assert {len(rounds) for rounds in times.values()} == {2}


def test_a_soak_test_measures_growth_of_time_and_memory() -> None:
    found = soak(OURS, MLP.small, steps=30)

    assert list(found) == ["slowdown", "growth", "step"]


@pytest.mark.parametrize("log_freq", [1, 10, 100])
def test_a_cycle_averages_logged_and_unlogged_steps(
    log_freq: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"plain": [2.0], "first": [9.0], "logged": [6.0], "unlogged": [3.0]}
    monkeypatch.setattr("benchmarks.watching.fresh", lambda *_, **__: times)
    often = "step" if log_freq == 1 else f"{log_freq}th step"
    (case,) = (case for case in TOPIC.cases if case.name == f"every {often} logged, MLP of 1000")

    readings = case.measure(Effort(rounds=log_freq))

    expected = (6 + (log_freq - 1) * 3) / (log_freq * 2)
    assert readings[OURS] == Reading(unit="×", samples=(expected,))
