"""The benchmark of planted edits builds its trials and scores them."""

from __future__ import annotations

from benchmarks.divergence.edits import main, score


def test_planted_edits_are_found() -> None:
    planted, found = score(range(6))

    assert planted.total() >= 6
    assert found == planted


def test_the_score_is_printed(capsys) -> None:  # type: ignore[no-untyped-def]
    assert main(["--trials", "1"]) == 0

    assert "| all |" in capsys.readouterr().out
