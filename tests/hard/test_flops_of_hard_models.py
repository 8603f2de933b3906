"""A counted step is a plain step: the same numbers, and nothing is left of the counting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.hard import forwards
from tests.hard.test_profile_of_hard_models import made, numbers
from tests.hard.test_traces_of_hard_models import anatomy, train
from torchglass.api.flops import flops

pytestmark = [
    pytest.mark.filterwarnings("ignore:dropout option adds dropout:UserWarning"),
    pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning"),
]


@pytest.mark.parametrize("name", forwards.NAMES)
def test_a_counted_step_has_the_outputs_and_gradients_of_a_plain_one(name: str) -> None:
    x = torch.randn(4, 4)
    model = made(name)

    def step(loss: Callable[[Any], torch.Tensor]) -> None:
        total = loss(model(x.clone()))
        if total.requires_grad:
            torch.autograd.backward(total)

    # A model with state starts from it again in a counted run, and not after a plain step.
    outputs, gradients = numbers(model, lambda loss: flops(model, x, backward=True, loss=loss))
    ((plain,), plain_gradients) = numbers(model, step)

    assert outputs
    for output in outputs:
        assert [tensor.shape for tensor in output] == [tensor.shape for tensor in plain]
        assert all(map(torch.equal, output, plain))
    for path, (gradient, *_) in ((path, found) for path, found in plain_gradients.items() if found):
        assert all(torch.equal(gradient, other) for other in gradients[path])


@pytest.mark.parametrize("name", forwards.NAMES)
def test_a_training_goes_on_after_counting_as_without_it(name: str) -> None:
    plain = train(made(name), traced=False)

    model = made(name)
    state = torch.get_rng_state()
    flops(model, torch.zeros(4, 4), backward=True)
    assert torch.equal(state, torch.get_rng_state())
    after = train(model, traced=False)

    assert len(plain) == len(after)
    assert all(map(torch.equal, plain, after))


@pytest.mark.parametrize("name", forwards.NAMES)
def test_all_work_of_a_hard_model_adds_up_and_nothing_stays_on_it(name: str) -> None:
    model = made(name)
    before = anatomy(model)

    counted = flops(model, torch.randn(4, 4), backward=True)

    every = [*counted.rows.values(), counted.unattributed]
    assert counted.total_flops > 0
    assert sum(row.self_flops for row in every) == counted.total_flops
    assert sum(op.total_flops for op in counted.ops) == counted.total_flops
    assert str(counted)
    assert anatomy(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())


LOWER_BOUNDS = {"complex_numbers": {"aten._fft_r2c", "aten._fft_c2c"}}
"""The hard models with ops that have no formula."""


@pytest.mark.parametrize("name", forwards.NAMES)
def test_nothing_of_a_hard_model_is_left_uncounted_unsaid(name: str) -> None:
    counted = flops(made(name), torch.randn(4, 4))

    assert {op.op for op in counted.uncounted} == LOWER_BOUNDS.get(name, set())
