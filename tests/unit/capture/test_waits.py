"""How often each verb reads a value of a tensor, if the host is taken for a device.

`make device` counts real waits on a simulated device, which must be built. Here the same code runs
on the host: every tensor counts as one on a device, and each read of a value from torchglass is
counted. The number must not grow with the number of layers.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
import torchglass.capture.guard.guard
import torchglass.capture.observe.recorder
import torchglass.capture.watch.watcher
from torchglass.capture.tensor import device_reads

READS = ("item", "tolist", "cpu", "nonzero", "__bool__", "__float__", "__int__", "__index__")
ALL_KINDS = (
    *("io", "io_grad", "params", "params_grad"),
    *("stats", "updates", "activations", "optimizer"),
)
PACKAGE = str(Path("torchglass", "capture"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts reads of values, by the line of torchglass."""
    found: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(torch.Tensor, name)

        def read(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            line = _line_of_ours()
            if line is not None:
                found[f"{line} {name}"] += 1
            return original(self, *args, **kwargs)

        return read

    def is_remote(tensor: torch.Tensor) -> bool:
        return not tensor.is_meta

    replaced = {device_reads.is_remote: is_remote, device_reads.stream_of: lambda device: None}
    for name, module in list(sys.modules.items()):
        # Times of the host come from its own clock.
        if name.startswith("torchglass.capture") and not name.endswith("measure.devices"):
            for original, other in replaced.items():
                if getattr(module, original.__name__, None) is original:
                    monkeypatch.setattr(module, original.__name__, other)
    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, counted(name))
    return found


def _line_of_ours() -> str | None:
    """The innermost line of torchglass; the reads of a copy that has arrived are not counted."""
    frame: Any = sys._getframe(2)
    line = None
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_hand_over":
            return None
        if line is None and PACKAGE in code.co_filename:
            line = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
        frame = frame.f_back
    return line


def mlp(layers: int) -> nn.Sequential:
    hidden = [layer for _ in range(layers) for layer in (nn.Linear(8, 8), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(8, 4))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    optimizer.zero_grad()
    loss: torch.Tensor = model(torch.ones(6, 8)).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("layers", [2, 20])
def test_a_logged_step_makes_two_device_reads(
    layers: int, tmp_path: Path, reads: Counter[str]
) -> None:
    model = mlp(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    with tg.watch(model, log=ALL_KINDS, save=tmp_path / "run.glass", verbose=False) as watcher:
        for _ in range(7):
            reads.clear()
            watcher.log("loss", step(model, optimizer))
            watcher._idle.stop()
            # The values of the step, which a device copies without a wait, and one question
            # whether the gradients are finite.
            assert reads.total() <= 2, reads
            assert all("_start_copy" in line for line in reads), reads
    assert len(list(tg.open(tmp_path / "run.glass").series)) > 20 * layers


def test_an_unlogged_step_makes_no_device_read(tmp_path: Path, reads: Counter[str]) -> None:
    model = mlp(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with tg.watch(model, log_freq=100, save=tmp_path / "run.glass", verbose=False) as watcher:
        for number in range(6):
            reads.clear()
            step(model, optimizer)
            watcher._idle.stop()
            assert not reads or number < 2, reads


@pytest.mark.parametrize("layers", [2, 20])
def test_a_recorded_forward_makes_one_device_read(layers: int, reads: Counter[str]) -> None:
    model = mlp(layers)
    with torch.no_grad(), tg.record(model) as recording:
        model(torch.ones(6, 8))
        assert recording["0"][-1].out_mean is not None
    assert reads.total() == 1, reads


@pytest.mark.parametrize("layers", [2, 20])
@pytest.mark.parametrize(("cheap", "most"), [(False, 2), (True, 1)])
def test_a_guarded_step_makes_one_or_two_device_reads(
    layers: int, cheap: bool, most: int, reads: Counter[str]
) -> None:
    model = mlp(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with tg.guard(model, cheap=cheap):
        for _ in range(3):
            reads.clear()
            step(model, optimizer)
            assert reads.total() <= most, reads
