"""A recorded forward is a plain forward: the same numbers, and nothing left on the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.hard import forwards, steps
from tests.hard.steps import anatomy, assert_same, left_by_step

pytestmark = steps.KNOWN_WARNINGS


@pytest.mark.parametrize("level", ["full", "cheap", "shapes"])
@pytest.mark.parametrize("name", forwards.NAMES)
def test_recording_a_training_step_does_not_change_it(name: str, level: Any) -> None:
    plain = left_by_step(forwards.make(name))
    model = forwards.make(name)

    recorded = left_by_step(model, tg.record(model, level=level, tensors=True))

    assert_same(plain, recorded)


@pytest.mark.parametrize("name", forwards.NAMES)
def test_a_recording_leaves_nothing_on_the_model(name: str) -> None:
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
