"""Modules and ops are timed where they run, whatever way a forward takes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.sleepers import FakeClock, Sleeper
from torchglass.analyse.latency import attribute_time
from torchglass.capture.measure.profile import ModuleTimer, Stopwatch, timing_ops
from torchglass.capture.module_calls import observe_calls
from torchglass.records.measures import ModuleKey, Span


def spans_of(clock: FakeClock, model: nn.Module, *args: Any) -> tuple[Span, ...]:
    watch = Stopwatch(clock, clock.cpu)
    with observe_calls(ModuleTimer(watch, model.named_modules())), timing_ops(watch):
        depth = watch.begin("stage", "forward")
        try:
            model(*args)
        finally:
            watch.end(depth)
    return watch.read()


def self_and_total(spans: tuple[Span, ...]) -> dict[str | None, tuple[int, int]]:
    modules = attribute_time(spans).modules
    return {
        key.path: (cost.self_ns, cost.total_ns)
        for key, cost in modules.items()
        if key.stage == "forward"
    }


def ops_of(spans: tuple[Span, ...]) -> list[str]:
    return [span.name for span in spans if span.kind == "op"]


def test_self_time_excludes_the_children() -> None:
    clock = FakeClock()
    inner = Sleeper(clock, 20, leaf=Sleeper(clock, 7))
    model = Sleeper(clock, 5, inner=inner, other=Sleeper(clock, 100))

    times = self_and_total(spans_of(clock, model, torch.ones(1)))

    assert times == {
        "": (5, 132),
        "inner": (20, 27),
        "inner.leaf": (7, 7),
        "other": (100, 100),
    }


def test_a_module_called_twice_under_two_names_has_all_its_time() -> None:
    clock = FakeClock()
    shared = Sleeper(clock, 3)
    model = nn.Sequential(shared, Sleeper(clock, 10), shared)
    spans = spans_of(clock, model, torch.ones(1))

    assert self_and_total(spans) == {"": (0, 16), "0": (6, 6), "1": (10, 10)}
    assert attribute_time(spans).modules[ModuleKey("0", "forward")].calls == 2


def test_recursion_is_counted_once_in_the_total() -> None:
    clock = FakeClock()

    class Recursive(Sleeper):
        def forward(self, x: torch.Tensor, times: int = 3) -> torch.Tensor:
            y = self.sleep(x)
            return self(y, times - 1) if times else y

    times = self_and_total(spans_of(clock, nn.Sequential(Recursive(clock, 10)), torch.ones(1)))

    assert times == {"": (0, 40), "0": (40, 40)}


def test_an_uncalled_container_has_the_time_of_its_modules() -> None:
    clock = FakeClock()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Sleeper(clock, 10, leaf=Sleeper(clock, 1)) for _ in "ab")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    times = self_and_total(spans_of(clock, Model(), torch.ones(1)))

    assert times["blocks"] == (0, 22)
    assert times["blocks.1"] == (10, 11)


def test_a_module_that_raises_is_timed_until_then_and_the_model_may_continue() -> None:
    clock = FakeClock()

    class Failing(Sleeper):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.sleep(x)
            raise ValueError("no")

    class Careful(Sleeper):
        bad: nn.Module
        good: nn.Module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(ValueError):
                self.bad(x)
            result: torch.Tensor = self.good(self.sleep(x))
            return result

    bad = nn.Sequential(Failing(clock, 30))
    model = Careful(clock, 2, bad=bad, good=Sleeper(clock, 4))

    times = self_and_total(spans_of(clock, model, torch.ones(1)))

    assert times == {"": (2, 36), "bad": (0, 30), "bad.0": (30, 30), "good": (4, 4)}


def test_an_exception_passes_through_and_leaves_nothing_behind() -> None:
    clock = FakeClock()

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        spans_of(clock, nn.Sequential(nn.Linear(3, 3)), torch.ones(1, 4))


def test_a_module_created_in_forward_is_below_its_creator() -> None:
    clock = FakeClock()

    class Maker(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = Sleeper(clock, 9)(x)
            return made

    times = self_and_total(spans_of(clock, nn.Sequential(Maker()), torch.ones(1)))

    assert times["0.<Sleeper>"] == (9, 9)
    assert times["0"] == (0, 9)


def test_functional_ops_are_charged_to_the_module_they_ran_in() -> None:
    clock = FakeClock()

    class Functional(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.softplus(x @ x) + x.shape[0]

    spans = spans_of(clock, nn.Sequential(nn.ReLU(), Functional()), torch.ones(2, 2))

    assert ops_of(spans) == ["relu", "matmul", "softplus", "add"]
    paths = [spans[span.parent].name for span in spans if span.kind == "op" and span.parent]
    assert paths == ["0", "1", "1", "1"]


def test_shape_reads_are_not_ops_and_composite_functions_are_opened() -> None:
    clock = FakeClock()

    class Looking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.dim() == 2
            assert x.shape
            assert x.size(0) == 2
            assert not x.is_complex()
            return functional.normalize(x)

    ops = ops_of(spans_of(clock, Looking(), torch.ones(2, 2)))

    assert "normalize" not in ops
    assert "norm" in ops[0]
    assert not {"dim", "size", "__get__", "is_complex"} & set(ops)


def test_timing_keeps_the_fused_path_and_its_results() -> None:
    clock = FakeClock()
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        spans = spans_of(clock, layer, x)

    assert ops_of(spans) == ["_transformer_encoder_layer_fwd"]
