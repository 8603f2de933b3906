"""A traced forward is a plain forward: the same numbers, the same exceptions, nothing left."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import torchglass as tg
from tests.hard import forwards


def tensors(nest: Any) -> list[torch.Tensor]:
    if hasattr(nest, "__dataclass_fields__"):
        nest = vars(nest)
    return [leaf for leaf in tree_leaves(nest) if isinstance(leaf, torch.Tensor)]


def train(model: nn.Module, *, traced: bool) -> list[torch.Tensor]:
    """All that a training step leaves behind: outputs, gradients, buffers and random numbers."""
    x = torch.randn(4, 4, requires_grad=True)
    torch.manual_seed(1)
    output = tg.trace(model, x, gradients=True).output if traced else model(x)
    made = tensors(output)
    loss = sum((tensor.abs().sum() for tensor in made if tensor.requires_grad), torch.zeros(()))
    if loss.requires_grad:
        torch.autograd.backward(loss)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [
        *made,
        *gradients,
        *model.buffers(),
        torch.rand(3),
        *([] if x.grad is None else [x.grad]),
    ]


def anatomy(model: nn.Module) -> list[tuple[type, list[str], list[int]]]:
    """The classes, attributes and numbers of hooks of all modules."""
    return [
        (
            type(module),
            sorted(vars(module)),
            [len(hooks) for name, hooks in vars(module).items() if name.endswith("_hooks")],
        )
        for module in model.modules()
    ]


@pytest.mark.filterwarnings("ignore:dropout option adds dropout:UserWarning")
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize("name", forwards.NAMES)
def test_a_traced_training_step_is_a_plain_one(name: str) -> None:
    plain = train(forwards.make(name), traced=False)

    traced = train(forwards.make(name), traced=True)

    assert len(plain) == len(traced)
    for one, other in zip(plain, traced, strict=True):
        assert torch.equal(one, other)
        assert one.requires_grad == other.requires_grad


@pytest.mark.filterwarnings("ignore:dropout option adds dropout:UserWarning")
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize("name", forwards.NAMES)
def test_a_trace_of_a_hard_model_replays_bit_for_bit(name: str) -> None:
    model = forwards.make(name)
    if name == "lazy":
        # Its first forward makes the weights out of nothing, which no replay can do again.
        model(torch.randn(4, 4))

    trace = tg.trace(model, torch.randn(4, 4))

    validation = trace.validate()

    assert validation, validation
    assert str(trace)
    assert all(str(op) for op in trace)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize("name", forwards.NAMES)
def test_nothing_of_the_trace_stays_on_the_model(name: str) -> None:
    model = forwards.make(name)
    model(torch.randn(4, 4))
    before = anatomy(model)

    tg.trace(model, torch.randn(4, 4), gradients=True)

    assert anatomy(model) == before
