"""Of steps that are not logged nothing is seen but that they were taken."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from tests.watched import watching
from torchglass.capture import module_calls

CALL = nn.Module.__call__


class Spy(nn.Module):
    """Tells whether anyone is shown its inner calls, and raises when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.was_seen: list[bool] = []
        self.runs_our_code: list[bool] = []
        self.raises = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.was_seen.append(threading.get_ident() in module_calls._observers)
        self.runs_our_code.append(nn.Module.__call__.__code__ is module_calls.CALL_CODE)
        if self.raises:
            raise RuntimeError("as told")
        output: torch.Tensor = self.fc(x)
        return output


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(model(torch.ones(3, 2)).sum())
    optimizer.step()


def test_inner_calls_of_a_step_that_is_not_logged_are_not_seen() -> None:
    model = Spy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with watching(model, log_freq=3) as seen:
        for _ in range(4):
            step(model, optimizer)

    assert model.was_seen == [True, False, False, True]
    assert model.runs_our_code == [True, False, False, True]
    assert seen.steps("fc.output") == [0, 3]


def test_a_pass_that_raises_in_a_step_that_is_not_logged_blinds_nobody() -> None:
    model = Spy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with watching(model, log_freq=2) as seen:
        step(model, optimizer)
        model.raises = True
        with pytest.raises(RuntimeError, match="as told"):
            step(model, optimizer)
        model.raises = False
        step(model, optimizer)
        step(model, optimizer)

    assert seen.steps("fc.output") == [0, 2]
    assert nn.Module.__call__ is CALL


def test_a_watched_part_of_a_model_is_logged_in_steps_in_which_the_model_is_not() -> None:
    model = Spy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with watching(model, log_freq=5), watching(model.fc) as part:
        for _ in range(3):
            step(model, optimizer)

    assert part.steps("output") == [0, 1, 2]


def test_a_watcher_that_is_closed_in_a_pass_leaves_nothing_behind() -> None:
    model = Spy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with watching(model, log_freq=5) as seen:
        step(model, optimizer)
        model.fc.register_forward_hook(lambda *_: seen.watcher.close())
        step(model, optimizer)

        assert nn.Module.__call__ is CALL
