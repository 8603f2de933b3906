"""A traced forward is a plain forward: the same numbers, the same exceptions, nothing left."""

from __future__ import annotations

import pytest
import torch

import torchglass as tg
from tests.hard import forwards, steps
from tests.hard.steps import anatomy, assert_same, left_by_step, ready

pytestmark = steps.KNOWN_WARNINGS


@pytest.mark.parametrize("name", forwards.NAMES)
def test_tracing_a_training_step_does_not_change_it(name: str) -> None:
    plain = left_by_step(forwards.make(name))
    model = forwards.make(name)

    traced = left_by_step(model, forward=lambda x: tg.trace(model, x, gradients=True).output)

    assert_same(plain, traced)


@pytest.mark.parametrize("name", forwards.NAMES)
def test_a_trace_of_a_hard_model_replays_bit_for_bit(name: str) -> None:
    # The first forward of a lazy model makes weights out of nothing, which no replay can do again.
    model = ready(name)

    trace = tg.trace(model, torch.randn(4, 4))

    validation = trace.validate()

    assert validation, validation
    assert str(trace)
    assert all(str(op) for op in trace)


@pytest.mark.parametrize("name", forwards.NAMES)
def test_a_trace_leaves_nothing_on_the_model(name: str) -> None:
    model = forwards.make(name)
    model(torch.randn(4, 4))
    before = anatomy(model)

    tg.trace(model, torch.randn(4, 4), gradients=True)

    assert anatomy(model) == before
