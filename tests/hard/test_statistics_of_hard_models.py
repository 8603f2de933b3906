"""A recorded forward is a plain forward: the same numbers, and nothing left on the model."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.hard import forwards
from tests.hard.test_traces_of_hard_models import anatomy, tensors
from torchglass.records.statistics import Level

pytestmark = [
    pytest.mark.filterwarnings("ignore:dropout option adds dropout:UserWarning"),
    pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning"),
]


def train(model: nn.Module, **options: Any) -> list[torch.Tensor]:
    """All that a training step leaves behind: outputs, gradients, buffers and random numbers."""
    x = torch.randn(4, 4, requires_grad=True)
    torch.manual_seed(1)
    with tg.record(model, **options) if options else contextlib.nullcontext():
        made = tensors(model(x))
        loss = sum((tensor.abs().sum() for tensor in made if tensor.requires_grad), torch.zeros(()))
        if loss.requires_grad:
            torch.autograd.backward(loss)
    gradients = [tensor.grad for tensor in (x, *model.parameters()) if tensor.grad is not None]
    return [*made, *gradients, *model.buffers(), torch.rand(3)]


@pytest.mark.parametrize("level", ["full", "cheap", "shapes"])
@pytest.mark.parametrize("name", forwards.NAMES)
def test_a_recorded_training_step_is_a_plain_one(name: str, level: Level) -> None:
    plain = train(forwards.make(name))

    recorded = train(forwards.make(name), level=level, tensors=True)

    assert len(plain) == len(recorded)
    for one, other in zip(plain, recorded, strict=True):
        assert torch.equal(one, other)
        assert one.requires_grad == other.requires_grad


@pytest.mark.parametrize("name", forwards.NAMES)
def test_nothing_of_a_recording_stays_on_the_model(name: str) -> None:
    model = forwards.make(name)
    model(torch.randn(4, 4))
    before = anatomy(model)

    with tg.record(model) as recording:
        model(torch.randn(4, 4))

    assert anatomy(model) == before
    assert str(recording)
    assert recording.to_json()


@pytest.mark.parametrize("name", forwards.NAMES)
def test_self_times_add_up_to_the_time_of_the_model(name: str) -> None:
    model = forwards.make(name)

    with tg.record(model, level="cheap") as recording:
        model(torch.randn(4, 4))

    outermost = next(call for call in recording[""] if call.number == 1)
    assert sum(call.self_ns for call in recording.calls) == outermost.total_ns
    assert all(call.self_ns >= 0 for call in recording.calls)


def test_a_compiled_model_is_one_call() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")
    x = torch.randn(4, 4)
    plain = model(x)

    with tg.record(model) as recording:
        output = model(x)

    assert torch.equal(output, plain)
    assert recording[""].totals.calls == 1
    assert recording[""][-1].out_shape == (4, 4)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_model_is_one_call() -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    with tg.record(model) as recording:
        model(torch.randn(4, 4))

    assert recording[""].totals.calls == 1
    assert recording[""].class_name == "Sequential"


def test_the_fused_kernel_of_an_encoder_is_kept() -> None:
    model = forwards.make("encoder in eval")
    x = torch.randn(2, 3, 4)
    with torch.no_grad():
        plain = model(x)

        with tg.record(model):
            output = model(x)

    assert torch.equal(output, plain)
