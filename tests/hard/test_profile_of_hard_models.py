"""A profiled step is a plain step: the same numbers each time, and nothing is left of it."""

from __future__ import annotations

import pytest
import torch

from tests.hard import forwards, steps
from tests.hard.steps import anatomy, ready
from torchglass import profile

pytestmark = steps.KNOWN_WARNINGS


@pytest.mark.parametrize("name", forwards.NAMES)
def test_every_run_has_the_outputs_and_gradients_of_a_plain_step(name: str) -> None:
    x = torch.randn(4, 4)
    model = ready(name)

    outputs = steps.assert_runs_are_plain(
        model, x, lambda loss: profile(model, x, loss=loss, warmup=1, repeats=2)
    )

    assert len(outputs) == 1 + 1 + 2 + 2


@pytest.mark.parametrize("name", forwards.NAMES)
def test_training_after_a_profile_is_unchanged(name: str) -> None:
    steps.assert_training_goes_on_after(
        name, lambda model: profile(model, torch.zeros(4, 4), warmup=0, repeats=1)
    )


@pytest.mark.parametrize("name", forwards.NAMES)
def test_the_times_of_a_hard_model_add_up_and_nothing_stays_on_it(name: str) -> None:
    model = ready(name)
    before = anatomy(model)

    taken = profile(model, torch.randn(4, 4), warmup=0, repeats=2)

    every = [*taken.rows.values(), taken.unattributed]
    assert sum(row.self_ns for row in every) == taken.root.total_ns
    assert sum(op.self_ns for op in taken.ops) == taken.root.total_ns
    assert all(row.self_ns >= 0 for row in every)
    assert str(taken)
    assert taken.overlay() is not None
    assert taken.op_table()
    assert anatomy(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())
