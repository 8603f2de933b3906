"""What runs a model on a device leaves it and the user's settings as they were."""

from __future__ import annotations

import contextlib
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


def test_the_allocator_peak_of_the_user_is_not_reset() -> None:
    large = torch.empty(1 << 24, device="cuda:0")
    del large
    gc.collect()
    peak, reserved = (
        torch.cuda.max_memory_allocated("cuda:0"),
        torch.cuda.max_memory_reserved("cuda:0"),
    )

    tg.memory(mlp(count=2), batch()[0], optimizer="adam")

    assert 0 <= torch.cuda.max_memory_allocated("cuda:0") - peak <= 512
    assert torch.cuda.max_memory_reserved("cuda:0") >= reserved


def test_reserved_and_fragmented_memory_is_reported_by_pool() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 40, device="cuda:0")
    first = nn.Linear(1024, 1024)
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(1024, 8)).to("cuda:0")
    x = torch.randn(3, 1024).to("cuda:0")

    taken = tg.memory(model, x)

    assert taken.allocator is not None
    every, small, large = taken.allocator.pools
    assert (every.pool, small.pool, large.pool) == ("all", "small", "large")
    stats = torch.cuda.memory_stats("cuda:0")
    assert every.reserved_bytes == stats["reserved_bytes.all.current"]
    assert large.reserved_bytes == stats["reserved_bytes.large_pool.current"]
    # The weights and gradients of the second layer are small, those of the first are large.
    assert large.allocated_bytes >= 2 * first.weight.nbytes
    assert every.allocated_bytes == small.allocated_bytes + large.allocated_bytes
    assert 0 < every.requested_bytes < every.allocated_bytes <= every.peak_allocated_bytes
    assert every.split_bytes == every.reserved_bytes - every.allocated_bytes
    assert (taken.allocator.retries, taken.allocator.ooms) == (0, 0), "it failed before the step"
    text, data = str(taken), taken.to_dict()["allocator"]
    assert "is lost to fragmentation" in text
    assert "large pool:" in text
    assert "retried" not in text
    assert data["pools"][0]["reserved_bytes"] == every.reserved_bytes


def test_failed_and_repeated_allocations_of_the_step_are_counted() -> None:
    class Greedy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(torch.OutOfMemoryError):
                torch.empty(1 << 40, device=x.device)
            return x * 2

    taken = tg.memory(Greedy(), torch.ones(4, device="cuda:1"), backward=False)

    assert taken.allocator is not None
    assert (taken.allocator.retries, taken.allocator.ooms) == (1, 1)
    assert "1 allocation of the step retried with an emptied cache, 1 failed" in str(taken)


def test_allocator_statistics_exist_only_on_supported_devices() -> None:
    taken = tg.memory(mlp("cpu", 2), batch("cpu")[0])
    predicted = tg.memory(mlp(count=2), batch()[0], fake=True)

    for one in (taken, predicted):
        assert one.allocator is None
        assert one.to_dict()["allocator"] is None
        assert "Allocator" not in str(one)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adamw"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_predicted_step_takes_the_memory_of_a_measured_one(optimizer: str, device: str) -> None:
    model, (x, _) = mlp(device, 10), batch(device)

    predicted = tg.memory(model, x, optimizer=optimizer, fake=True)

    assert predicted.peak_bytes == tg.memory(model, x, optimizer=optimizer).peak_bytes


@pytest.mark.parametrize("has_float64", [True, False])
def test_an_explorer_histogram_needs_no_float64_or_default_device(
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


def test_an_offloaded_trace_has_the_values_before_in_place_ops() -> None:
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
