"""Which step a pass, an update and a number belong to."""

from __future__ import annotations

import pytest
import torch
from torch.optim import SGD, Optimizer

from torchglass.capture.histogram_reader import HistogramReading
from torchglass.capture.watch.options import Unit
from torchglass.capture.watch.step_values import SeriesName, StepValues
from torchglass.capture.watch.steps import Steps

LOSS = SeriesName("", "loss")


class Finished:
    """The numbers of the steps that have ended, and what was logged in each."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, dict[str, float]]] = []

    def __call__(self, number: int, values: StepValues) -> None:
        logged = {place.name: float(value) for place, value in values.numbers.items()}
        self.steps.append((number, logged))


def make_steps(
    every: int = 1, unit: Unit | None = "optimizer", *, start: int = 0
) -> tuple[Steps, Finished]:
    finished = Finished()
    return Steps(every, unit, finished, start=start), finished


def make_optimizer() -> Optimizer:
    return SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def update(steps: Steps, optimizer: Optimizer) -> None:
    steps.before_update(optimizer)
    steps.after_update(optimizer)


def test_a_step_lasts_until_the_next_optimizer_step() -> None:
    steps, finished = make_steps()
    optimizer = make_optimizer()

    for loss in (1.0, 2.0):
        steps.begin_pass(training=True)
        steps.log(LOSS, loss)
        update(steps, optimizer)

    assert finished.steps == [(0, {"loss": 1.0})]
    assert steps.number == 1


def test_passes_before_one_update_belong_to_one_step() -> None:
    steps, _ = make_steps()

    of_passes = [steps.begin_pass(training=True) for _ in range(3)]

    assert of_passes[0] is of_passes[1] is of_passes[2] is not None


def test_two_optimizers_that_take_turns_share_a_step() -> None:
    steps, finished = make_steps()
    optimizers = [make_optimizer(), make_optimizer()]
    steps.learn(optimizers)

    for _ in range(2):
        for optimizer in optimizers:
            steps.begin_pass(training=True)
            update(steps, optimizer)

    assert [number for number, _ in finished.steps] == [0]


@pytest.mark.parametrize(("every", "recorded"), [(1, [0, 1, 2, 3]), (2, [0, 2]), (3, [0, 3])])
def test_every_nth_step_is_recorded(every: int, recorded: list[int]) -> None:
    steps, _ = make_steps(every)
    optimizer = make_optimizer()

    seen = []
    for number in range(4):
        if steps.begin_pass(training=True) is not None:
            seen.append(number)
        update(steps, optimizer)

    assert seen == recorded


def test_steps_are_counted_while_paused() -> None:
    steps, finished = make_steps()
    optimizer = make_optimizer()
    steps.is_paused = True

    for _ in range(3):
        assert steps.begin_pass(training=True) is None
        update(steps, optimizer)

    assert finished.steps == []
    assert steps.number == 2


def test_while_paused_backwards_count_as_steps_without_an_optimizer() -> None:
    steps, finished = make_steps(unit="backward")
    steps.is_paused = True

    for _ in range(3):
        assert steps.begin_pass(training=True) is None
        steps.backward_begun()
        assert steps.backward_ended() is None

    assert finished.steps == []
    assert steps.number == 2


def test_data_of_a_second_optimizer_in_an_unrecorded_step_is_dropped() -> None:
    steps, finished = make_steps(every=2)
    optimizers = [make_optimizer(), make_optimizer()]
    steps.learn(optimizers)

    for _ in range(3):
        for optimizer in optimizers:
            values = steps.begin_pass(training=True)
            if values is not None:
                values.put(SeriesName("", "output"), HistogramReading())
            update(steps, optimizer)

    assert [number for number, _ in finished.steps] == [0]


def test_a_step_written_early_is_rewritten_only_if_it_has_new_values() -> None:
    steps, finished = make_steps()

    steps.write()
    steps.advance()
    steps.write()
    steps.log(LOSS, 1.0)
    steps.advance()

    assert finished.steps == [(0, {}), (1, {}), (1, {"loss": 1.0})]


def test_a_backward_is_a_step_if_nothing_else_ends_steps() -> None:
    steps, finished = make_steps(unit="backward")

    for _ in range(2):
        steps.begin_pass(training=True)
        steps.backward_begun()
        steps.backward_ended()

    assert [number for number, _ in finished.steps] == [0]


def test_step_numbers_continue_after_a_resumed_run() -> None:
    steps, finished = make_steps(start=7)

    steps.log(LOSS, 1.0)
    steps.advance()

    assert finished.steps == [(7, {"loss": 1.0})]


def test_an_explicitly_ended_step_has_the_given_number() -> None:
    steps, finished = make_steps()

    steps.end_by_hand(40)
    steps.advance()

    assert finished.steps == [(40, {})]
    assert steps.number == 41


def test_a_logged_value_belongs_to_the_step_of_its_pass_even_if_unrecorded() -> None:
    steps, finished = make_steps(every=10)
    optimizer = make_optimizer()

    for loss in (1.0, 2.0, 3.0):
        steps.begin_pass(training=True)
        steps.log(LOSS, loss)
        update(steps, optimizer)

    assert finished.steps == [(0, {"loss": 1.0}), (1, {"loss": 2.0})]
