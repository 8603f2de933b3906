"""Someone wants to know where the time of a training step goes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchglass as tg
from torchglass import errors, profile, summary


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.conv(x)).mean((2, 3))
        for block in self.blocks:
            x = x + block(x)
        logits: torch.Tensor = self.head(x)
        return logits


@pytest.fixture(scope="module")
def taken() -> Any:
    targets = torch.zeros(2, dtype=torch.long)
    return profile(
        Net(),
        torch.randn(2, 3, 16, 16),
        loss=lambda logits: functional.cross_entropy(logits, targets),
        warmup=1,
        repeats=3,
    )


def test_the_times_of_modules_and_ops_add_up(taken: Any) -> None:
    every = [*taken.rows.values(), taken.unattributed]

    assert list(taken.rows) == ["", "conv", "blocks.0", "blocks.1", "head", "blocks"]
    assert sum(row.self_ns for row in every) == taken.root.total_ns
    assert sum(op.self_ns for op in taken.ops) == taken.root.total_ns
    assert {op.op for op in taken.ops if op.path == ""} >= {"relu", "mean", "add"}
    for row in taken.rows.values():
        assert row.forward is not None
        assert row.backward is not None
        assert row.forward.total_ns > 0
        assert row.backward.total_ns > 0


def test_the_printed_profile_has_a_line_for_each_module(taken: Any) -> None:
    lines = str(taken).splitlines()

    assert any("├─ conv" in line and "2×8×14×14" in line for line in lines)
    assert any("└─ unattributed" in line for line in lines)
    assert repr(taken) == str(taken)


def test_the_overlay_matches_the_first_specification(taken: Any) -> None:
    overlay = taken.overlay("conv")

    assert overlay.startswith("conv ")
    assert "Shape: 8×3×3×3" in overlay
    assert "Input: 2×3×16×16   Output: 2×8×14×14" in overlay
    assert "Parameters: 224 × 4 bytes" in overlay


def test_a_profile_is_saved_as_a_chrome_trace_and_as_json(taken: Any, tmp_path: Path) -> None:
    trace = taken.to_chrome_trace(tmp_path / "run.json")
    taken.to_json(tmp_path / "profile.json")

    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["name"] for event in events}
    plain = json.loads((tmp_path / "profile.json").read_text())
    assert {"forward", "loss", "backward", "conv", "conv2d", "ConvolutionBackward0"} <= names
    assert plain["total_ns"] == taken.root.total_ns
    assert plain["modules"][0]["forward"]["share"] == 1


def test_inference_is_timed_without_gradients() -> None:
    taken = profile(Net().eval(), torch.randn(1, 3, 8, 8), backward=False, warmup=0, repeats=1)

    assert taken.root.backward is None
    assert "Backward" not in str(taken)


def test_ops_false_times_only_modules() -> None:
    taken = profile(Net(), torch.randn(1, 3, 8, 8), ops=False, warmup=0, repeats=1)

    assert {op.op for op in taken.ops if op.forward} == {""}
    assert any(op.op == "ConvolutionBackward0" for op in taken.ops)


def test_a_loss_that_is_not_a_tensor_is_refused_with_its_type() -> None:
    with pytest.raises(errors.CaptureError, match="loss must return a tensor, not float"):
        profile(nn.Linear(2, 2), torch.ones(1, 2), loss=lambda output: output.sum().item())


def test_a_function_without_modules_is_timed_as_a_whole() -> None:
    def total(x: torch.Tensor) -> torch.Tensor:
        return x.sum()

    taken = profile(total, torch.randn(3, 4), warmup=0, repeats=1, backward=False)

    assert list(taken.rows) == [""]
    assert taken.model.name == "total"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 0}, "repeats must be 1 or more, not 0"),
        ({"repeats": "3"}, "repeats must be 1 or more, not '3'"),
        ({"warmup": -1}, "warmup must be 0 or more, not -1"),
    ],
)
def test_an_invalid_number_of_repeats_is_refused_by_name(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.CaptureError, match=message):
        profile(nn.ReLU(), torch.ones(2), **options)


@pytest.mark.parametrize("ops", [True, False])
def test_ops_false_is_suggested_only_when_ops_are_measured(ops: bool) -> None:
    taken = profile(nn.ReLU(), torch.ones(2), repeats=1, ops=ops)
    timing = dataclasses.replace(taken.timing, plain_cpu_ns=(1,))

    disturbed = type(taken)(taken.model, taken.calls, timing)

    assert ("ops=False" in str(disturbed)) == ops


def test_the_overlay_and_the_summary_count_the_same_memory() -> None:
    model = nn.Sequential(nn.BatchNorm2d(64), nn.Conv2d(64, 2, 1)).eval()

    overlay = profile(model, torch.ones(1, 64, 4, 4), repeats=1).overlay("0")

    assert "Mem: 1.0 KB" in overlay
    assert "Parameters: 128 × 4 bytes   Buffers: 520 B" in overlay
    assert "1.0 KB" in str(summary(model))


def test_long_tables_stop_at_a_depth_and_say_how_to_see_all() -> None:
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU())) for _ in range(40))
    )
    x = torch.ones(2, 4)

    for result in (tg.profile(model, x, repeats=1), tg.flops(model, x), tg.memory(model, x)):
        shown = str(result)
        every = result.table(depth=3)
        assert "rows; depth=3 (--depth 3) shows all" in shown
        assert "─ 39 " in shown
        assert len(shown.splitlines()) < 80 < 160 < len(every.splitlines())
        assert "rows; depth" not in every
    inspected = tg.inspect(model, x)
    assert "41 of 161 rows; depth=3 (--depth 3) shows all" in str(inspected)
    assert "rows; depth" not in inspected.table(depth=3)


def test_a_flat_model_of_many_modules_shows_the_first_hundred_rows() -> None:
    model = nn.Sequential(*(nn.ReLU() for _ in range(150)))

    assert "100 of 151 rows; depth=1 (--depth 1) shows all" in str(tg.flops(model, torch.ones(2)))
