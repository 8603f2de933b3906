"""A counted step is a plain step: the same numbers, and nothing is left of the counting."""

from __future__ import annotations

import pytest
import torch

from tests.hard import forwards, steps
from tests.hard.steps import anatomy, ready
from torchglass import flops

pytestmark = steps.KNOWN_WARNINGS


@pytest.mark.parametrize("name", forwards.NAMES)
def test_a_counted_step_has_the_outputs_and_gradients_of_a_plain_one(name: str) -> None:
    x = torch.randn(4, 4)
    model = ready(name)

    outputs = steps.assert_runs_are_plain(
        model, x, lambda loss: flops(model, x, backward=True, loss=loss)
    )

    assert outputs


@pytest.mark.parametrize("name", forwards.NAMES)
def test_training_after_counting_flops_is_unchanged(name: str) -> None:
    steps.assert_training_goes_on_after(
        name, lambda model: flops(model, torch.zeros(4, 4), backward=True)
    )


@pytest.mark.parametrize("name", forwards.NAMES)
def test_the_flops_of_a_hard_model_add_up_and_nothing_stays_on_it(name: str) -> None:
    model = ready(name)
    before = anatomy(model)

    counted = flops(model, torch.randn(4, 4), backward=True)

    every = [*counted.rows.values(), counted.unattributed]
    assert counted.total_flops > 0
    assert sum(row.self_flops for row in every) == counted.total_flops
    assert sum(op.total_flops for op in counted.ops) == counted.total_flops
    assert str(counted)
    assert anatomy(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())


LOWER_BOUNDS = {
    "complex_numbers": {"aten._fft_r2c", "aten._fft_c2c"},
    "complex_out": {"aten._fft_r2c"},
}
"""The hard models with ops that have no formula."""


@pytest.mark.parametrize("name", forwards.NAMES)
def test_uncounted_ops_of_hard_models_are_reported(name: str) -> None:
    counted = flops(ready(name), torch.randn(4, 4))

    assert {op.op for op in counted.uncounted} == LOWER_BOUNDS.get(name, set())
