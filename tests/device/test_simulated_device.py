"""The simulated device does what a GPU does: late, counted, and forbidden while capturing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.device import simulated_cuda
from tests.device.counter import DeviceCounter


def test_reading_a_value_synchronizes_the_host_once() -> None:
    x = torch.ones(4, device="cuda:1")
    with DeviceCounter() as seen:
        assert x.sum().item() == 4
    assert seen.others == {"read a value": 1}
    assert seen.launches == 1


def test_a_copy_into_pinned_memory_arrives_when_its_event_is_reached() -> None:
    x, to = torch.arange(4.0, device="cuda:0"), torch.zeros(4, pin_memory=True)
    with DeviceCounter() as seen:
        to.copy_(x, non_blocking=True)
        event = torch.Event("cuda")
        event.record()
    assert not torch.equal(to, torch.arange(4.0))
    assert not seen.others
    event.synchronize()
    assert torch.equal(to, torch.arange(4.0))


def test_pinned_memory_may_be_freed_before_its_copies_arrive() -> None:
    x = torch.arange(4096.0, device="cuda:0")
    for _ in range(100):
        to = torch.zeros(4096, pin_memory=True)
        to.copy_(x, non_blocking=True)
        del to
    others = [torch.zeros(4096) for _ in range(100)]
    torch.cuda.synchronize()
    assert not any(other.any() for other in others)


def test_synchronizing_during_graph_capture_is_an_error() -> None:
    x = torch.ones(4, device="cuda:0")
    simulated_cuda.device.set_capturing(True)
    try:
        with DeviceCounter() as seen, pytest.raises(RuntimeError, match="capturing"):
            x.sum().item()
    finally:
        simulated_cuda.device.set_capturing(False)
    assert seen.forbidden.total() == 1


def test_two_unsynchronized_streams_race() -> None:
    x = torch.ones(4, device="cuda:0")
    side: Any = torch.Stream("cuda:0")
    with DeviceCounter() as seen:
        x.add_(1)
        with torch.cuda.stream(side):
            x.sum()
    assert any("may still write" in race for race in seen.races)
    torch.cuda.synchronize()


def test_a_backward_runs_in_an_autograd_thread_with_the_same_gradient() -> None:
    def gradient(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        layer = torch.nn.Linear(5, 3).to(device)
        layer(torch.ones(2, 5).to(device)).square().sum().backward()
        assert layer.weight.grad is not None
        return layer.weight.grad.cpu()

    assert torch.equal(gradient("cuda:0"), gradient("cpu"))


def test_a_copy_between_devices_synchronizes_both() -> None:
    x = torch.ones(4, device="cuda:0")
    torch.cuda.synchronize("cuda:0")
    torch.cuda.synchronize("cuda:1")
    with DeviceCounter() as seen:
        y = x.add(1).to("cuda:1")
        x.add_(y.mul(2).to("cuda:0"))
    assert not seen.races
    assert x.tolist() == [5.0] * 4


def test_a_device_draws_from_its_own_random_state() -> None:
    torch.manual_seed(0)
    own, host = torch.cuda.get_rng_state("cuda:1"), torch.get_rng_state()
    x = torch.ones(100, device="cuda:1")
    first = torch.nn.functional.dropout(x)
    assert torch.equal(torch.get_rng_state(), host)
    torch.cuda.set_rng_state(own, "cuda:1")
    assert torch.equal(torch.nn.functional.dropout(x), first)
    assert not torch.equal(torch.nn.functional.dropout(x), first)
