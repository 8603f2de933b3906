"""`backend="tensorboard"`, read back with TensorBoard's own reader."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing import event_accumulator
from torch import nn

import torchglass as tg
from tests.integrations.trainings import Net, train


def events_in(folder: Path) -> Any:
    events = event_accumulator.EventAccumulator(
        str(folder), size_guidance={"histograms": 0, "scalars": 0}
    )
    return events.Reload()


def test_histograms_and_scalars_are_beside_the_run_with_its_steps(
    tmp_path: Path,
) -> None:
    model, file = Net(), tmp_path / "mine.glass"

    with tg.watch(model, backend="tensorboard", save=file, verbose=False) as watcher:
        losses = train(model, watcher, 4)

    events = events_in(tmp_path / "mine")
    assert [(each.step, each.value) for each in events.Scalars("loss")] == [
        (step, pytest.approx(loss)) for step, loss in enumerate(losses)
    ]
    assert [each.step for each in events.Histograms("hidden/weight")] == [0, 1, 2, 3]
    assert "head/output.grad" in events.Tags()["histograms"]
    assert "output" in events.Tags()["histograms"]


def test_a_tensorboard_histogram_has_the_exact_statistics_of_its_tensor(tmp_path: Path) -> None:
    model = Net()

    with tg.watch(
        model, backend="tensorboard", save=tmp_path / "a.glass", verbose=False
    ) as watcher:
        train(model, watcher, 1)

    weight = model.hidden.weight.detach().double().numpy()
    (event,) = events_in(tmp_path / "a").Histograms("hidden/weight")
    histogram = event.histogram_value
    assert (histogram.min, histogram.max) == (weight.min(), weight.max())
    assert histogram.num == weight.size
    assert histogram.sum == pytest.approx(weight.sum(), rel=1e-5)
    assert histogram.sum_squares == pytest.approx((weight**2).sum(), rel=1e-5)
    counted, _ = np.histogram(weight, [-math.inf, *histogram.bucket_limit])
    assert counted.tolist() == histogram.bucket


def test_an_outlier_outside_the_bins_has_its_own_bar(tmp_path: Path) -> None:
    model = nn.Linear(300, 1, bias=False)
    with torch.no_grad():
        model.weight[0, 7] = 1e6
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    with tg.watch(model, backend="tensorboard", save=tmp_path / "a.glass", verbose=False):
        model(torch.ones(2, 300)).sum().backward()
        optimizer.step()

    (event,) = events_in(tmp_path / "a").Histograms("weight")
    *_, before, last = event.histogram_value.bucket_limit
    assert last == 1e6
    assert before < 1
    assert event.histogram_value.bucket[-1] == 1


def test_nan_values_are_counted_in_a_scalar(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight[0, 0] = math.nan

    with tg.watch(model, backend="tensorboard", save=tmp_path / "a.glass", verbose=False):
        model(torch.ones(3, 2)).sum().backward()

    events = events_in(tmp_path / "a")
    assert [each.value for each in events.Scalars("output.nan")] == [3]
    assert [each.value for each in events.Scalars("weight.nan")] == [1]


def test_a_resumed_run_continues_in_the_same_folder(tmp_path: Path) -> None:
    model, file = Net(), tmp_path / "mine.glass"
    with tg.watch(model, backend="tensorboard", save=file, verbose=False) as watcher:
        train(model, watcher, 2)

    with tg.watch(model, backend="tensorboard", resume=file, verbose=False) as watcher:
        train(model, watcher, 2)

    assert [each.step for each in events_in(tmp_path / "mine").Scalars("loss")] == [0, 1, 2, 3]


def test_an_unwritable_folder_does_not_stop_training(tmp_path: Path) -> None:
    model, file = Net(), tmp_path / "mine.glass"
    (tmp_path / "mine").write_text("in the way")

    def train_watched() -> None:
        with tg.watch(model, backend="tensorboard", save=file, verbose=False) as watcher:
            train(model, watcher, 3)

    with pytest.warns(tg.TorchglassWarning, match="TensorBoardBackend stopped"):
        train_watched()

    assert len(tg.open(file)["loss"]) == 3


@pytest.mark.parametrize("ending", [".glass", ""])
def test_runs_with_dots_in_their_names_have_separate_folders(ending: str, tmp_path: Path) -> None:
    for rate in ("0.1", "0.01"):
        model, file = Net(), tmp_path / f"lr{rate}{ending}"
        with tg.watch(model, backend="tensorboard", save=file, verbose=False) as watcher:
            train(model, watcher, 2)

    folders = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(folders) == 2
    for folder in folders:
        assert [each.step for each in events_in(folder).Scalars("loss")] == [0, 1]
