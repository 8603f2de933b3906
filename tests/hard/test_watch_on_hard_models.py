"""A watched training is a plain one: the same losses, gradients, weights and random numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.hard import forwards
from tests.hard.steps import KNOWN_WARNINGS, anatomy, tensors
from tests.watched import watching

pytestmark = KNOWN_WARNINGS

FEW_STEPS, MANY_STEPS = 6, 24
LOGS = ("io", "io_grad", "params", "params_grad", "stats", "updates", "activations", "optimizer")
swap: Callable[..., None] = torch.utils.swap_tensors


def train(name: str, steps: int, **options: Any) -> list[torch.Tensor]:
    """All that a training leaves behind: losses, gradients, weights, buffers, random numbers."""
    model = forwards.make(name)
    # What this one keeps of its input would lead each backward into the one before.
    x = torch.randn(4, 4, requires_grad=name != "state")
    torch.manual_seed(1)
    left: list[torch.Tensor] = []
    optimizer: torch.optim.Optimizer | None = None
    with watching(model, **options) if options else contextlib.nullcontext():
        for _ in range(steps):
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


@pytest.mark.parametrize("steps", [FEW_STEPS, pytest.param(MANY_STEPS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", forwards.NAMES)
def test_watching_does_not_change_the_training_of_hard_models(name: str, steps: int) -> None:
    plain = train(name, steps)

    watched = train(name, steps, log=LOGS, log_freq=3)

    assert len(plain) == len(watched)
    assert all(map(torch.equal, plain, watched))


@pytest.mark.parametrize("name", forwards.NAMES)
def test_a_watcher_leaves_nothing_on_the_model(name: str) -> None:
    model = forwards.make(name)
    x = torch.randn(4, 4, requires_grad=True)
    model(x)
    before = anatomy(model)

    with watching(model) as seen:
        model(x)

    assert anatomy(model) == before
    assert not x._backward_hooks
    assert seen.graph.nodes


class Swapped(nn.Module):
    """Swaps what its layers put out, which torch refuses if someone has weak references to it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            first, second = self.layer(x), self.layer(x + 1)
            swap(first, second)
        third, fourth = self.layer(x), self.layer(x + 2)
        swap(third, fourth)
        result: torch.Tensor = third - fourth.relu() + first - self.layer(second)
        return result


@pytest.mark.parametrize(
    "block",
    [
        lambda model: watching(model, log=LOGS),
        lambda model: tg.record(model),
        lambda model: tg.record(model, level="shapes"),
        lambda model: tg.guard(model),
        lambda model: tg.tracing(model),
        lambda model: tg.tracing(model, level="aten"),
        lambda model: tg.tracing(model, save="relu_1"),
        lambda model: tg.InspectorGadgets(model),
    ],
    ids=["watch", "record", "shapes", "guard", "tracing", "aten", "save", "inspector"],
)
def test_a_forward_may_swap_its_activations(block: Callable[[nn.Module], Any]) -> None:
    torch.manual_seed(0)
    model, x = Swapped(), torch.randn(3, 4)
    plain = model(x)

    with block(model):
        for _ in range(2):
            output = model(x)
            output.sum().backward()

    assert torch.equal(output, plain)


def test_statistics_of_swapped_activations_use_their_new_values() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Identity(), nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            small, large = self.first(x + 1), self.first(x + 5)
            swap(small, large)
            result: torch.Tensor = self.last(small)
            return result

    model = Net()
    with tg.record(model) as recording:
        model(torch.zeros(3))

    assert recording["last"][-1].in_mean == 5
