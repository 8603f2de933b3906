"""A guarded training step is a plain one: the same numbers, nothing left behind, no false alarm."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.hard import forwards
from tests.hard.test_traces_of_hard_models import anatomy, tensors
from torchglass.api.guarding import guard

pytestmark = [
    pytest.mark.filterwarnings("ignore:dropout option adds dropout:UserWarning"),
    pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning"),
]


def train(model: nn.Module, guarded: contextlib.AbstractContextManager[Any]) -> list[torch.Tensor]:
    """All that a training step leaves behind: outputs, gradients, weights and random numbers."""
    x = torch.randn(4, 4, requires_grad=True)
    torch.manual_seed(1)
    with guarded:
        made = tensors(model(x))
        loss = sum((tensor.abs().sum() for tensor in made if tensor.requires_grad), torch.zeros(()))
        if loss.requires_grad:
            torch.autograd.backward(loss)
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        torch.optim.Adam(model.parameters(), foreach=True).step()
    return [
        *(tensor.detach() for tensor in made),
        *gradients,
        *model.parameters(),
        *model.buffers(),
        torch.rand(3),
        *([] if x.grad is None else [x.grad]),
    ]


@pytest.mark.parametrize("name", forwards.NAMES)
@pytest.mark.parametrize("mode", ["full", "cheap", "dump"])
def test_a_guarded_training_step_is_a_plain_one(name: str, mode: str, tmp_path: Path) -> None:
    plain = train(forwards.make(name), contextlib.nullcontext())
    model = forwards.make(name)
    dump = tmp_path if mode == "dump" else None

    guarded = train(model, guard(model, on="raise", cheap=mode == "cheap", dump=dump))

    assert len(plain) == len(guarded)
    for one, other in zip(plain, guarded, strict=True):
        assert torch.equal(one, other)
        assert one.requires_grad == other.requires_grad
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", forwards.NAMES)
def test_nothing_of_the_guard_stays_on_the_model(name: str) -> None:
    model = forwards.make(name)
    model(torch.randn(4, 4))
    before = anatomy(model)

    with guard(model):
        model(torch.randn(4, 4))

    assert anatomy(model) == before


@pytest.mark.parametrize("name", [name for name in forwards.NAMES if name != "nothing"])
def test_a_nan_in_a_parameter_is_told_by_its_name(name: str) -> None:
    model = forwards.make(name)
    model(torch.randn(4, 4))
    weight, parameter = next(
        (name, parameter)
        for name, parameter in model.named_parameters()
        if parameter.dim() == 2 and "norm" not in name
    )
    with torch.no_grad():
        parameter[0, 0] = float("nan")

    with guard(model, on="record", backward=False) as guarded, torch.no_grad():
        model(torch.randn(4, 4))

    assert guarded.first is not None
    assert guarded.first.kind == "nan"
    assert f"parameter {weight} holds 1 NaN" in guarded.first.message
