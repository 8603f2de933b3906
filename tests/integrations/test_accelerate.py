"""`TorchglassTracker` in Accelerate's own Accelerator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]

import torchglass as tg
from tests.integrations.trainings import Net
from torchglass.integrations.accelerate import TorchglassTracker


def train(accelerator: Accelerator, model: torch.nn.Module, batches: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(batches):
        with accelerator.accumulate(model):
            loss = model(torch.ones(3, 4)).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.log({"loss": loss, "note": "not a number"}, step=step)
    accelerator.end_training()


def test_accelerate_training_is_recorded_until_it_ends(tmp_path: Path) -> None:
    model, file = Net(), tmp_path / "run.glass"
    accelerator = Accelerator(cpu=True, log_with=TorchglassTracker(model, save=file, verbose=False))
    accelerator.init_trackers("mine", config={"lr": 0.1, "api_key": "secret", "net": {"width": 8}})

    train(accelerator, model, 4)

    run = tg.open(file)
    assert run.finished
    assert run.config == {"lr": 0.1, "net.width": 8}
    assert tg.runs(tmp_path)[0].run.config == run.config
    assert run["loss"].steps.tolist() == [0, 1, 2, 3]
    assert run["hidden.weight.grad"].steps.tolist() == [0, 1, 2, 3]
    assert "note" not in run


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    model, file = Net(), tmp_path / "run.glass"
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        log_with=TorchglassTracker(model, save=file, verbose=False),
    )
    accelerator.init_trackers("mine")

    train(accelerator, model, 6)

    run = tg.open(file)
    assert run["hidden.weight.grad"].steps.tolist() == [0, 1, 2]
    assert run["output"].column("count").tolist() == [6, 6, 6]


def test_the_watcher_is_available_after_init_trackers(tmp_path: Path) -> None:
    tracker = TorchglassTracker(Net(), save=tmp_path / "run.glass", verbose=False)
    accelerator = Accelerator(cpu=True, log_with=tracker)

    with pytest.raises(tg.TorchglassError, match="init_trackers"):
        tracker.tracker  # noqa: B018 - it is asked for
    accelerator.init_trackers("mine")

    watcher = accelerator.get_tracker("torchglass", unwrap=True)
    assert watcher is tracker.tracker
    accelerator.end_training()
