"""The guard: looking for NaN and Inf at every op, against the run alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from benchmarks.cases import Measure, beside_baseline
from benchmarks.measure import Times, in_turns, times_baseline
from benchmarks.models import GPT_2, RESNET18, Scale, Spec, Subject, build
from benchmarks.rows import OURS, Case, Effort, Reading, Topic
from torchglass.capture.tensor.description import iter_tensors

_RAW = "run alone"
_CHEAP = "… cheap=True"
_HOOKS = "isfinite hooks"
_ANOMALY = "detect_anomaly"

Run = Callable[[], object]


@torch.no_grad()
def time_forward(spec: Spec, rounds: int) -> Times:
    """A forward alone in milliseconds, and how many times that it takes under guard."""
    subject = build(spec)
    contenders = {
        _RAW: subject.forward,
        OURS: _guarded(subject, subject.forward),
        _CHEAP: _guarded(subject, subject.forward, cheap=True),
        _HOOKS: _inside(lambda: _isfinite_hooks(subject), subject.forward),
    }
    return times_baseline(in_turns(contenders, rounds), _RAW)


def time_training(spec: Spec, rounds: int) -> Times:
    """A forward and its backward alone in milliseconds, and how many times that under guard."""
    subject = build(spec)

    def step() -> None:
        subject.model.zero_grad()
        subject.forward().mean().backward()

    contenders = {
        _RAW: step,
        OURS: _guarded(subject, step),
        _ANOMALY: _inside(lambda: torch.autograd.detect_anomaly(check_nan=True), step),
    }
    return times_baseline(in_turns(contenders, rounds), _RAW)


def _guarded(subject: Subject, run: Run, *, cheap: bool = False) -> Run:
    from torchglass.api.guard import guard

    return _inside(lambda: guard(subject.model, cheap=cheap), run)


def _inside(block: Callable[[], contextlib.AbstractContextManager[object]], run: Run) -> Run:
    def inside() -> object:
        with block():
            return run()

    return inside


@contextlib.contextmanager
def _isfinite_hooks(subject: Subject) -> Iterator[None]:
    """What people write by hand: a hook on every module that looks at its outputs."""

    def look(module: object, args: object, output: object) -> None:
        for tensor in iter_tensors(output):
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise ArithmeticError(f"{type(module).__name__} made something not finite")

    with contextlib.ExitStack() as stack:
        for module in subject.model.modules():
            stack.callback(module.register_forward_hook(look).remove)
        yield


def _case(
    name: str, scale: Scale, function: Measure, contenders: tuple[str, ...], goal: float | None
) -> Case:
    def measure(effort: Effort) -> dict[str, Reading]:
        spec, rounds = scale.at(effort), effort.rounds
        return beside_baseline(_RAW, contenders, function, spec=spec, rounds=rounds)

    return Case(name, measure, goal)


_FORWARD = (OURS, _CHEAP, _HOOKS)
_TRAINING = (OURS, _ANOMALY)

TOPIC = Topic(
    name="guard",
    title="NaN guard",
    about=(
        "CPU time as a multiple of the plain run: a forward under `no_grad`, and a forward "
        "with its backward, each in its own block. The hooks call `isfinite().all()` on what "
        "each module returns and find a module; the guard finds the op. `detect_anomaly` "
        "checks the backward only."
    ),
    cases=[
        _case("forward, ResNet-18, 1×3×224×224", RESNET18, time_forward, _FORWARD, 1.15),
        _case("forward, GPT-2-small-like, seq 128", GPT_2, time_forward, _FORWARD, 1.25),
        _case("forward and backward, ResNet-18", RESNET18, time_training, _TRAINING, None),
        _case("forward and backward, GPT-2-like", GPT_2, time_training, _TRAINING, None),
    ],
)
