from __future__ import annotations

import pytest

from torchglass.analyse.diagnosis.training_view import is_loss
from torchglass.analyse.training_health import MOST_FINDINGS, TrainingHealth
from torchglass.analyse.training_rules import Observation
from torchglass.records.model import Stats


def stats(size: float = 1.0, *, count: int = 64, nan: int = 0, inf: int = 0) -> Stats:
    return Stats(count=count, min=-size, max=size, mean=0.0, std=size, nan=nan, inf=inf)


def gradient(path: str, size: float) -> Observation:
    return Observation(path, "weight.grad", stats(size))


HEALTHY = [gradient("a", 1.0), gradient("b", 0.5), gradient("c", 2.0)]


def test_a_healthy_step_has_no_findings() -> None:
    health = TrainingHealth()

    assert [health.check(step, HEALTHY) for step in range(10)] == [[]] * 10


@pytest.mark.parametrize(("bad", "kind"), [({"nan": 3}, "nan"), ({"inf": 1}, "inf")])
def test_a_non_finite_value_is_reported_at_once_and_once(bad: dict[str, int], kind: str) -> None:
    health = TrainingHealth()
    seen = [Observation("fc", "output", stats(**bad))]

    (finding,) = health.check(7, seen)
    again = health.check(8, seen)

    assert (finding.kind, finding.path, finding.step, finding.severity) == (kind, "fc", 7, "error")
    assert finding.facts["series"] == "fc.output"
    assert again == []


def test_a_dead_layer_is_reported_after_three_consecutive_steps() -> None:
    health = TrainingHealth()
    fed = Observation("act", "input.0", stats())
    dead = [fed, Observation("act", "output", stats(0.0))]
    alive = [fed, Observation("act", "output", stats())]

    told = [health.check(step, seen) for step, seen in enumerate([dead, dead, alive, *[dead] * 4])]

    assert [len(each) for each in told] == [0, 0, 0, 0, 0, 1, 0]
    assert told[5][0].message == "`act` is dead: all outputs are 0 since step 3"


def test_zero_inputs_and_gradients_are_not_dead_units() -> None:
    health = TrainingHealth()
    zero = [
        Observation("act", name, stats(0.0))
        for name in ("input.0", "output.grad", "2:output.0.grad", "weight")
    ]
    zero.append(Observation("act", "input.1", stats()))

    assert [health.check(step, zero) for step in range(5)] == [[]] * 5


def test_a_gradient_far_below_the_others_vanishes() -> None:
    health = TrainingHealth()
    seen = [*HEALTHY, gradient("first", 1e-9)]

    told = [finding for step in range(4) for finding in health.check(step, seen)]

    assert [(one.kind, one.path, one.step) for one in told] == [("vanishing-gradient", "first", 2)]
    assert told[0].phase == "backward"


def test_vanishing_gradients_are_found_even_if_most_vanish() -> None:
    health = TrainingHealth()
    seen = [gradient(f"layer{number}", 1e-12) for number in range(9)] + [gradient("head", 1.0)]

    told = [finding.path for step in range(3) for finding in health.check(step, seen)]

    assert told == [f"layer{number}" for number in range(9)]


def test_a_gradient_that_stays_far_above_its_past_is_exploding() -> None:
    health = TrainingHealth()
    sizes = [1.0] * 6 + [1e5] * 3

    told = [health.check(step, [gradient("a", size)]) for step, size in enumerate(sizes)]

    (finding,) = told[8]
    assert not any(told[:8])
    assert finding.kind == "exploding-gradient"
    assert (
        finding.message
        == "The gradient of `a.weight` explodes: 100,000 times its usual size (1e+05, before: 1)"
    )


def test_the_number_of_findings_is_limited() -> None:
    health = TrainingHealth()
    seen = [Observation(str(number), "output", stats(nan=1)) for number in range(1000)]

    assert len(health.check(0, seen)) == MOST_FINDINGS


def test_a_step_without_a_measurement_is_not_evidence() -> None:
    health = TrainingHealth()
    dead = [Observation("act", "input.0", stats()), Observation("act", "output", stats(0.0))]
    steps = [dead, [], HEALTHY, dead, [], dead, dead]

    told = [health.check(step, seen) for step, seen in enumerate(steps)]

    assert [len(each) for each in told] == [0, 0, 0, 0, 0, 1, 0]


def test_parts_of_one_step_count_once() -> None:
    health = TrainingHealth()
    dead = [Observation("act", "input.0", stats()), Observation("act", "output", stats(0.0))]

    assert [health.check(0, dead) for _ in range(9)] == [[]] * 9


def test_a_module_called_several_times_is_dead_only_if_every_call_is() -> None:
    health = TrainingHealth()
    fed = Observation("act", "input.0", stats())
    both = [fed, Observation("act", "output", stats(0.0)), Observation("act", "output", stats())]

    assert [health.check(step, both) for step in range(5)] == [[]] * 5


def test_a_gradient_growing_by_half_each_step_is_eventually_found() -> None:
    health = TrainingHealth()

    told = [health.check(step, [gradient("a", 1.45**step)]) for step in range(25)]

    assert [one.kind for each in told for one in each] == ["exploding-gradient"]


def test_a_gradient_that_catches_up_with_the_others_does_not_explode() -> None:
    health = TrainingHealth()

    told = [
        health.check(step, [*HEALTHY, gradient("late", min(1e-5 * 2.5**step, 3.0))])
        for step in range(30)
    ]

    assert told == [[]] * 30


def test_a_loss_is_recognized_by_its_name() -> None:
    names = ["loss", "train/loss", "train_loss", "Loss", "val_loss", "eval/loss", "glossy", "acc"]

    assert [is_loss(name) for name in names] == [True] * 4 + [False] * 4
