from __future__ import annotations

import pytest
import torch
from torch import nn

from torchglass.capture.measure.memory import OptimizerCopy
from torchglass.errors import CaptureError


def trained() -> list[torch.Tensor]:
    parameters: list[torch.Tensor] = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return parameters


def stepped(optimizer_copy: OptimizerCopy) -> OptimizerCopy:
    optimizer_copy.take_gradients()
    optimizer_copy.step()
    return optimizer_copy


@pytest.mark.parametrize(
    "making", ["adam", "ADAM", torch.optim.Adam, lambda parameters: torch.optim.Adam(parameters)]
)
def test_an_optimizer_can_be_a_name_a_class_or_a_function(making: object) -> None:
    parameters = trained()

    optimizer_copy = stepped(OptimizerCopy(making, parameters, parameters))  # type: ignore[arg-type]

    assert optimizer_copy.name == "Adam"
    assert sorted(tensor.numel() for tensor, _ in optimizer_copy.state()) == [1, 1, 2, 2, 3, 3]
    assert all(torch.equal(parameter, torch.ones_like(parameter)) for parameter in parameters)
    assert all(not torch.equal(own, original) for own, original in optimizer_copy.copies)


def test_the_users_optimizer_is_not_stepped_and_keeps_its_state() -> None:
    parameters = trained()
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    steps: list[object] = []
    optimizer.register_step_pre_hook(lambda *_: steps.append(1))
    optimizer.step()
    before = optimizer.state[parameters[0]]["momentum_buffer"].clone()
    values = parameters[0].detach().clone()

    optimizer_copy = stepped(OptimizerCopy(optimizer, parameters, parameters))

    assert optimizer_copy.name == "SGD"
    assert len(steps) == 1
    assert torch.equal(optimizer.state[parameters[0]]["momentum_buffer"], before)
    assert torch.equal(parameters[0], values)
    assert len(list(optimizer_copy.state())) == 2
    assert scheduler.get_last_lr() == [0.1]


def test_a_frozen_parameter_is_not_copied() -> None:
    parameters = trained()
    parameters[0].requires_grad_(False)

    optimizer_copy = stepped(OptimizerCopy("sgd", parameters, parameters))

    assert [original is parameters[1] for _, original in optimizer_copy.copies] == [True]


def test_an_unknown_optimizer_error_lists_the_optimizers() -> None:
    with pytest.raises(CaptureError, match=r"torch\.optim has no 'adamm'; it has .*adamw"):
        OptimizerCopy("adamm", trained(), trained())


def test_a_function_that_returns_no_optimizer_is_refused() -> None:
    with pytest.raises(CaptureError, match="returned a list, not an optimizer"):
        OptimizerCopy(list, trained(), trained())  # type: ignore[arg-type]
