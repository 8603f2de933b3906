"""A backward is charged to the modules and ops whose forward it undoes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.sleepers import FakeClock, Sleeper
from torchglass.capture.measure.profile import NodeTimer, Stopwatch, measure
from torchglass.records.measures import RunTimes, Timing


def timed(clock: FakeClock, model: nn.Module, **options: Any) -> Timing:
    x = torch.ones(2, 2, requires_grad=True)
    options = {"warmup": 0, "repeats": 1, "clock": clock, "cpu": clock.cpu, **options}
    return measure(model, (x,), {}, **options).timing


def backward_of(charges: RunTimes) -> dict[str | None, tuple[int, int]]:
    return {
        key.path: (cost.self_ns, cost.total_ns)
        for key, cost in charges.modules.items()
        if key.stage == "backward"
    }


def test_the_backward_time_of_a_module_includes_its_inner_calls() -> None:
    clock = FakeClock()
    inner = Sleeper(clock, 0, 20, leaf=Sleeper(clock, 0, 7))
    model = Sleeper(clock, 0, 5, inner=inner, other=Sleeper(clock, 0, 100))

    (run,) = timed(clock, model).runs

    assert backward_of(run) == {
        None: (0, 0),
        "": (5, 132),
        "inner": (20, 27),
        "inner.leaf": (7, 7),
        "other": (100, 100),
    }


def test_unattributed_backward_time_is_part_of_the_total() -> None:
    clock = FakeClock()
    outside = Sleeper(clock, 50, 11)

    (run,) = timed(clock, Sleeper(clock, 1, 2), loss=lambda output: outside(output).sum()).runs

    assert backward_of(run) == {None: (11, 11), "": (2, 13)}
    assert run.total_ns == 1 + 2 + 11


def test_the_backward_of_a_loss_that_uses_a_submodule_is_charged_to_it() -> None:
    clock = FakeClock()
    model = Sleeper(clock, 1, 2)
    model.head = Sleeper(clock, 4, 8)
    head = model.head

    (run,) = timed(clock, nn.Sequential(model), loss=lambda output: head(output).sum()).runs

    assert backward_of(run)["0.head"] == (16, 16)
    assert run.root("forward").total_ns == 5


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_recomputation_belongs_to_the_backward_of_its_modules(
    *, use_reentrant: bool
) -> None:
    clock = FakeClock()

    class Checkpointed(Sleeper):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = checkpoint(self.block, self.sleep(x), use_reentrant=use_reentrant)
            # Saves a tensor, so that the block has to be run again before its own backward.
            result: torch.Tensor = y * y
            return result

    class Squaring(Sleeper):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return y * y

    block = Squaring(clock, 10, 20, leaf=Squaring(clock, 100, 200))

    (run,) = timed(clock, Checkpointed(clock, 1, 2, block=block)).runs

    assert run.root("forward").total_ns == 111
    assert backward_of(run) == {
        None: (0, 0),
        "": (2, 332),
        "block": (30, 330),
        "block.leaf": (300, 300),
    }


def test_in_place_modules_and_modules_with_several_outputs_are_timed() -> None:
    clock = FakeClock()

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(2, 2)
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            output, (hidden, cell) = self.lstm(x)
            return self.relu(output * 1), {"hidden": hidden, "cell": cell}

    (run,) = timed(clock, Both()).runs

    nodes = {
        (key.path, key.op): cost.calls for key, cost in run.ops.items() if key.stage == "backward"
    }
    assert nodes["relu", "relu"] == 1
    assert nodes["lstm", "lstm"] > 1


def test_the_backward_of_an_op_is_listed_with_the_op() -> None:
    clock = FakeClock()

    (with_ops,) = timed(clock, nn.Linear(2, 2)).runs
    (without,) = timed(clock, nn.Linear(2, 2), ops=False).runs

    assert ("", "linear", "backward") in with_ops.ops
    assert ("", "AddmmBackward0", "backward") in without.ops


def test_no_timer_hooks_stay_on_nodes_after_closing() -> None:
    clock = FakeClock()
    watch = Stopwatch(clock, clock.cpu)
    nodes = NodeTimer(watch)
    weight = torch.ones(2, requires_grad=True)
    loss = (weight * 2).sum()
    nodes.tag([loss])

    nodes.close()
    loss.backward()  # type: ignore[no-untyped-call]

    assert watch.spans == []
