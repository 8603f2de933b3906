"""Times come from the device that a model is on, whichever is current."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
def test_a_profile_has_the_time_of_the_kernels(device: str) -> None:
    model, (x, _) = mlp(device, 10), batch(device)
    with slow_kernels():
        profile = tg.profile(model, x, warmup=1, repeats=2, backward=False)

    # 11 linear layers and 10 activations, one kernel each.
    assert profile.root.total_ns >= 21 * KERNEL_NS


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_a_record_has_the_time_of_the_kernels_and_not_of_our_own(device: str) -> None:
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


def test_an_inspection_has_the_time_of_the_kernels_forward_and_backward() -> None:
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


def test_a_model_on_the_host_makes_no_call_to_a_device() -> None:
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
def test_nothing_is_recorded_while_a_graph_is_captured(level: str) -> None:
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


def test_the_time_of_a_recomputation_counts_once() -> None:
    model, (x, _) = Checkpointed().to("cuda:0"), batch("cuda:0")
    with slow_kernels():
        found = tg.inspect(model, x, backward=True)

    whole = found[""].calls[0].backward
    assert whole is not None
    paths = ("", "a", "a.0", "a.1", "a.2", "b")
    parts = [call.backward for path in paths for call in found[path].calls]
    assert sum(part.self_ns for part in parts if part is not None) == whole.total_ns


def test_a_model_without_parameters_is_timed_where_its_inputs_are() -> None:
    with slow_kernels(), tg.record(model := nn.ReLU()) as recording:
        model(batch("cuda:1")[0])
        assert recording[""].totals.total_ns >= KERNEL_NS
