from __future__ import annotations

import pytest

from torchglass.results.ranks import RankFacts, compare


def healthy(rank: int, **facts: object) -> RankFacts:
    usual = {"last_step": 100, "finished": True, "step_seconds": 0.1}
    return RankFacts(rank=rank, **{**usual, **facts})  # type: ignore[arg-type]


def test_identical_ranks_give_no_findings() -> None:
    assert compare([healthy(rank) for rank in range(4)]) == ()
    assert compare([healthy(0)]) == ()
    assert compare([]) == ()


def test_nan_on_one_rank_is_reported_with_its_path() -> None:
    ranks = [*map(healthy, range(3)), healthy(3, first_not_finite=(40, "fc.weight.grad"))]

    (finding,) = compare(ranks)

    assert (finding.severity, finding.step, finding.facts["rank"]) == ("error", 40, 3)
    assert finding.message == (
        "rank 3 has NaN or Inf since step 40, first in fc.weight.grad; all other ranks are finite"
    )


def test_the_rank_that_had_nan_first_comes_first() -> None:
    ranks = [
        healthy(0, first_not_finite=(41, "fc.output")),
        healthy(1, first_not_finite=(40, "fc.weight.grad")),
    ]

    assert [finding.facts["rank"] for finding in compare(ranks)] == [1, 0]


@pytest.mark.parametrize("finished", [True, False])
def test_a_rank_that_stopped_is_named(finished: bool) -> None:
    (finding,) = compare([healthy(0), healthy(1), healthy(2, last_step=60, finished=finished)])

    how = "ended" if finished else "stopped"
    assert finding.message == f"rank 2 {how} at step 60, but others reached 100"


def test_a_rank_still_being_written_has_not_stopped() -> None:
    assert compare([healthy(0), healthy(1, last_step=97, finished=False)]) == ()


def test_a_straggler_is_found_by_its_own_forward_time() -> None:
    ranks = [healthy(rank, own_seconds={"time.forward": 0.05}) for rank in range(3)]

    (finding,) = compare([*ranks, healthy(3, own_seconds={"time.forward": 0.1})])

    assert finding.kind == "straggler"
    assert finding.message == "rank 3 takes 2.0 times as long as the others in time.forward"


def test_without_own_times_a_straggler_is_found_by_step_time() -> None:
    (finding,) = compare([healthy(0), healthy(1), healthy(2, step_seconds=0.2)])

    assert finding.message == "rank 2 takes 2.0 times as long as the others per step"


def test_steps_missing_on_a_rank_are_noted() -> None:
    (finding,) = compare([healthy(0), healthy(1, dropped=5)])

    assert (finding.severity, finding.facts["steps"]) == ("info", 5)
