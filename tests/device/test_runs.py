"""What runs a model on a device leaves it and the user's settings as they were."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.device.counter import DeviceCounter
from tests.device.test_watch import Split, without_float64
from tests.device.verbs import batch, mlp
from torchglass.capture.attributes import measure_all, spread


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "cuda:1"])
def test_a_trace_with_random_ops_is_replayed_to_the_bit(device: str) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(), nn.Linear(64, 4)).to(device)

    found = tg.trace(model, batch(device)[0]).validate()

    assert not found.differing


def test_the_users_peak_of_the_allocator_stays() -> None:
    large = torch.empty(1 << 24, device="cuda:0")
    del large
    gc.collect()
    peak = torch.cuda.max_memory_allocated("cuda:0")

    tg.memory(mlp(count=2), batch()[0], optimizer="adam")

    assert 0 <= torch.cuda.max_memory_allocated("cuda:0") - peak <= 512


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adamw"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_predicted_step_takes_what_a_measured_one_takes(optimizer: str, device: str) -> None:
    model, (x, _) = mlp(device, 10), batch(device)

    predicted = tg.memory(model, x, optimizer=optimizer, fake=True)

    assert predicted.peak_bytes == tg.memory(model, x, optimizer=optimizer).peak_bytes


@pytest.mark.parametrize("has_float64", [True, False])
def test_a_histogram_of_the_explorer_needs_no_float64_and_no_default_device(
    has_float64: bool,
) -> None:
    tensor = torch.arange(100.0, device="cuda:0")
    torch.set_default_device("cuda:1")
    torch.use_deterministic_algorithms(True)
    try:
        if has_float64:
            stats = measure_all(tensor, lambda share: True)
            assert stats is not None
            found = spread(tensor, stats, 10, lambda share: True)
        else:
            with without_float64():
                stats = measure_all(tensor, lambda share: True)
                assert stats is not None
                found = spread(tensor, stats, 10, lambda share: True)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_default_device(None)
    assert found is not None
    assert found.counts == (10,) * 10


def test_a_model_on_two_devices_is_traced_counted_and_drawn(tmp_path: Path) -> None:
    model, (x, _) = Split(), batch("cuda:0")

    assert not tg.trace(model, x).validate().differing
    assert tg.flops(model, x, backward=True).forward_flops > 0
    assert tg.memory(model, x).peak_bytes > 0
    assert "Linear" in str(tg.summary(model, x))
    tg.trace(model, x).draw(tmp_path / "drawing.svg")


def tensor_of(trace: Any, label: str) -> torch.Tensor:
    found: torch.Tensor | None = trace[label].tensor
    assert found is not None
    return found


def test_an_offloaded_trace_takes_no_device_memory_and_does_not_wait() -> None:
    model, (x, _) = mlp(), batch()
    with torch.no_grad():
        expected = tg.trace(model, x)
        gc.collect()
        before = torch.cuda.memory_allocated("cuda:0")
        kept = tg.trace(model, x)
        on_device = torch.cuda.memory_allocated("cuda:0") - before
        del kept
        gc.collect()
        with DeviceCounter() as seen:
            trace = tg.trace(model, x, offload=True)
            on_host = torch.cuda.memory_allocated("cuda:0") - before
        assert seen.waits == 0
    # The output of the model is the caller's.
    assert on_device > 50 * x.nbytes
    assert on_host <= 2 * trace.output.nbytes + 512
    for ours, op in zip(trace.layer_labels, expected.layer_labels, strict=True):
        tensor = tensor_of(trace, ours)
        assert tensor.is_cpu
        assert torch.equal(tensor, tensor_of(expected, op).cpu())


def test_an_offloaded_trace_has_tensors_from_before_they_were_overwritten() -> None:
    class InPlace(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            return y.mul_(3)

    for device in ("cpu", "cuda:0"):
        trace = tg.trace(InPlace(), torch.ones(3, device=device), offload=True)
        assert tensor_of(trace, "add_1_1").tolist() == [2.0] * 3
        assert tensor_of(trace, "mul_1_2").tolist() == [6.0] * 3
    history = tg.log_forward_pass(mlp(count=2), batch()[0], output_device="cpu")
    assert all(tensor_of(history, label).is_cpu for label in history.layer_labels)
