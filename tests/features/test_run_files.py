"""Someone records trainings that are killed, resumed or run on several ranks, and reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import torchglass as tg
from tests.models import train
from tests.recorded import ROOT

TRAIN_UNTIL_KILLED = """
import sys, torch
import torchglass as tg

model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
watcher = tg.watch(model, save=sys.argv[1], verbose=False)
while True:
    loss = model(torch.ones(4, 3)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watcher.log("loss", loss)
    print("step", flush=True)
"""

READ_WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import torchglass as tg

with tg.open(sys.argv[1]) as run:
    assert not run.finished
    assert run["weight"].histograms.counts.sum() > 0
    assert len(run["loss"]) > 100
    print(run)
"""


@pytest.mark.slow
def test_a_killed_run_can_be_read_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "run.glass"
    with subprocess.Popen(
        [sys.executable, "-c", TRAIN_UNTIL_KILLED, str(path)], cwd=ROOT, stdout=subprocess.PIPE
    ) as training:
        assert training.stdout is not None
        training.stdout.readline()
        with tg.open(path) as run:
            while run.last_step < 150:
                training.stdout.readline()
        training.kill()

    read = subprocess.run(
        [sys.executable, "-c", READ_WITHOUT_TORCH, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "killed" in read.stdout, read.stderr


def test_histograms_of_a_resumed_run_are_one_table(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    with tg.watch(model, save=tmp_path / "run.glass", verbose=False) as watcher:
        train(model, watcher, 5, lr=0.01)
    with tg.watch(model, resume=tmp_path / "run.glass", verbose=False) as watcher:
        train(model, watcher, 5, lr=0.01)

    with tg.open(tmp_path / "run.glass") as run:
        weight = run["weight"]
        assert "resumed once" in repr(run)
        assert run["loss"].steps.tolist() == list(range(10))
        assert weight.histograms.counts.sum(axis=1).tolist() == [6] * len(weight)
        assert weight.histograms.to_pandas().sum(axis=1).tolist() == [6] * len(weight)


def test_a_run_on_two_ranks_is_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        monkeypatch.setitem(os.environ, "RANK", str(rank))
        monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
        model = nn.Linear(3, 2)
        with tg.watch(model, run_dir=tmp_path, verbose=False) as watcher:
            train(model, watcher, 4, lr=0.01)

    with tg.open(tmp_path) as run:
        assert list(run.ranks) == [0, 1]
        assert run["weight"].column("count").tolist() == [12] * 4
        both = [run.ranks[rank]["loss"].values for rank in (0, 1)]
        assert run["loss"].values.tolist() == pytest.approx(sum(both) / 2)
        assert "rank" in str(run.compare_ranks())


@pytest.mark.parametrize("name", ["lr0.1", "mine", "run.db"])
def test_a_run_file_with_any_name_opens_everywhere(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    with tg.watch(nn.ReLU(), save=file, verbose=False) as watcher:
        watcher.log("loss", 1.0)

    tg.view(file, save=tmp_path / "page.html")

    assert "<title>ReLU" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "ReLU" in str(tg.summary(file))
    assert list(tg.open(file)["loss"].values) == [1.0]


READ_BEYOND_THE_END = """
import gc, sys
import torch, torchglass as tg

watcher = tg.watch(torch.nn.ReLU(), save="mine.glass", verbose=False)
run = tg.open("mine.glass")
watcher.log("loss", 1.0)
watcher.close()
if sys.argv[1] == "closed":
    run.close()
elif sys.argv[1] == "dropped":
    del run
    gc.collect()
"""


@pytest.mark.parametrize(
    "how",
    [
        "closed",
        pytest.param("dropped", marks=pytest.mark.slow),
        pytest.param("left open", marks=pytest.mark.slow),
    ],
)
def test_a_run_is_one_file_after_its_last_reader_closes(how: str, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", READ_BEYOND_THE_END, how],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )

    assert [path.name for path in tmp_path.iterdir()] == ["mine.glass"]
