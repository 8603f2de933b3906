"""Times come from the device that a model is on, whichever is current."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.device import simulated_cuda
from tests.device.counter import DeviceCounter
from tests.device.test_watch import Checkpointed, Split, capturing
from tests.device.verbs import batch, mlp, train_step

KERNEL_NS = 100_000


@contextlib.contextmanager
def slow_kernels(nanoseconds: int = KERNEL_NS) -> Iterator[None]:
    """Every kernel takes so long."""
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    simulated_cuda.device.set_kernel_ns(nanoseconds)
    try:
        yield
    finally:
        simulated_cuda.device.set_kernel_ns(0)
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_a_profile_has_kernel_times(device: str) -> None:
    model, (x, _) = mlp(device, 10), batch(device)
    with slow_kernels():
        profile = tg.profile(model, x, warmup=1, repeats=2, backward=False)

    # 11 linear layers and 10 activations, one kernel each.
    assert profile.root.total_ns >= 21 * KERNEL_NS


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_a_recording_has_kernel_times_without_our_own_kernels(device: str) -> None:
    model, (x, _) = mlp(device, 10), batch(device)
    long = 50 * KERNEL_NS
    with slow_kernels(long), torch.no_grad(), tg.record(model) as recording:
        for _ in range(200):
            # The device is a second behind, so that its timeline is exact on a busy machine.
            x.add(1)
        model(x)
        total = recording[""].totals.total_ns

    # Reading a tensor is a kernel, too: it is in no time.
    assert recording["18"].totals.total_ns == long
    assert total == 21 * long


def test_an_inspection_has_kernel_times_forward_and_backward() -> None:
    model, (x, _) = mlp("cuda:1", 10), batch("cuda:1")
    with slow_kernels():
        found = tg.inspect(model, x, backward=True)

    call = found["0"].calls[0]
    assert call.forward is not None
    assert call.backward is not None
    assert call.forward.total_ns >= KERNEL_NS
    assert call.backward.total_ns >= KERNEL_NS


def test_a_split_model_is_recorded_and_inspected_on_both_devices() -> None:
    model, (x, _) = Split(), batch("cuda:0")
    with slow_kernels():
        with torch.no_grad(), tg.record(model) as recording:
            model(x)
            times = [recording[path].totals.total_ns for path in ("a", "b")]
        found = tg.inspect(model, x, backward=True)

    assert min(times) >= 3 * KERNEL_NS
    backwards = [found[path].calls[0].backward for path in ("a.0", "b.0")]
    assert all(one is not None and one.total_ns >= KERNEL_NS for one in backwards)


def times_of(profile: Any, path: str) -> list[int]:
    """The times of a module in the forward and the backward."""
    return [stage.total_ns for stage in profile[path].stages]


def test_a_profile_of_a_split_model_has_the_times_of_both_devices() -> None:
    model, (x, _) = Split(), batch("cuda:0")
    long = 100 * KERNEL_NS
    with slow_kernels(long):
        profile = tg.profile(model, x, warmup=1, repeats=2)

    assert profile.timing.clock == "cuda:0 and cuda:1"
    assert "on cuda:0 and cuda:1" in str(profile)
    a, b, whole = (times_of(profile, path) for path in ("a", "b", ""))
    # Three kernels, and in the backward at least as many. The host, which may be interrupted, says
    # how far the clocks of the devices are apart.
    assert min(*a, *b) >= 2 * long
    # The second half waits for the first, so that the whole is both together.
    assert whole[0] >= a[0] + b[0]
    every = [*profile.rows.values(), profile.unattributed]
    assert all(row.self_ns >= 0 for row in every)
    assert sum(row.self_ns for row in every) == profile.root.total_ns


def test_flops_of_a_split_model_are_timed_on_both_devices() -> None:
    model, (x, _) = Split(), batch("cuda:0")
    with slow_kernels(100 * KERNEL_NS):
        timed = tg.flops(model, x, timed=True)

    for path in ("a", "b"):
        time_ns = timed.time_ns(timed[path])
        assert time_ns is not None
        assert time_ns >= 200 * KERNEL_NS


class Forked(nn.Module):
    """One half runs on a side stream while the other runs on the main one."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        self.b = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        self.side: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.side = self.side or torch.cuda.Stream(x.device)  # type: ignore[no-untyped-call]
        main = torch.cuda.current_stream(x.device)
        self.side.wait_stream(main)
        with torch.cuda.stream(self.side):
            one: torch.Tensor = self.a(x)
        other: torch.Tensor = self.b(x)
        main.wait_stream(self.side)
        one.record_stream(main)
        return one + other


@pytest.mark.parametrize("backward", [False, True])
def test_overlapping_work_on_two_streams_is_counted_once(backward: bool) -> None:
    model, (x, _) = Forked().to("cuda:1"), batch("cuda:1")
    long = 50 * KERNEL_NS
    with slow_kernels(long):
        profile = tg.profile(model, x, warmup=1, repeats=2, backward=backward)

    assert times_of(profile, "a")[0] >= 4 * long
    every = [*profile.rows.values(), profile.unattributed]
    assert all(row.self_ns >= 0 for row in every)
    assert sum(row.self_ns for row in every) == profile.root.total_ns
    # One after the other they would take 8 kernels and the sum.
    assert 5 * long <= times_of(profile, "")[0] < 9 * long


def test_a_cpu_model_makes_no_device_call() -> None:
    model, (x, y) = mlp("cpu", 10), batch("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with DeviceCounter() as seen:
        with tg.record(model):
            model(x)
        tg.inspect(model, x, backward=True)
        tg.trace(model, x)
        tg.profile(model, x, warmup=1, repeats=1)
        with tg.guard(model), tg.watch(model, save=None, verbose=False):
            train_step(model, optimizer, x, y)
    assert (seen.waits, seen.launches, seen.copies, seen.events) == (0, 0, 0, 0)


@pytest.mark.parametrize("level", ["shapes", "cheap", "full"])
def test_nothing_is_recorded_during_graph_capture(level: str) -> None:
    model, (x, _) = mlp(count=5), batch()
    with DeviceCounter() as plain, torch.no_grad():
        model(x)
    with tg.record(model, level=level) as recording, torch.no_grad():  # type: ignore[arg-type]
        with DeviceCounter() as seen, capturing():
            model(x)
        assert len(recording["0"]) == 1
    assert not seen.forbidden
    assert seen.launches == plain.launches
    with DeviceCounter() as seen, tg.InspectorGadgets(model), capturing():
        model(x).sum().backward()
    assert not seen.forbidden


def test_recomputation_time_is_counted_once() -> None:
    model, (x, _) = Checkpointed().to("cuda:0"), batch("cuda:0")
    with slow_kernels():
        found = tg.inspect(model, x, backward=True)

    whole = found[""].calls[0].backward
    assert whole is not None
    paths = ("", "a", "a.0", "a.1", "a.2", "b")
    parts = [call.backward for path in paths for call in found[path].calls]
    assert sum(part.self_ns for part in parts if part is not None) == whole.total_ns


def test_a_model_without_parameters_is_timed_on_the_device_of_its_inputs() -> None:
    with slow_kernels(), tg.record(model := nn.ReLU()) as recording:
        model(batch("cuda:1")[0])
        assert recording[""].totals.total_ns >= KERNEL_NS
