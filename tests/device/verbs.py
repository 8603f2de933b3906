"""What each verb costs on a device: the waits and launches of one call, beside the goal.

The model is an MLP of 50 layers with 102 parameters. One launch is one ATen op.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import nn

import torchglass as tg
from tests.device.counter import DeviceCounter

LAYERS, WIDTH, BATCH = 50, 64, 32
DEFAULT_KINDS = ("io", "io_grad", "params", "params_grad")
ALL_KINDS = (*DEFAULT_KINDS, "stats", "updates", "activations", "optimizer")


@dataclass
class Cost:
    """What one call of a verb cost, and what it may cost."""

    verb: str
    waits: int
    launches: int
    goal: int | None
    """The most waits; None where they do not matter."""
    most_launches: int | None = None
    series: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def is_within(self) -> bool:
        few = self.goal is None or self.waits <= self.goal
        return few and (self.most_launches is None or self.launches <= self.most_launches)


def mlp(device: str = "cuda:0", count: int = LAYERS) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(count):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 4)).to(device)


def batch(device: str = "cuda:0") -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(BATCH, WIDTH).to(device), torch.randn(BATCH, 4).to(device)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    optimizer.zero_grad()
    loss: torch.Tensor = (model(x) - y).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _launches(run: Callable[[], object]) -> int:
    with DeviceCounter() as plain:
        run()
    return plain.launches


def _cost(
    verb: str, seen: DeviceCounter, plain: int, goal: int | None, most_launches: int | None = None
) -> Cost:
    lines = [f"{number:6d}  {line}" for line, number in seen.lines.most_common(8)]
    return Cost(verb, seen.waits, seen.launches - plain, goal, most_launches, 0, lines)


def cost_of_watch(
    kinds: tuple[str, ...],
    title: str,
    *,
    log_freq: int = 1,
    log: bool = True,
    goal: int = 1,
    most_launches: int | None = None,
    device: str = "cuda:0",
) -> Cost:
    """One step of a watched training after the first three."""
    x, y = batch(device)
    plain = mlp(device)
    plain_optimizer = torch.optim.Adam(plain.parameters(), lr=1e-3)
    for _ in range(2):
        train_step(plain, plain_optimizer, x, y)
    baseline = _launches(lambda: train_step(plain, plain_optimizer, x, y))
    model = mlp(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with folder() as here:
        path = here / "run.glass"
        with tg.watch(model, log=kinds, log_freq=log_freq, save=path, verbose=False) as watcher:
            for _ in range(4):
                with DeviceCounter() as seen:
                    loss = train_step(model, optimizer, x, y)
                    if log:
                        watcher.log("loss", loss)
                    watcher._idle.stop()
        cost = _cost(title, seen, baseline, goal, most_launches)
        cost.series = len(list(tg.open(path).series))
    return cost


def watch_costs() -> Iterator[Cost]:
    yield cost_of_watch(DEFAULT_KINDS, "watch, logged step", most_launches=800)
    yield cost_of_watch(ALL_KINDS, "watch all kinds, logged step", most_launches=800)
    for kind in ALL_KINDS:
        yield cost_of_watch((kind,), f"watch {kind}, logged step")
    yield cost_of_watch(ALL_KINDS, "watch, unlogged step", log_freq=10, log=False, goal=0)
    yield cost_of_watch(ALL_KINDS, "watch, unlogged step + log()", log_freq=10, goal=0)


def record_costs() -> Iterator[Cost]:
    model, (x, _) = mlp(), batch()

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return model(x)  # type: ignore[no-any-return]

    plain = _launches(forward)
    levels: tuple[tuple[Literal["shapes", "cheap", "full"], int], ...]
    levels = (("shapes", 0), ("cheap", 1), ("full", 1))
    for level, goal in levels:
        with DeviceCounter() as seen, tg.record(model, level=level) as recording:
            forward()
            str(recording["1"])
        yield _cost(f"record {level}, forward", seen, plain, goal)


def guard_costs() -> Iterator[Cost]:
    model, (x, y) = mlp(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> torch.Tensor:
        return train_step(model, optimizer, x, y)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return model(x)  # type: ignore[no-any-return]

    step()
    plain_step, plain_forward = _launches(step), _launches(forward)
    for cheap, title, goal in ((False, "guard full", 2), (True, "guard cheap", 1)):
        with tg.guard(model, cheap=cheap):
            step()
            with DeviceCounter() as seen:
                step()
            yield _cost(f"{title}, step", seen, plain_step, goal)
            with DeviceCounter() as seen:
                forward()
            yield _cost(f"{title}, forward", seen, plain_forward, 1)


def inspect_costs() -> Iterator[Cost]:
    model, (x, _) = mlp(), batch()

    def both() -> None:
        model(x).sum().backward()
        model.zero_grad()

    plain = _launches(both)
    with DeviceCounter() as seen, tg.InspectorGadgets(model) as inspector:
        output = model(x)
        inspector.backward_mode()
        output.sum().backward()
    model.zero_grad()
    yield _cost("InspectorGadgets, forward + backward", seen, plain, 2)
    with DeviceCounter() as seen:
        tg.inspect(model, x, backward=True)
    yield _cost("inspect, 3 forwards + backwards", seen, 3 * plain, 6)


def trace_costs() -> Iterator[Cost]:
    model, (x, _) = mlp(), batch()
    plain = _launches(lambda: model(x))
    with DeviceCounter() as seen:
        tg.trace(model, x)
    yield _cost("trace", seen, plain, 0)
    with DeviceCounter() as seen:
        trace = tg.trace(model, x, level="aten")
    yield _cost("trace aten", seen, plain, 0)
    with DeviceCounter() as seen:
        tg.trace(model, x, offload=True)
    yield _cost("trace offload", seen, plain, 0)
    with DeviceCounter() as seen:
        str(trace)
    yield _cost("print(trace)", seen, 0, 0)
    with DeviceCounter() as seen:
        tg.profile(model, x, warmup=1, repeats=4, backward=False)
    yield _cost("profile, 4 repeats", seen, 0, None)
    with DeviceCounter() as seen:
        str(tg.summary(model, x))
    # It looks for parameters that the forward changes, before and after.
    yield _cost("summary", seen, plain, 2)


GROUPS: dict[str, Callable[[], Iterator[Cost]]] = {
    "watch": watch_costs,
    "record": record_costs,
    "guard": guard_costs,
    "inspect": inspect_costs,
    "trace": trace_costs,
}


def table(costs: list[Cost]) -> str:
    rows = [("verb", "waits", "goal", "extra launches", "series", "")]
    rows += [
        (
            cost.verb,
            str(cost.waits),
            "–" if cost.goal is None else f"≤ {cost.goal}",
            str(cost.launches) + (f" (≤ {cost.most_launches})" if cost.most_launches else ""),
            str(cost.series or ""),
            "" if cost.is_within else "too many",
        )
        for cost in costs
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines)
