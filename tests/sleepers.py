"""Modules that take exactly as long as they are told, by a clock that only they advance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn


class FakeClock:
    """Time that passes when someone says so, on the wall and on the processor apart."""

    name = "fake"

    def __init__(self) -> None:
        self.now = 0
        self.cpu_now = 0

    def mark(self) -> int:
        return self.now

    def nanoseconds(self, marks: Sequence[int]) -> list[int]:
        return list(marks)

    def cpu(self) -> int:
        return self.cpu_now

    def sleep(self, ns: int, cpu_ns: int | None = None) -> None:
        self.now += ns
        self.cpu_now += ns if cpu_ns is None else cpu_ns


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, clock: FakeClock, backward_ns: int) -> torch.Tensor:
        ctx.clock, ctx.ns = clock, backward_ns
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.clock.sleep(ctx.ns)
        return gradients[0], None, None


class Sleeper(nn.Module):
    """Sleeps, then runs its children one after the other."""

    def __init__(
        self, clock: FakeClock, forward_ns: int, backward_ns: int = 0, **children: nn.Module
    ) -> None:
        super().__init__()
        self.clock = clock
        self.forward_ns = forward_ns
        self.backward_ns = backward_ns
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.sleep(x)
        for child in self.children():
            y = child(y)
        return y

    def sleep(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.sleep(self.forward_ns)
        slept: torch.Tensor = _Sleep.apply(x, self.clock, self.backward_ns)  # type: ignore[no-untyped-call]
        return slept


class Moody(nn.Module):
    """Takes another time at each run, and none when the times have been used up."""

    def __init__(self, clock: FakeClock, times: Iterable[int]) -> None:
        super().__init__()
        self.clock = clock
        # An iterator goes on even though the module's attributes are put back after each run.
        self.times = iter(times)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.sleep(next(self.times, 0))
        return x * 2
