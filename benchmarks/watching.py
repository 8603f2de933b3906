"""Watching: what it adds to a training to have its inside recorded, step by step."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import mmap
import operator
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.cases import installed
from benchmarks.fresh import FreshError, fresh
from benchmarks.measure import PATIENCE
from benchmarks.models import GPT_2, MLP, RESNET18, ResidualBlock, Scale, Spec, build
from benchmarks.rows import OURS, Case, Effort, Reading, Topic

TORCHEXPLORER = "torchexplorer"
WANDB = "wandb"
_CONTENDERS = (OURS, TORCHEXPLORER, WANDB)
_BATCHES = {"resnet18": (32, 3, 32, 32), "gpt2": (4, 128), "mlp": (32, 64)}
_MOST_ROUNDS = 10
_CYCLE, _SHORT_CYCLE = 10, 3
"""How many steps there are to a logged one, itself included; fewer where a step is long."""
_CLOSE_LOOKS, _LATER_STEPS = 8, 4
_LONG_STEP = 1.0
"""In CPU seconds."""
_MOST_CYCLES, _LONG_ENOUGH = 3, 5.0
"""So many cycles are timed in a round, fewer if they take more CPU seconds."""
_SMALL = Scale(("mlp", {"layers": 4, "width": 16}), ("mlp", {"layers": 1, "width": 2}))

Step = Callable[[], None]
Times = dict[str, list[float]]
Watching = Callable[[nn.Module, int, Path], contextlib.AbstractContextManager[Step]]
"""Watch a model, every so manyth step of it, with a folder to write to; gives what its users call
at the end of a step."""


def time_steps(contender: str, spec: Spec, rounds: int) -> Times:
    """CPU seconds, round by round, of plain steps, of the first one that is watched, of those that
    are logged, writing included, and of those that are not.

    A round has a model of its own: peers leave their hooks in it.
    """
    times: Times = {"plain": [], "first": [], "logged": [], "unlogged": []}
    started = time.process_time()
    for number in range(rounds):
        if number and time.process_time() - started > PATIENCE:
            break
        plain, first, cycles = _watched(contender, spec)
        begin = _UNTOUCHED_FROM.get(contender, 2)
        cycle = len(cycles[0])
        unlogged = statistics.median(
            seconds for steps in cycles for seconds in steps[begin : begin + cycle - 2]
        )
        times["plain"].append(statistics.median(plain))
        times["first"].append(first)
        times["unlogged"].append(unlogged)
        # What was logged is worked out and written while the next step is going on.
        times["logged"].append(statistics.mean(map(sum, cycles)) - (cycle - 1) * unlogged)
    return times


def time_later_steps(contender: str, spec: Spec, rounds: int) -> Times:
    """CPU seconds, round by round, of logged steps and of steps in a pause, in turns.

    The first recorded steps, which are looked at more closely, are over.
    """
    from torchglass.api.watch import watch

    model, step = _training(spec)
    times: Times = {"paused": [], "every": []}
    with tempfile.TemporaryDirectory() as folder, watch(model, run_dir=folder, verbose=False) as it:
        for _ in range(_CLOSE_LOOKS):
            step()
        gc.collect()
        for _ in range(rounds):
            for name, turn in {"paused": it.pause, "every": it.resume}.items():
                turn()
                # What was logged is written while the next step is going on.
                step()
                times[name].append(sum(_seconds(step) for _ in range(_LATER_STEPS)))
    return times


def soak(contender: str, spec: Spec, steps: int) -> Times:
    """How late steps compare with early ones, and how many kilobytes 1,000 steps leave behind.

    What is allocated once, and caches that fill, belong to the first tenth of the steps.
    """
    model, step = _training(spec)
    seconds, kilobytes = [], []
    with tempfile.TemporaryDirectory() as folder, _WATCH[contender](model, 1, Path(folder)) as end:
        for number in range(steps):
            seconds.append(_seconds(step) + _seconds(end))
            if number % 10 == 9:
                kilobytes.append(_resident_bytes() / 1e3)
    tenth = steps // 10
    late, early = (statistics.median(part) for part in (seconds[-tenth:], seconds[tenth:][:tenth]))
    settled = kilobytes[len(kilobytes) // 10 :]
    slope = np.polyfit(np.arange(len(settled)), settled, 1)[0] if len(settled) > 1 else 0.0
    return {"slowdown": [late / early], "growth": [100 * float(slope)], "step": [1e3 * early]}


def _watched(contender: str, spec: Spec) -> tuple[list[float], float, list[list[float]]]:
    """CPU seconds of plain steps of a model, of the first one that is watched, and of cycles."""
    model, step = _training(spec)
    cycle = _SHORT_CYCLE if _seconds(step) > _LONG_STEP else _CYCLE
    plain = _plain(step)
    watching = _WATCH[contender]
    with tempfile.TemporaryDirectory() as folder, watching(model, cycle, Path(folder)) as end:

        def whole() -> None:
            step()
            end()

        gc.collect()
        first, *_ = [_seconds(whole) for _ in range(cycle)]
        gc.collect()
        cycles: list[list[float]] = []
        while not cycles or (len(cycles) < _MOST_CYCLES and sum(map(sum, cycles)) < _LONG_ENOUGH):
            cycles.append([_seconds(whole) for _ in range(cycle)])
    if contender == OURS:
        # Peers stay where they are.
        plain += _plain(step)
    return plain, first, cycles


def _plain(step: Step) -> list[float]:
    gc.collect()
    times: list[float] = []
    while len(times) < _CYCLE and sum(times) < _LONG_STEP:
        times.append(_seconds(step))
    return times


def _seconds(step: Step) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def _resident_bytes() -> int:
    _, pages, *_ = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(pages) * mmap.PAGESIZE


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


@contextlib.contextmanager
def _watch_with_us(model: nn.Module, log_freq: int, folder: Path) -> Iterator[Step]:
    from torchglass.api.watch import watch

    with watch(model, log_freq=log_freq, run_dir=folder, verbose=False):
        yield _nothing


@contextlib.contextmanager
def _watch_with_torchexplorer(model: nn.Module, log_freq: int, folder: Path) -> Iterator[Step]:
    watch = functools.partial(
        importlib.import_module("torchexplorer").watch,
        model,
        log_freq=log_freq,
        disable_inplace=True,
        ignore_io_grad_classes=[ResidualBlock],
        backend="standalone",
        standalone_dir=str(folder / "page"),
        verbose=False,
    )
    # It serves its page from a thread that never ends, and that is a daemon as its maker is.
    begun: Future[None] = Future()
    threading.Thread(target=_fulfil, args=(begun, watch), daemon=True).start()
    begun.result()
    # Where it is going to write, which it does not bring along.
    (folder / "page" / "data").mkdir(exist_ok=True)
    yield _nothing


@contextlib.contextmanager
def _watch_with_wandb(model: nn.Module, log_freq: int, folder: Path) -> Iterator[Step]:
    import wandb

    with wandb.init(mode="offline", dir=str(folder)) as run:
        run.watch(model, log="all", log_freq=log_freq)
        yield lambda: run.log({})


def _fulfil(future: Future[None], function: Callable[[], None]) -> None:
    try:
        function()
        future.set_result(None)
    except Exception as error:  # noqa: BLE001 - who waits for the future raises it
        future.set_exception(error)


def _nothing() -> None:
    """What most have to be told at the end of a step."""


_WATCH: Mapping[str, Watching] = {
    OURS: _watch_with_us,
    TORCHEXPLORER: _watch_with_torchexplorer,
    WANDB: _watch_with_wandb,
}
_UNTOUCHED_FROM = {WANDB: 1}
"""Where in a cycle the steps begin that are neither logged nor the next one: after these two, but
for who logs the last."""


class _Found(NamedTuple):
    """What an interpreter found out of one contender, or why it did not."""

    times: Mapping[str, list[float]]
    why_not: str = ""

    def reading(self, unit: str, number: Callable[..., float], *names: str) -> Reading:
        """A number that is computed of the times of each round."""
        columns = [self.times.get(name, []) for name in names]
        samples = tuple(number(*times) for times in zip(*columns, strict=True))
        return Reading(unit=unit, samples=samples, why_not=self.why_not)


@functools.cache
def _steps(contender: str, name: str, effort: Effort) -> _Found:
    rounds = 1 if contender != OURS else min(effort.rounds, _MOST_ROUNDS)
    return _ask(contender, time_steps, spec=_MODELS[name].at(effort), rounds=rounds)


@functools.cache
def _soaked(effort: Effort) -> _Found:
    return _ask(OURS, soak, spec=_SMALL.at(effort), steps=20 if effort.quick else 10_000)


def _ask(contender: str, function: Callable[..., Times], **arguments: object) -> _Found:
    if not installed([contender]):
        return _Found({}, "not installed")
    if contender == TORCHEXPLORER and shutil.which("dot") is None:
        return _Found({}, "needs Graphviz")
    try:
        return _Found(fresh(function, contender=contender, **arguments))
    except FreshError as problem:
        return _Found({}, f"failed: {problem}")


def _case(
    name: str, model: str, goal: float | None, unit: str, number: Callable[..., float], *times: str
) -> Case:
    def measure(effort: Effort) -> dict[str, Reading]:
        return {
            contender: _steps(contender, model, effort).reading(unit, number, *times)
            for contender in _CONTENDERS
        }

    return Case(f"{name}, {model}", measure, goal)


def _every(log_freq: int, model: str, goal: float) -> Case:
    def ratio(plain: float, logged: float, unlogged: float) -> float:
        return (logged + (log_freq - 1) * unlogged) / (log_freq * plain)

    often = "step" if log_freq == 1 else f"{log_freq}th step"
    return _case(f"every {often} logged", model, goal, "×", ratio, "plain", "logged", "unlogged")


def _later(model: str, goal: float) -> Case:
    def measure(effort: Effort) -> dict[str, Reading]:
        found = _ask(OURS, time_later_steps, spec=_MODELS[model].at(effort), rounds=effort.rounds)
        return {OURS: found.reading("×", operator.truediv, "every", "paused")}

    return Case(f"every step logged, later, {model}", measure, goal)


def _unlogged(model: str, goal: float | None) -> Case:
    def ratio(plain: float, unlogged: float) -> float:
        return unlogged / plain

    return _case("a step that is not logged", model, goal, "×", ratio, "plain", "unlogged")


def _first(model: str, goal: float | None) -> Case:
    def extra(plain: float, first: float) -> float:
        return 1e3 * (first - plain)

    return _case("first step, over a plain one", model, goal, "ms", extra, "plain", "first")


def _soak(name: str, unit: str, figure: str, goal: float | None = None) -> Case:
    def measure(effort: Effort) -> dict[str, Reading]:
        return {OURS: _soaked(effort).reading(unit, float, figure)}

    return Case(name, measure, goal)


_MODELS = {
    "ResNet-18, batch 32": RESNET18,
    "GPT-2-small-like, batch 4": GPT_2,
    "MLP of 1000": MLP,
}
_GOALS = dict(zip(_MODELS, [(1.5, 1.05, 1.01), (1.5, 1.05, 1.01), (6.0, 1.5, 1.05)], strict=True))
_FEW_CALLS = [*_MODELS][:2]
"""Whose steps take long compared with the calls of their modules."""

TOPIC = Topic(
    name="watching",
    title="Watching a training",
    about=(
        "CPU time as a multiple of a plain training step, with inputs, outputs, parameters "
        "and all their gradients logged, writing included, at every step, every 10th or every "
        "100th. Steps are timed where every 10th is logged, of GPT-2 every third, in turns "
        "with plain ones; these are among the first recorded steps of a training, in which the "
        "diagnosis measures more. Rows with “later” have every step logged after those, in turns "
        "with steps in a pause. wandb logs parameters and their gradients only, and writes in "
        "another process, which is not counted. torchexplorer needs the program dot (`apt "
        "install graphviz`). The soak trains a small MLP: the time of late steps over that of "
        "early ones, and the growth of the process."
    ),
    cases=[
        *(
            _every(log_freq, model, goal)
            for model, goals in _GOALS.items()
            for log_freq, goal in zip((1, 10, 100), goals, strict=True)
        ),
        _later("ResNet-18, batch 32", 1.1),
        _later("MLP of 1000", 3.0),
        *(_unlogged(model, 1.01 if model in _FEW_CALLS else None) for model in _MODELS),
        *(_first(model, None if model in _FEW_CALLS else 1000.0) for model in _MODELS),
        _soak("10,000 logged steps: late over early", "×", "slowdown", 1.1),
        _soak("… memory, for 1,000 steps more", "kB", "growth", 100.0),
        _soak("… an early step", "ms", "step"),
    ],
)
