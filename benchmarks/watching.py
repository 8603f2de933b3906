"""Watching: what it adds to a training to have its inside recorded, step by step."""

from __future__ import annotations

import dataclasses
import importlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.cases import alone
from benchmarks.measure import PATIENCE, cpu_seconds
from benchmarks.models import GPT_2, MLP, RESNET18, Scale, Spec, build
from benchmarks.rows import OURS, Case, Effort, Reading, Topic

TORCHEXPLORER = "torchexplorer"
WANDB = "wandb"
_CONTENDERS = (OURS, TORCHEXPLORER, WANDB)
_BATCHES = {"resnet18": (32, 3, 32, 32), "gpt2": (4, 128), "mlp": (32, 64)}

Step = Callable[[], None]


def time_watched(contender: str, spec: Spec, rounds: int, log_freq: int) -> list[float]:
    """How many times the CPU time of a plain step a watched one takes.

    What is timed are stretches of `log_freq` steps, one of which is looked at; writing is part of
    it. Peers leave their hooks in place, so the plain steps come first.
    """
    model, step = _training(spec)
    plain = _stretches(step, rounds, log_freq)
    with tempfile.TemporaryDirectory() as folder:
        _WATCH[contender](model, log_freq, Path(folder))
        step()
        watched = _stretches(step, rounds, log_freq)
    usual = statistics.median(plain)
    return [seconds / usual for seconds in watched]


def time_first_step(contender: str, spec: Spec, rounds: int) -> list[float]:
    """Milliseconds that the first watched step takes more than a plain one."""
    found = []
    for _ in range(min(rounds, 3)):
        model, step = _training(spec)
        step()
        plain = cpu_seconds(step)
        with tempfile.TemporaryDirectory() as folder:
            _WATCH[contender](model, 1, Path(folder))
            found.append(1e3 * (cpu_seconds(step) - plain))
    return found


def soak(contender: str, spec: Spec, rounds: int) -> list[float]:
    """How many times the first tenth of many logged steps the last tenth of them takes."""
    model, step = _training(spec)
    with tempfile.TemporaryDirectory() as folder:
        _WATCH[contender](model, 1, Path(folder))
        times = []
        for _ in range(400 * rounds):
            start = time.process_time()
            step()
            times.append(time.process_time() - start)
    tenth = len(times) // 10
    return [sum(times[-tenth:]) / sum(times[tenth : 2 * tenth])]


def _training(spec: Spec) -> tuple[nn.Module, Step]:
    """A model in training, and a function that takes one step."""
    model, (example, *_) = build(spec)
    model.train()
    name, sizes = spec
    # Batch norm wants two samples at least.
    shape = (2, *example.shape[1:]) if sizes else _BATCHES[name]
    inputs = torch.randn(shape)
    if example.dtype is torch.int64:
        inputs = example[:1].expand(shape)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(model(inputs).float().square().mean())
        optimizer.step()

    return model, step


def _stretches(step: Step, rounds: int, length: int) -> list[float]:
    times = []
    started = time.process_time()
    for number in range(rounds):
        if number > 1 and time.process_time() - started > PATIENCE:
            break
        times.append(cpu_seconds(lambda: _repeat(step, length)))
    return times


def _repeat(step: Step, times: int) -> None:
    for _ in range(times):
        step()


def _watch_with_us(model: nn.Module, log_freq: int, folder: Path) -> None:
    from torchglass.api.training import watch

    watch(model, log_freq=log_freq, run_dir=folder, verbose=False)


def _watch_with_torchexplorer(model: nn.Module, log_freq: int, folder: Path) -> None:
    importlib.import_module("torchexplorer").watch(
        model,
        log_freq=log_freq,
        disable_inplace=True,
        backend="standalone",
        standalone_dir=str(folder / "page"),
        verbose=False,
    )


def _watch_with_wandb(model: nn.Module, log_freq: int, folder: Path) -> None:
    import wandb

    run = wandb.init(mode="offline", dir=str(folder))
    run.watch(model, log="all", log_freq=log_freq)


_WATCH = {
    OURS: _watch_with_us,
    TORCHEXPLORER: _watch_with_torchexplorer,
    WANDB: _watch_with_wandb,
}


def _case(name: str, scale: Scale, log_freq: int, goal: float) -> Case:
    def measure(effort: Effort) -> dict[str, Reading]:
        arguments = {
            "spec": scale.at(effort),
            "rounds": 2 if effort.quick else effort.rounds,
            "log_freq": 2 if effort.quick else log_freq,
        }
        return {one: alone(one, "×", time_watched, **arguments) for one in _CONTENDERS}

    often = "step" if log_freq == 1 else f"{log_freq}th step"
    return Case(f"every {often} watched, {name}", measure, goal)


def _single(name: str, unit: str, function: Callable[..., list[float]], goal: float) -> Case:
    def measure(effort: Effort) -> dict[str, Reading]:
        found = alone(OURS, unit, function, spec=MLP.at(effort), rounds=1)
        return {OURS: dataclasses.replace(found, unit=unit)}

    return Case(name, measure, goal)


_GOALS = {
    "ResNet-18, batch 32": (RESNET18, (1.5, 1.05, 1.01)),
    "GPT-2-small-like, batch 4": (GPT_2, (1.5, 1.05, 1.01)),
    "MLP of 1000": (MLP, (6.0, 1.5, 1.05)),
}

TOPIC = Topic(
    name="watching",
    title="Watching a training",
    about="How many times the CPU time of a training step alone, with inputs, outputs, their "
    "gradients, parameters and their gradients logged, writing included, where every step, every "
    "10th or every 100th is looked at. wandb logs parameters and their gradients only. The soak is "
    "the time of late steps over that of early ones.",
    cases=[
        *(
            _case(name, scale, log_freq, goal)
            for name, (scale, goals) in _GOALS.items()
            for log_freq, goal in zip((1, 10, 100), goals, strict=True)
        ),
        _single("first step over a plain one, MLP of 1000", "ms", time_first_step, 1000.0),
        _single("soak of logged steps, MLP of 1000", "×", soak, 1.1),
    ],
)
