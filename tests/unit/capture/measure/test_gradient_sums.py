from __future__ import annotations

import pytest
import torch

from torchglass.capture.measure.memory_recorder import GradientSums
from torchglass.capture.trace.kernel_mode import KernelMode
from torchglass.capture.trace.op_mode import OpEvent


class Listener:
    """Asks of each kernel whether it is a sum that a plain run makes in place."""

    current = None

    def __init__(self) -> None:
        self.sums = GradientSums()
        self.found: list[bool] = []

    def before_write(self, written: tuple[torch.Tensor, ...]) -> None:
        pass

    def failed(self, event: OpEvent, error: BaseException) -> None:
        pass

    def seen(self, event: OpEvent) -> object:
        if event.function is torch.ops.aten.add.Tensor:
            self.found.append(self.sums.in_place(event) is not None)
        return event.output

    def missed(self, problem: Exception) -> None:
        raise problem


def sums_of(loss: torch.Tensor) -> list[bool]:
    listener = Listener()
    with KernelMode(listener):
        torch.autograd.backward(loss)
    return listener.found


def sums_of_plain_run(loss: torch.Tensor) -> list[bool]:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        torch.autograd.backward(loss)
    events = sorted(profiler.events(), key=lambda event: event.time_range.start)
    adds = [event for event in events if event.name in ("aten::add", "aten::add_")]
    return [event.name == "aten::add_" for event in adds]


def two_branches(y: torch.Tensor) -> torch.Tensor:
    return (y.exp() * 3 + y.sigmoid() * 2).sum()


def residual(y: torch.Tensor) -> torch.Tensor:
    return ((y + y.tanh()) * 3).sum()


def expanded(y: torch.Tensor) -> torch.Tensor:
    return y.sum() + y.tanh().sum()


def seen_through_views(y: torch.Tensor) -> torch.Tensor:
    z = y * 1
    return (z + y + y.view(-1).view(8, 8) * 2).sum()


def many(y: torch.Tensor) -> torch.Tensor:
    return ((y + y.relu()) + y.tanh() + y).sum()


@pytest.mark.parametrize("branch", [two_branches, residual, expanded, seen_through_views, many])
def test_gradient_sums_are_in_place_exactly_as_without_measuring(branch: object) -> None:
    def loss() -> torch.Tensor:
        return branch(torch.randn(8, 8, requires_grad=True) * 2)  # type: ignore[no-any-return,operator]

    assert sums_of(loss()) == sums_of_plain_run(loss())


def test_a_sum_in_the_forward_is_not_in_place() -> None:
    listener = Listener()

    with KernelMode(listener):
        torch.ones(3) + torch.ones(3)

    assert listener.found == [False]
