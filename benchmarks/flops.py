"""FLOPs: what it adds to a training step to count what each module of it computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cases import together
from benchmarks.measure import Times, in_turns, ratios
from benchmarks.models import GPT_2, MLP, RESNET18, Scale, Spec, build
from benchmarks.rows import OURS, Case, Effort, Reading, Topic

_RAW = "alone"
_TORCH = "FlopCounterMode"


def time_step(spec: Spec, rounds: int) -> Times:
    """A forward and backward alone in milliseconds, and how many times that it takes counted."""
    from torchglass.capture.calls import recording
    from torchglass.capture.flops.counting import CountingMode
    from torchglass.capture.flops.tally import Tally

    subject = build(spec)
    modules = list(subject.model.named_modules())

    def plain() -> None:
        torch.autograd.backward(subject.forward().sum())

    def counted() -> None:
        tally = Tally(modules)
        with recording(tally), CountingMode(tally):
            loss = subject.forward().sum()
            tally.is_backward = True
            torch.autograd.backward(loss)
        tally.ops()

    def counted_by_torch() -> None:
        with FlopCounterMode(display=False):
            plain()

    runs: dict[str, Callable[[], object]] = {
        _RAW: plain,
        OURS: counted,
        _TORCH: counted_by_torch,
    }
    times = in_turns(runs, rounds)
    raw = times.pop(_RAW)
    return {
        _RAW: [1e3 * seconds for seconds in raw],
        **{name: ratios(of_one, raw) for name, of_one in times.items()},
    }


def _case(name: str, scale: Scale, goal: float | None) -> Case:
    def measure(effort: Effort) -> dict[str, Reading]:
        contenders, spec = (_RAW, OURS, _TORCH), scale.at(effort)
        found = together(contenders, "×", time_step, spec=spec, rounds=effort.rounds)
        found[_RAW] = dataclasses.replace(found[_RAW], unit="ms")
        return found

    return Case(name, measure, goal)


TOPIC = Topic(
    name="flops",
    title="FLOPs",
    about="How many times the CPU time of a step of forward and backward alone. FlopCounterMode "
    "counts by module, too, and moves no bytes; on the CPU it counts nothing of attention, LSTMs "
    "and fused layers.",
    cases=[
        _case("FLOPs, train step, ResNet-18", RESNET18, 1.10),
        _case("FLOPs, train step, GPT-2-small-like", GPT_2, 1.15),
        _case("FLOPs, train step, MLP of 1000", MLP, None),
    ],
)
