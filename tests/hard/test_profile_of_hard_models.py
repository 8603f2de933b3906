"""A profiled step is a plain step: the same numbers each time, and nothing is left of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.hard import forwards
from tests.hard.test_traces_of_hard_models import anatomy, tensors, train
from torchglass.api.timing import profile
from torchglass.capture.timing.steps import sum_of_outputs

pytestmark = [
    pytest.mark.filterwarnings("ignore:dropout option adds dropout:UserWarning"),
    pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning"),
]


def made(name: str) -> nn.Module:
    model = forwards.make(name)
    if name == "lazy":
        # Its first forward draws its weights, which makes it another model than the later ones.
        model(torch.randn(4, 4))
    return model


def numbers(model: nn.Module, run: Callable[[Callable[[Any], torch.Tensor]], object]) -> Any:
    """The outputs and gradients of each step that a function runs with a loss."""
    outputs: list[list[torch.Tensor]] = []
    gradients: dict[str, list[torch.Tensor]] = {}

    def loss(output: Any) -> torch.Tensor:
        outputs.append([tensor.detach().clone() for tensor in tensors(output)])
        return sum_of_outputs(output)

    handles = [
        parameter.register_hook(gradients.setdefault(name, []).append)  # type: ignore[no-untyped-call]
        for name, parameter in model.named_parameters()
    ]
    torch.manual_seed(1)
    run(loss)
    for handle in handles:
        handle.remove()
    return outputs, gradients


@pytest.mark.parametrize("name", forwards.NAMES)
def test_every_run_has_the_outputs_and_gradients_of_a_plain_step(name: str) -> None:
    x = torch.randn(4, 4)
    model = made(name)

    def step(loss: Callable[[Any], torch.Tensor]) -> None:
        total = loss(model(x.clone()))
        if total.requires_grad:
            torch.autograd.backward(total)

    # A model with state starts from it again in each profiled run, and not after a plain step.
    timed = numbers(model, lambda loss: profile(model, x, loss=loss, warmup=1, repeats=2))
    ((plain,), plain_gradients) = numbers(model, step)

    outputs, gradients = timed
    assert len(outputs) == 1 + 1 + 2 + 2
    for output in outputs:
        assert [tensor.shape for tensor in output] == [tensor.shape for tensor in plain]
        assert all(map(torch.equal, output, plain))
    for path, (gradient, *_) in ((path, found) for path, found in plain_gradients.items() if found):
        assert all(torch.equal(gradient, other) for other in gradients[path])


@pytest.mark.parametrize("name", forwards.NAMES)
def test_a_training_goes_on_after_a_profile_as_without_it(name: str) -> None:
    plain = train(made(name), traced=False)

    model = made(name)
    x = torch.get_rng_state()
    profile(model, torch.zeros(4, 4), warmup=0, repeats=1)
    assert torch.equal(x, torch.get_rng_state())
    after = train(model, traced=False)

    assert len(plain) == len(after)
    assert all(map(torch.equal, plain, after))


@pytest.mark.parametrize("name", forwards.NAMES)
def test_all_times_of_a_hard_model_add_up_and_nothing_stays_on_it(name: str) -> None:
    model = made(name)
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
