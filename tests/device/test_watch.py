"""A training on a device is watched as one on the host, and does not wait for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchglass as tg
from tests.device import simulated_cuda
from tests.device.counter import DeviceCounter
from tests.device.verbs import ALL_KINDS, batch, mlp, train_step
from torchglass.results.run import SavedRun

Step = Callable[[], torch.Tensor]


@contextlib.contextmanager
def without_float64() -> Iterator[None]:
    """A device like MPS."""
    from torchglass.capture.tensor.device_reads import wide_dtype

    wide_dtype.cache_clear()
    simulated_cuda.device.set_without_float64(True)
    try:
        yield
    finally:
        simulated_cuda.device.set_without_float64(False)
        wide_dtype.cache_clear()


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """A CUDA graph is captured in the block."""
    simulated_cuda.device.set_capturing(True)
    try:
        yield
    finally:
        simulated_cuda.device.set_capturing(False)


def watched(path: Path, model: nn.Module, step: Step, *, steps: int = 3) -> SavedRun:
    with tg.watch(model, log=ALL_KINDS, save=path, verbose=False) as watcher:
        for _ in range(steps):
            watcher.log("loss", step())
            # On a busy machine, the idle thread would write a step in two parts.
            watcher._idle.stop()
    return tg.open(path)


def mlp_run(path: Path, device: str, y_device: str = "") -> SavedRun:
    model, (x, y) = mlp(device, 5), batch(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return watched(path, model, lambda: train_step(model, optimizer, x, y.to(y_device or device)))


def assert_same_values(one: SavedRun, other: SavedRun, *, rel: float = 1e-5) -> None:
    """The same series, and in them the same statistics."""
    names = {str(series) for series in one.series}
    assert {str(series) for series in other.series} == names
    for series in one.series:
        ours, theirs = one[series], other[series]
        if "time" in str(series):
            continue
        # A mean near zero is as exact as the values that cancel out in it.
        ends = [ours.column(field) for field in ("min", "max") if field in ours.fields]
        near = rel * max((abs(value) for end in ends for value in end), default=0.0)
        for field in ours.fields:
            assert list(theirs.column(field)) == pytest.approx(
                list(ours.column(field)), rel=rel, abs=near, nan_ok=True
            ), f"{series} {field}"


def test_a_device_records_the_same_series_and_values_as_the_host(tmp_path: Path) -> None:
    on_host = mlp_run(tmp_path / "host.glass", "cpu")
    on_device = mlp_run(tmp_path / "device.glass", "cuda:1")

    assert len(list(on_device.series)) > 200
    assert_same_values(on_host, on_device)


def test_watched_training_ends_with_the_same_weights() -> None:
    weights = []
    for is_watched in (False, True):
        model, (x, y) = mlp(count=5), batch()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        watching = (
            tg.watch(model, log=ALL_KINDS, verbose=False, save=None)
            if is_watched
            else contextlib.nullcontext()
        )
        with watching:
            for _ in range(5):
                train_step(model, optimizer, x, y)
        weights.append([parameter.cpu() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


def test_a_logged_step_waits_once_and_a_forward_never(tmp_path: Path) -> None:
    model, (x, y) = mlp(count=5), batch()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with tg.watch(model, log=ALL_KINDS, save=tmp_path / "run.glass", verbose=False) as watcher:
        for _ in range(6):
            optimizer.zero_grad()
            with DeviceCounter() as forward:
                loss = (model(x) - y).square().mean()
                loss.backward()
            with DeviceCounter() as rest:
                optimizer.step()
                for number in range(10):
                    watcher.log(f"number {number}", loss * number)
            assert (forward.waits, rest.waits) == (0, 1)


def test_the_values_of_a_step_are_available_one_step_later(tmp_path: Path) -> None:
    model, (x, y) = mlp(count=5), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    path = tmp_path / "run.glass"
    with tg.watch(model, save=path, verbose=False) as watcher:
        for number in range(4):
            watcher.log("loss", train_step(model, optimizer, x, y))
            torch.cuda.synchronize()
            watcher._idle.stop()
            if number >= 2:
                assert number - 2 in tg.open(path)["loss"].steps


def test_a_step_does_not_wait_for_a_device_that_is_far_behind(tmp_path: Path) -> None:
    model, (x, y) = mlp(count=5), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.cuda.synchronize()
    simulated_cuda.device.set_kernel_ns(20_000)
    try:
        with tg.watch(model, log_freq=1000, save=tmp_path / "run.glass", verbose=False) as watcher:
            train_step(model, optimizer, x, y)
            with DeviceCounter() as seen:
                for _ in range(4):
                    watcher.log("loss", train_step(model, optimizer, x, y))
            assert seen.waits == 0
    finally:
        simulated_cuda.device.set_kernel_ns(0)
    assert len(tg.open(tmp_path / "run.glass")["loss"].steps) == 4


class Split(nn.Module):
    """The first half on one device, the second on another."""

    def __init__(self, first: str = "cuda:0", second: str = "cuda:1") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).to(first)
        self.b = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).to(second)
        self.second = second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.b(self.a(x).to(self.second))
        return result


def test_a_model_split_over_two_devices_has_all_series(tmp_path: Path) -> None:
    runs = []
    for first, second in (("cpu", "cpu"), ("cuda:0", "cuda:1")):
        model, (x, y) = Split(first, second), batch("cpu")
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        step = partial(train_step, model, optimizer, x.to(first), y.to(second))
        runs.append(watched(tmp_path / f"{first[:3]}.glass", model, step))
    assert_same_values(*runs)


class Checkpointed(nn.Module):
    """Its first part is recomputed in the backward, in a thread of autograd."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
        self.b = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.a, x.requires_grad_(), use_reentrant=True)
        result: torch.Tensor = self.b(hidden)
        return result


def test_checkpoint_recomputation_in_another_thread_has_all_series(tmp_path: Path) -> None:
    runs = []
    for device in ("cpu", "cuda:0"):
        model, (x, y) = Checkpointed().to(device), batch(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        step = partial(train_step, model, optimizer, x, y)
        runs.append(watched(tmp_path / f"{device[:3]}.glass", model, step))
    assert "a.0.output.grad" in {str(series) for series in runs[1].series}
    assert_same_values(*runs)


def test_checkpoint_recomputation_is_recorded_inspected_and_counted() -> None:
    found = []
    for device in ("cpu", "cuda:0"):
        model, (x, _) = Checkpointed().to(device), batch(device)
        with tg.record(model) as recording:
            model(x).sum().backward()
        inspected = tg.inspect(model, x, backward=True)
        gradients = any(call.output_gradients for call in inspected["a.0"].calls)
        flops = tg.flops(model, x, backward=True)
        found.append((len(recording["a.0"]), gradients, flops.recomputed_flops))
    assert found[0] == found[1]
    assert found[1][1]
    assert found[1][2] > 0


def test_training_on_a_side_stream_has_no_race(tmp_path: Path) -> None:
    (x, y), model = batch(), mlp(count=5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.cuda.synchronize()
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with (
        tg.watch(model, log=ALL_KINDS, save=tmp_path / "run.glass", verbose=False) as watcher,
        DeviceCounter() as seen,
    ):
        with torch.cuda.stream(side):
            for _ in range(3):
                watcher.log("loss", train_step(model, optimizer, x, y))
        # The idle thread writes the last step.
        watcher._write_if_idle()
        torch.cuda.synchronize()
    assert not seen.races
    assert_same_values(mlp_run(tmp_path / "main.glass", "cuda:0"), tg.open(tmp_path / "run.glass"))


@pytest.mark.parametrize("kinds", [ALL_KINDS, ("updates",), ("activations",), ("optimizer",)])
def test_no_device_call_is_made_during_graph_capture(
    tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    model, (x, y) = mlp(count=5), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
    train_step(model, optimizer, x, y)
    with DeviceCounter() as plain:
        train_step(model, optimizer, x, y)
    with tg.watch(model, log=kinds, save=tmp_path / "run.glass", verbose=False) as watcher:
        watcher.log("loss", train_step(model, optimizer, x, y))
        watcher._idle.stop()
        with DeviceCounter() as seen, capturing():
            loss = train_step(model, optimizer, x, y)
            watcher.log("loss", loss)
        assert not seen.forbidden
        assert seen.launches == plain.launches
        watcher.log("loss", train_step(model, optimizer, x, y))
    assert len(tg.open(tmp_path / "run.glass")["loss"].steps) == 2


def test_a_device_without_float64_has_the_same_values(tmp_path: Path) -> None:
    on_host = mlp_run(tmp_path / "host.glass", "cpu")
    with without_float64():
        on_device = mlp_run(tmp_path / "device.glass", "cuda:0")

    assert_same_values(on_host, on_device, rel=1e-4)


def test_a_default_device_and_deterministic_algorithms_do_not_change_results(
    tmp_path: Path,
) -> None:
    on_host = mlp_run(tmp_path / "host.glass", "cpu")
    torch.set_default_device("cuda:0")
    torch.use_deterministic_algorithms(True)
    try:
        on_device = mlp_run(tmp_path / "device.glass", "cuda:0")
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_default_device(None)

    assert_same_values(on_host, on_device)


def test_gradients_are_unscaled_without_a_wait(tmp_path: Path) -> None:
    gradients = []
    for scale in (1.0, 1024.0):
        model, (x, y) = mlp(count=5), batch()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cuda", init_scale=scale)
        path = tmp_path / f"{scale}.glass"
        with tg.watch(model, save=path, verbose=False, scaler=scaler):
            for _ in range(3):
                optimizer.zero_grad()
                with DeviceCounter() as seen:
                    loss = (model(x) - y).square().mean()
                    scaler.scale(loss).backward()
                assert seen.waits == 0
                scaler.step(optimizer)
                scaler.update()
        run = tg.open(path)
        gradients.append(list(run["0.output.grad"].column("std")))
        if scale != 1:
            assert list(run["grad_scale"].column("value")) == [scale] * 3
    assert gradients[1] == pytest.approx(gradients[0], rel=1e-3)
