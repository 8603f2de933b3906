"""What the rules cost: `python -m benchmarks.diagnosis.cost`.

Four trainings of the same model take turns, ten steps each: two are not watched, one is watched at
`log_freq=10` without rules, one with them. The CPU time of each turn is compared with that of the
first training, and the median is taken. A turn has one recorded step. Whose turn comes first
changes from round to round, and the second training that is not watched shows the error of the
measurement.
"""

from __future__ import annotations

import contextlib
import operator
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn

import torchglass as tg
from benchmarks.models import Spec, build
from benchmarks.report import write_between_marks
from torchglass.capture.watch.training_problems import TrainingProblems

_TURN = 10
_BARE, _FULL = 2, 3
_SERIES_LAYERS = 19
_RULE_STEPS = 500
MODELS: dict[str, tuple[Spec, int]] = {
    "ResNet-18, batch 32, 32×32": (("resnet18", {"image": 32}), 32),
    "GPT, 6 layers of 256, batch 4, 128 tokens": (
        ("gpt2", {"layers": 6, "width": 256, "heads": 4, "words": 4096}),
        4,
    ),
}
BEGIN, END = "<!-- cost -->", "<!-- /cost -->"


class Ratios(NamedTuple):
    """CPU time compared with a training that is not watched."""

    not_watched: float
    without_rules: float
    with_rules: float


class RuleTime(NamedTuple):
    """The CPU time of the rules in a training that records every step."""

    series: int
    milliseconds: float
    """Per recorded step, on average over the training."""


def _training(spec: Spec, batch: int) -> tuple[nn.Module, Callable[[], None]]:
    """A model, and a function that takes a step of its training."""
    model, (example, *_) = build(spec)
    model.train()
    inputs = example[:1].repeat(batch, *[1] * (example.dim() - 1))
    if inputs.is_floating_point():
        inputs = torch.randn_like(inputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(model(inputs).float().square().mean())
        optimizer.step()

    return model, step


@contextlib.contextmanager
def _no_rules() -> Iterator[None]:
    def nothing(*args: Any, **kwargs: Any) -> bool:
        return False

    with mock.patch.object(TrainingProblems, "look", nothing):
        yield


def _turn(step: Callable[[], None]) -> float:
    """The CPU seconds of ten steps, those of other threads included."""
    started = time.process_time()
    for _ in range(_TURN):
        step()
    return time.process_time() - started


def ratios(spec: Spec, batch: int, turns: int) -> Ratios:
    """What watching adds, without and with rules; the first two turns do not count."""
    trainings = [_training(spec, batch) for _ in range(4)]
    steps = [step for _, step in trainings]
    times: list[list[float]] = [[] for _ in trainings]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cost-")))
        for number in (_BARE, _FULL):
            file = folder / f"{number}.glass"
            model = trainings[number][0]
            stack.enter_context(tg.watch(model, log_freq=_TURN, save=file, verbose=False))
        for turn in range(turns + 2):
            for number in ((turn + place) % len(steps) for place in range(len(steps))):
                with _no_rules() if number == _BARE else contextlib.nullcontext():
                    times[number].append(_turn(steps[number]))
    usual, *others = (found[2:] for found in times)
    return Ratios(*(statistics.median(map(operator.truediv, one, usual)) for one in others))


def rule_time(layers: int, steps: int) -> RuleTime:
    """How long the rules take in a training whose every step is recorded."""
    pairs = ((nn.Linear(16, 16), nn.ReLU()) for _ in range(layers))
    model = nn.Sequential(*(module for pair in pairs for module in pair))
    for one in model.parameters():
        # So deep a network keeps its gradients only with such weights: the training is healthy.
        if one.dim() > 1:
            nn.init.orthogonal_(one, gain=2**0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    taken, original = [0.0], TrainingProblems.look

    def timed(self: TrainingProblems, *args: Any) -> bool:
        started = time.thread_time()
        try:
            return original(self, *args)
        finally:
            taken[0] += time.thread_time() - started

    with tempfile.TemporaryDirectory(prefix="cost-") as folder:
        file = Path(folder) / "run.glass"
        with (
            mock.patch.object(TrainingProblems, "look", timed),
            tg.watch(model, save=file, verbose=False) as watcher,
        ):
            for _ in range(steps):
                loss = model(torch.randn(8, 16)).square().mean()
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                watcher.log("loss", loss)
        with tg.open(file) as run:
            series = len(run)
    return RuleTime(series, 1000 * taken[0] / steps)


def markdown(turns: int = 12, steps: int = _RULE_STEPS) -> str:
    """Both measurements as tables."""
    lines = [
        "| training | not watched | watched, no rules | watched | allowed |",
        "|---|---|---|---|---|",
    ]
    for name, (spec, batch) in MODELS.items():
        found = " | ".join(f"{ratio:.3f}×" for ratio in ratios(spec, batch, turns))
        lines.append(f"| {name} | {found} | 1.05× |")
    own = rule_time(_SERIES_LAYERS, steps)
    lines += [
        "",
        "| rules | series | recorded steps | per step | allowed for 300 series |",
        "|---|---|---|---|---|",
        f"| all of them | {own.series} | {steps} | {own.milliseconds:.2f} ms | 0.5 ms |",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the tables; with a page as argument, also write them there."""
    torch.set_num_threads(1)
    text = markdown()
    print(text)
    if sys.argv[1:]:
        write_between_marks(Path(sys.argv[1]), text, begin=BEGIN, end=END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
