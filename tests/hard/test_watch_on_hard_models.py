"""A watched training is a plain one: the same losses, gradients, weights and random numbers."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from tests.hard import forwards, steps
from tests.hard.steps import anatomy, tensors
from tests.watched import watching
from torchglass.capture.watch.options import LOGS

pytestmark = steps.KNOWN_WARNINGS

STEPS = 50


def train(name: str, **options: Any) -> list[torch.Tensor]:
    """All that a training leaves behind: losses, gradients, weights, buffers, random numbers."""
    model = forwards.make(name)
    # What this one keeps of its input would lead each backward into the one before.
    x = torch.randn(4, 4, requires_grad=name != "state")
    torch.manual_seed(1)
    left: list[torch.Tensor] = []
    optimizer: torch.optim.Optimizer | None = None
    with watching(model, **options) if options else contextlib.nullcontext():
        for _ in range(STEPS):
            made = [tensor for tensor in tensors(model(x)) if tensor.requires_grad]
            loss = sum((tensor.abs().mean() for tensor in made), torch.zeros(()))
            # The parameters of a lazy module are there after its first pass.
            optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-3)
            optimizer.zero_grad()
            if loss.requires_grad:
                torch.autograd.backward(loss)
            left += [
                tensor.grad.clone() for tensor in model.parameters() if tensor.grad is not None
            ]
            optimizer.step()
            left.append(loss.detach())
    of_input = [] if x.grad is None else [x.grad]
    return [*left, *of_input, *model.parameters(), *model.buffers(), torch.rand(3)]


@pytest.mark.parametrize("name", forwards.NAMES)
def test_a_watched_training_is_a_plain_one(name: str) -> None:
    plain = train(name)

    watched = train(name, log=LOGS, log_freq=3)

    assert len(plain) == len(watched)
    assert all(map(torch.equal, plain, watched))


@pytest.mark.parametrize("name", forwards.NAMES)
def test_nothing_of_a_watcher_stays_on_the_model(name: str) -> None:
    model = forwards.make(name)
    x = torch.randn(4, 4, requires_grad=True)
    model(x)
    before = anatomy(model)

    with watching(model) as seen:
        model(x)

    assert anatomy(model) == before
    assert not x._backward_hooks
    assert seen.graph.nodes
