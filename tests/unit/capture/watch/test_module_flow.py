"""Of steps that are not logged nothing is seen but that they were taken; few others are traced."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from tests.watched import watching
from torchglass.capture import module_calls
from torchglass.capture.trace.pass_recorder import PassRecorder
from torchglass.capture.watch import pass_graphs
from torchglass.records.training import TrainingFacts

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


def test_inner_calls_of_an_unlogged_step_are_not_observed() -> None:
    model = Spy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with watching(model, log_freq=3) as seen:
        for _ in range(4):
            step(model, optimizer)

    assert model.was_seen == [True, False, False, True]
    assert model.runs_our_code == [True, False, False, True]
    assert seen.steps("fc.output") == [0, 3]


def test_recording_continues_after_an_exception_in_an_unlogged_step() -> None:
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


def test_a_watched_submodule_is_logged_in_steps_the_model_skips() -> None:
    model = Spy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with watching(model, log_freq=5), watching(model.fc) as part:
        for _ in range(3):
            step(model, optimizer)

    assert part.steps("output") == [0, 1, 2]


def test_a_watcher_closed_during_a_pass_leaves_nothing_behind() -> None:
    model = Spy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with watching(model, log_freq=5) as seen:
        step(model, optimizer)
        model.fc.register_forward_hook(lambda *_: seen.watcher.close())
        step(model, optimizer)

        assert nn.Module.__call__ is CALL


class Detaching(nn.Module):
    """Cuts its head off from the gradient when it is told to; its calls stay the same."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 2)
        self.detaches = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x)
        output: torch.Tensor = self.head(hidden.detach() if self.detaches else hidden)
        return output


def test_a_pass_is_traced_again_when_its_operations_change(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[int] = []
    taken = [0]

    class Recorder(PassRecorder):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            traced.append(taken[0])
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(pass_graphs, "PassRecorder", Recorder)
    model = Detaching()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    with watching(model) as seen:
        for taken[0] in range(12):
            model.detaches = taken[0] >= 7
            step(model, optimizer)

    # The operations of step 8 are looked at, and so are those of the first five.
    assert traced == [0, 9]
    facts = seen.store.document(TrainingFacts)
    assert facts is not None
    assert [one.function for one in facts.gradient_stops] == ["detach"]
