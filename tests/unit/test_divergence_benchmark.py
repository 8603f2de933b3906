"""The divergence benchmark builds its cases and scores them; how many are found is not tested."""

from __future__ import annotations

import pytest

from benchmarks.divergence.__main__ import main, markdown, run
from benchmarks.divergence.cases import ARCHITECTURES, all_cases, build


def test_there_are_enough_bugs_and_correct_ports_on_enough_architectures() -> None:
    cases = all_cases()

    assert sum(not one.edit.is_same for one in cases) >= 60
    assert sum(one.edit.is_same for one in cases) >= 20
    assert len(ARCHITECTURES) >= 6


def test_every_case_can_be_built() -> None:
    for case in all_cases():
        assert build(case).port is not None


def test_a_named_bug_and_a_correct_port_count_as_right() -> None:
    cases = {one.name: one for one in all_cases()}

    results = [*run(cases["gru: bmm"]), *run(cases["gru: softmax over the batch"])]

    assert results[0].is_right
    assert next(one for one in results if "softmax" in one.case.name).is_right
    assert "| float32 | 1 of 1 | 1 of 1 |" in markdown(results)


def test_the_divergence_benchmark_prints_its_scores(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "gru: port"]) == 0

    assert "| float32 | 0 of 0 | 1 of 1 |" in capsys.readouterr().out
