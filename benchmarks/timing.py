"""Timing: what it adds to a forward or a training step to take the times of all that runs in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from benchmarks.cases import beside_baseline
from benchmarks.measure import Times, in_turns, times_baseline
from benchmarks.models import GPT_2, MLP, RESNET18, Scale, Spec, Subject, build
from benchmarks.rows import OURS, Case, Effort, Reading, Topic

if TYPE_CHECKING:
    from torchglass.capture.measure.profile import Stopwatch

Run = Callable[[], object]

_RAW = "alone"
_PROFILER = "torch.profiler"


@torch.no_grad()
def time_forward(spec: Spec, rounds: int, *, ops: bool) -> Times:
    """A forward in which the modules, and the ops if wanted, are timed."""
    subject = build(spec)
    modules = list(subject.model.named_modules())

    def timed() -> None:
        _timed_forward(subject, modules, ops=ops)

    def profiled() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            subject.forward()

    runs: dict[str, Run] = {_RAW: subject.forward, OURS: timed}
    if ops:
        runs[_PROFILER] = profiled
    return _times(runs, rounds)


def time_step(spec: Spec, rounds: int) -> Times:
    """A forward and backward in which modules, ops and the nodes of autograd are timed."""
    from torchglass.capture.measure.profile import NodeTimer

    subject = build(spec)
    modules = list(subject.model.named_modules())

    def plain() -> None:
        torch.autograd.backward(subject.forward().sum())

    def timed() -> None:
        watch, output = _timed_forward(subject, modules, ops=True)
        nodes = NodeTimer(watch)
        loss = output.sum()
        nodes.tag([loss])
        torch.autograd.backward(loss)
        nodes.close()

    def profiled() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            plain()

    return _times({_RAW: plain, OURS: timed, _PROFILER: profiled}, rounds)


def _timed_forward(
    subject: Subject, modules: list[tuple[str, nn.Module]], *, ops: bool
) -> tuple[Stopwatch, torch.Tensor]:
    from torchglass.capture.measure.devices import HostClock, cpu_clock
    from torchglass.capture.measure.profile import ModuleTimer, Stopwatch, timing_ops
    from torchglass.capture.module_calls import observe_calls

    clock = HostClock()
    watch = Stopwatch(clock, cpu_clock(clock))
    with observe_calls(ModuleTimer(watch, modules)):
        if not ops:
            return watch, subject.forward()
        with timing_ops(watch):
            return watch, subject.forward()


def _times(runs: Mapping[str, Run], rounds: int) -> Times:
    """What is measured alone in milliseconds, and how many times that all else takes."""
    return times_baseline(in_turns(runs, rounds), _RAW)


def _case(
    name: str,
    scale: Scale,
    function: Callable[..., Times],
    others: tuple[str, ...] = (OURS, _PROFILER),
    **options: bool,
) -> Case:
    def measure(effort: Effort) -> dict[str, Reading]:
        spec, rounds = scale.at(effort), effort.rounds
        return beside_baseline(_RAW, others, function, spec=spec, rounds=rounds, **options)

    return Case(name, measure)


_MODELS = {"ResNet-18": RESNET18, "GPT-2-small-like": GPT_2, "MLP of 1000": MLP}

TOPIC = Topic(
    name="timing",
    title="Timing",
    about=(
        "CPU time as a multiple of the plain model: a forward without gradients, or a step of "
        "forward and backward, on the models of the rows above. torch.profiler times kernels "
        "and does not know modules."
    ),
    cases=[
        *(
            _case(f"time of modules, {name}", scale, time_forward, (OURS,), ops=False)
            for name, scale in _MODELS.items()
        ),
        *(
            _case(f"time of modules and ops, {name}", scale, time_forward, ops=True)
            for name, scale in _MODELS.items()
        ),
        *(
            _case(f"time of a step with its backward, {name}", scale, time_step)
            for name, scale in _MODELS.items()
        ),
    ],
)
