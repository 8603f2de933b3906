"""What is kept of an operation for its replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchglass as tg
from torchglass.capture.trace import op_mode
from torchglass.capture.trace import saved_tensors as reruns_module
from torchglass.capture.trace.op_mode import OpEvent
from torchglass.capture.trace.saved_tensors import RerunBuilder


def event(kwargs: Mapping[str, Any], **facts: Any) -> OpEvent:
    x = torch.ones(2, 2)
    return OpEvent(functional.relu, (x,), kwargs, x, None, (), 0, 0, (), "", **facts)


def test_equal_settings_are_kept_once() -> None:
    reruns = RerunBuilder()

    first, second = (reruns.of(event({"inplace": False})) for _ in range(2))

    assert first.kwargs is second.kwargs


@pytest.mark.parametrize(
    ("one", "other"),
    [(0.0, -0.0), (1, True), (1, 1.0), (None, "None"), (0, False)],
)
def test_equal_settings_with_different_reprs_are_stored_separately(one: Any, other: Any) -> None:
    reruns = RerunBuilder()
    reruns.of(event({"value": one}))

    kept = reruns.of(event({"value": other})).kwargs["value"]

    assert repr(kept) == repr(other)


def test_settings_with_a_tensor_are_stored_separately() -> None:
    reruns = RerunBuilder()
    given = [{"weight": torch.ones(2)}, {"weight": torch.ones(2)}]

    kept = [reruns.of(event(kwargs)).kwargs for kwargs in given]

    assert all(one is other for one, other in zip(kept, given, strict=True))


def test_an_op_is_replayed_with_its_autocast_state() -> None:
    x = torch.ones(2, 2)
    given = event({}, autocast=(("cpu", torch.bfloat16),))._replace(function=torch.mm)

    rerun = RerunBuilder().of(given)

    assert rerun.function(x, x).dtype is torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


def test_an_op_with_many_outputs_is_processed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Splits(nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return list(x.unbind(0))

    passed = tg.trace(Splits(), torch.ones(500, 2))
    counted = 0

    def results_of(output: object, written: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        nonlocal counted
        counted += 1
        return op_mode.results_of(output, written)

    _ = passed.record
    monkeypatch.setattr(reruns_module, "results_of", results_of)
    assert sum(tensor.numel() for tensor in passed.saved_tensors.values()) == 500 * 2 * 2 + 1000

    assert counted < 10
