"""Ctrl-C at any moment of our own work leaves nothing behind."""

from __future__ import annotations

import contextlib
import dis
import random
import signal
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.hard.faults import BLOCK_FILES, flat, is_below_an_entry, left_behind, run_traced, spread

# Python looks for signals when a function begins, after calls and at the end of loops.
CHECKED_AFTER = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD"}
MOST_POINTS = 45

Point = tuple[CodeType, int, int]


def handler(code: CodeType, offset: int) -> int | None:
    """Where an exception at an instruction goes: one after a call goes where the call's goes."""
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return next((entry.target for entry in entries if entry.start <= offset < entry.end), None)


class Interrupter:
    """Counts the moments at which Ctrl-C may come, and lets it come at one of them."""

    def __init__(self, at: Point | None = None) -> None:
        self.points: Counter[tuple[CodeType, int]] = Counter()
        self._at = at

    def run(self, work: Callable[[], object]) -> None:
        run_traced(work, self._trace)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(BLOCK_FILES) or not is_below_an_entry(frame):
            # What torch does to have a mode handle an op is out of our hands.
            return None
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        self._meet(frame)
        before: list[Any] = ["", None]

        def step(frame: FrameType, event: str, argument: object) -> Any:
            if event == "opcode":
                offset = frame.f_lasti
                if before[0] in CHECKED_AFTER and handler(frame.f_code, offset) == before[1]:
                    self._meet(frame)
                before[:] = dis.opname[frame.f_code.co_code[offset]], handler(frame.f_code, offset)
            return step

        return step

    def _meet(self, frame: FrameType) -> None:
        key = frame.f_code, frame.f_lasti
        self.points[key] += 1
        if self._at == (*key, self.points[key]):
            signal.raise_signal(signal.SIGINT)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.dropout(nn.functional.normalize(self.layer(self.norm(x))), 0.5, True)


def _record(model: nn.Module, x: torch.Tensor) -> None:
    with tg.record(model):
        model(x)


def _tracing(model: nn.Module, x: torch.Tensor) -> None:
    with tg.tracing(model, gradients=True):
        model(x).sum().backward()


def _guard(model: nn.Module, x: torch.Tensor) -> None:
    with tg.guard(model):
        model(x).sum().backward()


def _cheap_guard(model: nn.Module, x: torch.Tensor) -> None:
    with tg.guard(model, cheap=True):
        model(x)


def _watch(model: nn.Module, x: torch.Tensor) -> None:
    with tg.watch(model, run_dir=":memory:", verbose=False):
        model(x).sum().backward()


def _inspector(model: nn.Module, x: torch.Tensor) -> None:
    with tg.InspectorGadgets(model):
        model(x).sum().backward()


BLOCKS: dict[str, Callable[[nn.Module, torch.Tensor], object]] = {
    "record": _record,
    "tracing": _tracing,
    "guard": _guard,
    "cheap guard": _cheap_guard,
    "watch": _watch,
    "inspector": _inspector,
    "trace": lambda model, x: tg.trace(model, x),
    "aten": lambda model, x: tg.trace(model, x, level="aten"),
    "edit": lambda model, x: tg.trace(model, x, stop_after="linear"),
}
VERBS: dict[str, Callable[[nn.Module, torch.Tensor], object]] = {
    "summary": lambda model, x: tg.summary(model, x),
    "profile": lambda model, x: tg.profile(model, x, repeats=1, warmup=0),
    "flops": lambda model, x: tg.flops(model, x, backward=True),
    "memory": lambda model, x: tg.memory(model, x),
    "inspect": lambda model, x: tg.inspect(model, x),
    "explain": lambda model, x: tg.explain(model, x),
}
"""These run the model themselves, and put back what that changes."""


def state(model: nn.Module, *, is_put_back: bool) -> dict[str, Any]:
    seen = left_behind(model)
    if is_put_back:
        seen["model"] = list(flat(list(model.state_dict().values())))
        seen["gradients"] = [p.grad is None for p in model.parameters()]
        seen["random"] = torch.get_rng_state().tolist()
        seen["python's random"] = random.getstate()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BLOCKS, *VERBS])
def test_an_interrupt_at_any_moment_leaves_nothing_behind(name: str) -> None:
    work, is_put_back = (BLOCKS | VERBS)[name], name in VERBS
    x = torch.rand(4, 3)

    def once(at: Point | None = None) -> tuple[Interrupter, dict[str, Any], dict[str, Any]]:
        torch.manual_seed(0)
        model, interrupter = Net(), Interrupter(at)
        before = state(model, is_put_back=is_put_back)
        with contextlib.suppress(KeyboardInterrupt):
            interrupter.run(lambda: work(model, x))
        return interrupter, before, state(model, is_put_back=is_put_back)

    once()
    counted, before, after = once()
    assert before == after
    points = [
        (*key, number)
        for key, count in counted.points.items()
        for number in sorted({1, count // 2 + 1, count})
    ]
    assert len(points) > 50
    harm = []
    for point in spread(points, MOST_POINTS):
        _, before, after = once(point)
        if before != after:
            changed = [key for key in before if before[key] != after[key]]
            code, offset, number = point
            harm.append(f"{code.co_qualname}+{offset} #{number}: {', '.join(changed)}")  # type: ignore[attr-defined]
    assert not harm, "\n" + "\n".join(harm)
