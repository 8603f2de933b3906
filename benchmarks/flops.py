"""FLOPs: what it adds to a training step to count what each module of it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cases import beside_baseline
from benchmarks.measure import Times, in_turns, keep_freed_memory, times_baseline
from benchmarks.models import GPT_2, MLP, RESNET18, Scale, Spec, build
from benchmarks.rows import OURS, Case, Effort, Reading, Topic

_RAW = "alone"
_EMPTY = "an empty mode"
_TORCH = "FlopCounterMode"


class _EmptyMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees all kernels and does nothing about them."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return func(*args, **(kwargs or {}))


def time_step(spec: Spec, rounds: int, pages_at_hand: bool = False) -> Times:
    """A forward and backward alone in milliseconds, and how many times that it takes counted.

    With `pages_at_hand` the system is not asked for memory while they run.
    """
    from torchglass.capture.measure.flops import FlopCounter, FlopMode
    from torchglass.capture.module_calls import observe_calls

    if pages_at_hand:
        keep_freed_memory()
    subject = build(spec)
    modules = list(subject.model.named_modules())

    def plain() -> None:
        torch.autograd.backward(subject.forward().sum())

    def counted() -> None:
        counter = FlopCounter(modules)
        with observe_calls(counter), FlopMode(counter):
            loss = subject.forward().sum()
            counter.is_backward = True
            torch.autograd.backward(loss)
        counter.ops()

    def in_empty_mode() -> None:
        with _EmptyMode():  # type: ignore[no-untyped-call]
            plain()

    def counted_by_torch() -> None:
        with FlopCounterMode(display=False):
            plain()

    runs: dict[str, Callable[[], object]] = {
        _RAW: plain,
        _EMPTY: in_empty_mode,
        OURS: counted,
        _TORCH: counted_by_torch,
    }
    return times_baseline(in_turns(runs, rounds), _RAW)


def _case(name: str, scale: Scale, goal: float | None) -> Case:
    def measure(effort: Effort) -> dict[str, Reading]:
        return beside_baseline(
            _RAW,
            (_EMPTY, OURS, _TORCH),
            time_step,
            spec=scale.at(effort),
            rounds=effort.rounds,
            pages_at_hand=True,
        )

    return Case(name, measure, goal)


TOPIC = Topic(
    name="flops",
    title="FLOPs",
    about=(
        "CPU time as a multiple of a plain step of forward and backward. An empty mode sees "
        "every kernel and counts nothing: the floor of any counter. FlopCounterMode counts by "
        "module too, without bytes; on the CPU it does not count attention, LSTMs and fused "
        "layers. malloc keeps freed memory here, because otherwise a step of ResNet-18 varies "
        "by 10 %."
    ),
    cases=[
        _case("FLOPs, train step, ResNet-18", RESNET18, 1.10),
        _case("FLOPs, train step, GPT-2-small-like", GPT_2, 1.15),
        _case("FLOPs, train step, MLP of 1000", MLP, None),
    ],
)
