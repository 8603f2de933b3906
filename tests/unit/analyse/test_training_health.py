from __future__ import annotations

import pytest

from torchglass.analyse.training_health import MOST, Judge, Observation
from torchglass.records.tensors import Stats


def stats(size: float = 1.0, *, count: int = 64, nan: int = 0, inf: int = 0) -> Stats:
    return Stats(count=count, min=-size, max=size, mean=0.0, std=size, nan=nan, inf=inf)


def gradient(path: str, size: float) -> Observation:
    return Observation(path, "weight.grad", stats(size))


HEALTHY = [gradient("a", 1.0), gradient("b", 0.5), gradient("c", 2.0)]


def test_a_healthy_step_has_no_findings() -> None:
    judge = Judge()

    assert [judge.look(step, HEALTHY) for step in range(10)] == [[]] * 10


@pytest.mark.parametrize(("bad", "kind"), [({"nan": 3}, "nan"), ({"inf": 1}, "inf")])
def test_a_number_that_is_not_finite_is_told_at_once_and_once(
    bad: dict[str, int], kind: str
) -> None:
    judge = Judge()
    seen = [Observation("fc", "output", stats(**bad))]

    (finding,) = judge.look(7, seen)
    again = judge.look(8, seen)

    assert (finding.kind, finding.path, finding.step, finding.severity) == (kind, "fc", 7, "error")
    assert finding.facts["series"] == "fc.output"
    assert again == []


def test_what_may_pass_is_told_when_it_was_there_three_times_in_a_row() -> None:
    judge = Judge()
    dead = [Observation("act", "output", stats(), zeros=1.0)]
    alive = [Observation("act", "output", stats(), zeros=0.5)]

    told = [judge.look(step, seen) for step, seen in enumerate([dead, dead, alive, *[dead] * 4])]

    assert [len(each) for each in told] == [0, 0, 0, 0, 0, 1, 0]
    assert told[5][0].message == "act.output is 100% zeros: its units are dead"


def test_inputs_and_gradients_that_are_zero_are_no_dead_units() -> None:
    judge = Judge()
    zero = [
        Observation("act", name, stats(), zeros=1.0)
        for name in ("input.0", "output.grad", "2:output.0.grad", "weight")
    ]

    assert [judge.look(step, zero) for step in range(5)] == [[]] * 5


def test_a_gradient_far_below_the_others_vanishes() -> None:
    judge = Judge()
    seen = [*HEALTHY, gradient("first", 1e-9)]

    told = [finding for step in range(4) for finding in judge.look(step, seen)]

    assert [(one.kind, one.path, one.step) for one in told] == [("vanishing gradient", "first", 2)]
    assert told[0].phase == "backward"


def test_where_most_gradients_vanish_those_at_the_end_tell() -> None:
    judge = Judge()
    seen = [gradient(f"layer{number}", 1e-12) for number in range(9)] + [gradient("head", 1.0)]

    told = [finding.path for step in range(3) for finding in judge.look(step, seen)]

    assert told == [f"layer{number}" for number in range(9)]


def test_a_gradient_explodes_when_it_stays_far_above_what_it_was() -> None:
    judge = Judge()
    sizes = [1.0] * 6 + [1e5] * 3

    told = [judge.look(step, [gradient("a", size)]) for step, size in enumerate(sizes)]

    (finding,) = told[8]
    assert not any(told[:8])
    assert finding.kind == "exploding gradient"
    assert finding.message == "a.weight.grad is 100000 times as large as it was: it explodes"


def test_a_training_that_breaks_everywhere_has_an_end_of_findings() -> None:
    judge = Judge()
    seen = [Observation(str(number), "output", stats(nan=1)) for number in range(1000)]

    assert len(judge.look(0, seen)) == MOST
