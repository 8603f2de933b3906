"""What a training would take elsewhere: `estimate` and `batch_size`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.architectures import LanguageModel, ResNet, UNet
from tests.command_line import main


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grown: torch.Tensor = self.down(torch.nn.functional.gelu(self.up(x)))
        return x + grown


class Stack(nn.Module):
    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_a_matmul_is_bound_by_compute_or_by_bandwidth() -> None:
    # 2 · 4096³ FLOPs at 100 TFLOP/s, and three matrices of 4096² floats at 1 TB/s.
    device = tg.Accelerator(
        name="test", memory_bytes=2**34, bandwidth=1e12, flops={"fp32": 100e12, "bf16": 1e18}
    )
    model = nn.Linear(4096, 4096, bias=False)
    x = torch.empty(4096, 4096, device="meta")
    arithmetic = tg.estimate(model, x, device=device, backward=False)
    assert arithmetic.forward_s == pytest.approx(2 * 4096**3 / 100e12)
    assert arithmetic.answer.startswith("A forward of Linear needs")
    bandwidth = tg.estimate(model, x, device=device, precision="bf16", backward=False)
    assert bandwidth.forward_s == pytest.approx(3 * 4096**2 * 2 / 1e12)
    assert bandwidth.rows[""].total.bandwidth_s == bandwidth.forward_s


def test_a_seventy_billion_parameter_model_is_estimated_on_a_laptop() -> None:
    with torch.device("meta"):
        model = Stack(width=16384, depth=32)
    planned = tg.estimate(
        model,
        torch.empty(2048, 16384, device="meta"),
        device="h100",
        precision="bf16",
        world_size=(8, 512),
    )
    parameters = sum(one.numel() for one in model.parameters())
    assert parameters > 68e9
    assert planned.memory.sizes["parameter"] == 2 * parameters
    assert planned.memory.sizes["optimizer"] == pytest.approx(4 * parameters, rel=0.001)
    # A product takes 2 FLOPs per weight and token forward, twice that backward; the gradient of
    # the input is not needed.
    assert planned.total_flops == pytest.approx(6 * parameters * 2048, rel=0.01)
    assert not planned.fits
    assert "does not fit in one H100 SXM (80.0 GB)" in str(planned)
    by_strategy = {(row.strategy, row.world_size): row for row in planned.ranks(512)}
    assert by_strategy["fsdp", 512].optimizer_bytes == -(-planned.memory.sizes["optimizer"] // 512)
    assert by_strategy["ddp", 512].parameter_bytes == 2 * parameters


def test_mixed_precision_keeps_float32_weights_and_computes_in_half() -> None:
    model, x = Stack(), torch.randn(32, 64)
    plain = tg.estimate(model, x, device="a100")
    mixed = tg.estimate(model, x, device="a100", precision="bf16-mixed")
    half = tg.estimate(model, x, device="a100", precision="bf16")
    assert (plain.precision, mixed.precision) == ("fp32", "bf16")
    assert mixed.memory.sizes["parameter"] == plain.memory.sizes["parameter"]
    assert half.memory.sizes["parameter"] * 2 == plain.memory.sizes["parameter"]
    assert plain.total_flops == mixed.total_flops == half.total_flops
    assert all(one.dtype == torch.float32 for one in model.parameters())


def test_checkpointing_trades_memory_for_arithmetic() -> None:
    model, x = Stack(depth=8), torch.randn(512, 64)
    plain = tg.estimate(model, x, device="a100")
    less = tg.estimate(model, x, device="a100", checkpoint=True)
    assert less.memory.peak_bytes < plain.memory.peak_bytes
    assert plain.total_flops < less.total_flops <= plain.total_flops * 4 / 3
    with pytest.raises(tg.TorchglassError, match="no repeated blocks"):
        tg.estimate(nn.Linear(2, 2), torch.ones(1, 2), checkpoint=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "abacus"}, "'abacus' is not a known accelerator"),
        ({"device": "t4", "precision": "bf16"}, "T4 has no rate for bf16; it has fp32, fp16"),
        ({"precision": "int3"}, "precision must be one of fp32"),
        ({"world_size": 0}, "world_size must be 1 or more"),
    ],
)
def test_invalid_arguments_list_the_valid_ones(options: Any, message: str) -> None:
    with pytest.raises(tg.TorchglassError, match=message):
        tg.estimate(nn.Linear(2, 2), torch.ones(1, 2), **options)


@pytest.mark.parametrize("optimizer", [pytest.param("sgd", marks=pytest.mark.slow), "adamw"])
def test_the_largest_batch_matches_the_memory_estimate(optimizer: str) -> None:
    model = Stack(depth=2)
    found = tg.batch_size(
        model, torch.randn(4, 64), memory="4MB", optimizer=optimizer, margin=0, check=False
    )

    def peak(batch: int) -> int:
        return tg.memory(model, torch.randn(batch, 64), optimizer=optimizer, fake=True).peak_bytes

    assert peak(found.batch) <= 4 * 2**20
    over = min(one.batch for one in found.trials if not one.fits)
    assert peak(over) > 4 * 2**20
    assert over - found.batch <= max(1, found.batch // 64)


@pytest.mark.slow
def test_a_prediction_is_within_two_percent_of_a_real_step() -> None:
    found = tg.batch_size(Stack(depth=6), torch.randn(8, 64), memory="64MB")
    assert found.check is not None
    assert found.check.batch == found.batch
    assert abs(found.check.error) < 0.02
    assert f"Batch size {found.batch:,} fits in 64.0 MB" in str(found)
    assert found.checkpointed_batch > found.batch
    assert 1 < found.recompute_cost <= 4 / 3


@pytest.mark.parametrize(
    ("make", "sample", "optimizer"),
    [
        pytest.param(lambda: Stack(depth=4), torch.randn(8, 64), "adamw", id="mlp"),
        pytest.param(
            lambda: ResNet((2, 1), 8),
            torch.randn(2, 3, 32, 32),
            "adam",
            id="resnet",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda: UNet(4, 2),
            torch.randn(2, 3, 32, 32),
            "adamw",
            id="unet",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda: LanguageModel(2, 64), torch.zeros(2, 32, dtype=torch.long), "sgd", id="gpt"
        ),
        pytest.param(
            lambda: LanguageModel(1, 64, experts=4),
            torch.zeros(2, 32, dtype=torch.long),
            "adamw",
            id="mixture",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda: nn.Sequential(
                nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
            ),
            torch.randn(2, 3, 32, 32),
            "adagrad",
            id="convolution",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda: nn.TransformerEncoderLayer(64, 4, 256, batch_first=True),
            torch.randn(2, 32, 64),
            "rmsprop",
            id="encoder",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_predicted_peak_is_within_two_percent_of_the_allocator_peak(
    make: Callable[[], nn.Module], sample: torch.Tensor, optimizer: str
) -> None:
    torch.manual_seed(0)
    found = tg.batch_size(make(), sample, memory="24MB", optimizer=optimizer)
    # The step that checks is larger than those that the prediction has seen.
    assert found.check is not None
    assert found.check.batch > max(found.real_batches)
    assert abs(found.check.error) < 0.02, f"{found.check.error:+.2%}"


def test_a_model_that_does_not_fit_reports_what_is_too_large() -> None:
    found = tg.batch_size(Stack(), torch.randn(4, 64), memory="1MB")
    assert found.batch == 0
    assert "does not fit in 1.0 MB: batch size 1 takes" in found.answer
    assert "are weights and optimizer state" in found.answer


def test_only_inputs_with_the_batch_dimension_are_scaled() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            scaled: torch.Tensor = self.inner(x)
            return scaled * mask

    sample = {"x": torch.randn(4, 16), "mask": torch.ones(16)}
    found = tg.batch_size(Masked(), sample, memory="1MB", optimizer=None)
    assert found.batch > 4


def test_planning_does_not_change_the_model() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    tg.estimate(model, torch.randn(4, 8, generator=torch.Generator()), device="a100")
    tg.batch_size(model, torch.ones(4, 8), memory="1MB")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())


@pytest.mark.slow
def test_the_gpu_allocator_reserves_more_than_the_tensors() -> None:
    found = tg.batch_size(Stack(), torch.randn(4, 64), memory="t4", check=False)
    largest = max((one for one in found.trials if one.fits), key=lambda one: one.batch)
    assert largest.reserved_bytes is not None
    assert largest.reserved_bytes >= largest.peak_bytes
    assert largest.reserved_bytes % 2**21 == 0


@pytest.fixture
def net(tmp_path: Path) -> Path:
    file = tmp_path / "net.py"
    file.write_text(
        "from torch import nn\n"
        "def Net():\n"
        "    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))\n"
    )
    return file


def test_the_commands_print_the_answer_first_and_write_json(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [f"{net}:Net", "--input", "8x16"]
    assert main(["estimate", *model, "--device", "h100"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("A training step of Sequential needs")
    assert "H100 SXM" in printed
    assert main(["batch-size", *model, "--memory", "1MB"]) == 0
    assert capsys.readouterr().out.startswith("Batch size ")
    assert main(["batch-size", *model, "--memory", "1MB", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["batch"] > 8
    assert main(["batch-size", *model, "--memory", "lots"]) == 2
    assert "'lots' is not a size of memory. Use 24GB" in capsys.readouterr().err


def test_a_model_too_large_for_memory_is_created_without_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = tmp_path / "net.py"
    net.write_text(
        "from torch import nn\ndef huge():\n    return nn.Linear(10**6, 10**6)\n", encoding="utf-8"
    )
    main(["estimate", f"{net}:huge", "--fake", "--input", "8x1000000", "--device", "h100"])
    printed = capsys.readouterr().out
    assert "does not fit in one H100 SXM" in printed
    assert "NVIDIA H100 Tensor Core GPU data sheet" in printed
