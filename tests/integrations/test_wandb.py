"""`backend="wandb"` in wandb's offline mode, read back from the file that wandb writes."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb

import torchglass as tg
from tests.integrations.trainings import Net, train
from tests.integrations.wandb_file import read_metrics, read_rows
from torchglass.integrations.wandb import FIRST_PAGE_SECONDS, WandbBackend
from torchglass.records.run import Frame
from torchglass.store.readers import MemoryStore


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[wandb.Run]:
    monkeypatch.setenv("WANDB_SILENT", "true")
    started = wandb.init(project="glass", dir=tmp_path, mode="offline")
    yield started
    started.finish()


def test_without_an_active_wandb_run_watch_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(tg.TorchglassError, match=r"call wandb\.init\(\) before"):
        tg.watch(Net(), backend="wandb", run_dir=tmp_path, verbose=False)

    assert list(tmp_path.glob("*.glass")) == []


def test_nothing_is_logged_if_wandb_is_disabled(tmp_path: Path) -> None:
    model = Net()

    with (
        wandb.init(mode="disabled"),
        tg.watch(model, backend="wandb", run_dir=tmp_path, verbose=False) as watcher,
    ):
        losses = train(model, watcher, 2)

    assert len(losses) == 2


def test_without_user_logging_wandb_has_a_row_for_each_step(run: wandb.Run, tmp_path: Path) -> None:
    model = Net()

    with tg.watch(model, backend="wandb", save=tmp_path / "a.glass", verbose=False) as watcher:
        losses = train(model, watcher, 4)
    run.finish()

    rows = read_rows(tmp_path)
    assert [row["torchglass/step"] for row in rows[:4]] == [0, 1, 2, 3]
    assert [row["torchglass/loss"] for row in rows[:4]] == pytest.approx(losses)
    assert {row["torchglass/hidden.weight.grad"]["_type"] for row in rows[:4]} == {"histogram"}
    assert read_metrics(tmp_path)["torchglass/*"] == "torchglass/step"


def test_a_wandb_histogram_counts_the_values_of_its_tensor(run: wandb.Run, tmp_path: Path) -> None:
    model = Net()

    with tg.watch(model, backend="wandb", save=tmp_path / "a.glass", verbose=False) as watcher:
        train(model, watcher, 1)
    run.finish()

    histogram = read_rows(tmp_path)[0]["torchglass/hidden.weight"]
    counted = torch.histogram(
        model.hidden.weight.detach().double(), torch.tensor(histogram["bins"]).double()
    )
    assert counted.hist.tolist() == histogram["values"]
    assert sum(histogram["values"]) == 32


@pytest.mark.parametrize(
    "steps", [None, [0, 1, 2, 3], [0, 10, 20, 30]], ids=["own", "each", "tens"]
)
def test_user_rows_keep_their_steps_and_include_our_values(
    run: wandb.Run, tmp_path: Path, steps: list[int] | None
) -> None:
    model = Net()

    def log(step: int) -> None:
        run.log({"mine": step * 2}, step=steps[step] if steps else None)

    with tg.watch(model, backend="wandb", run_dir=tmp_path, verbose=False) as watcher:
        train(model, watcher, 4, after=log)
    run.finish()

    rows = read_rows(tmp_path)
    mine = [row for row in rows if "mine" in row]
    assert [row["mine"] for row in mine] == [0, 2, 4, 6]
    assert [row["_step"] for row in mine] == (steps or [0, 1, 2, 3])
    assert [row["torchglass/step"] for row in rows if "torchglass/step" in row] == [0, 1, 2, 3]


def test_logging_once_per_epoch_with_a_step_number_loses_nothing(
    run: wandb.Run, tmp_path: Path
) -> None:
    model = Net()

    with tg.watch(model, backend="wandb", run_dir=tmp_path, verbose=False) as watcher:
        for epoch in range(3):
            train(model, watcher, 5)
            run.log({"accuracy": epoch / 10}, step=epoch)
    run.finish()

    rows = [row for row in read_rows(tmp_path) if "accuracy" in row]
    assert [(row["_step"], row["accuracy"]) for row in rows] == [(0, 0), (1, 0.1), (2, 0.2)]
    assert all("torchglass/hidden.weight" in row for row in rows)


def test_the_page_is_uploaded_once_at_the_end_and_no_file_per_step(
    run: wandb.Run, tmp_path: Path
) -> None:
    model = Net()

    with tg.watch(model, backend="wandb", save=tmp_path / "a.glass", verbose=False) as watcher:
        train(model, watcher, 10)
    run.finish()

    (row,) = [row for row in read_rows(tmp_path) if "torchglass/page" in row]
    assert row["torchglass/page"]["_type"] == "html-file"
    (page,) = tmp_path.glob("wandb/offline-run-*/files/media/**/*.html")
    text = page.read_text(encoding="utf-8")
    assert "hidden" in text
    assert "<title>Net – Torchglass</title>" in text


def test_a_wandb_run_finished_before_the_watcher_has_all_steps_and_the_page(
    run: wandb.Run, tmp_path: Path
) -> None:
    model = Net()

    watcher = tg.watch(model, backend="wandb", save=tmp_path / "a.glass", verbose=False)
    train(model, watcher, 3)
    run.finish()
    train(model, watcher, 1)
    watcher.close()

    rows = read_rows(tmp_path)
    measured = [row for row in rows if "torchglass/hidden.weight" in row]
    assert [row["torchglass/step"] for row in measured] == [0, 1, 2]
    assert "torchglass/page" in rows[-1]
    assert _page_status(tmp_path)["last_step"] == 2
    assert tg.open(tmp_path / "a.glass").reader.last_step() == 3


def test_a_wandb_run_finished_by_the_user_has_its_last_step_and_a_final_page(
    run: wandb.Run, tmp_path: Path
) -> None:
    model = Net()

    watcher = tg.watch(model, backend="wandb", save=tmp_path / "a.glass", verbose=False)
    losses = _train_and_log(model, run, 6)
    run.finish()

    rows = [row for row in read_rows(tmp_path) if "mine" in row]
    assert [row["mine"] for row in rows] == losses
    assert [row["torchglass/step"] for row in rows] == list(range(6))
    status = _page_status(tmp_path)
    assert (status["last_step"], status["finished"]) == (5, True)
    watcher.close()


ROWS: dict[str, Callable[[wandb.Run, float, int], None]] = {
    "a row": lambda run, loss, step: run.log({"mine": loss}),
    "a row by the module": lambda run, loss, step: wandb.log({"mine": loss}),
    "a numbered row": lambda run, loss, step: run.log({"mine": loss}, step=step * 10),
    "a numbered row at once": lambda run, loss, step: run.log(
        {"mine": loss}, step=step + 1, commit=True
    ),
    "a row in two parts": lambda run, loss, step: (
        run.log({"part": step}, commit=False),
        run.log({"mine": loss}),
    )[-1],
}


@pytest.mark.parametrize("log", ROWS.values(), ids=ROWS)
def test_a_row_logged_after_the_update_has_the_values_of_that_step(
    log: Callable[[wandb.Run, float, int], None], run: wandb.Run, tmp_path: Path
) -> None:
    model = Net()

    with tg.watch(
        model, backend="wandb", save=tmp_path / "a.glass", sample_n=None, verbose=False
    ) as watcher:
        _train_and_log(model, run, 5, log=log, before_row=lambda loss: watcher.log("loss", loss))
    run.finish()

    rows = [row for row in read_rows(tmp_path) if "mine" in row]
    assert [row["torchglass/step"] for row in rows] == list(range(5))
    assert [row["torchglass/loss"] for row in rows] == [row["mine"] for row in rows]
    # The inputs of step n are all n + 1.
    for step, row in enumerate(rows):
        bins = row["torchglass/input.0"]["bins"]
        assert bins[0] <= step + 1 <= bins[-1]


@pytest.mark.parametrize("when", ["before the update", "before other values"])
def test_rows_logged_before_the_update_lose_nothing_and_have_the_right_steps(
    when: str, run: wandb.Run, tmp_path: Path
) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    with tg.watch(model, backend="wandb", save=tmp_path / "a.glass", verbose=False) as watcher:
        for step in range(5):
            loss = model(torch.ones(6, 4) * (step + 1)).square().mean()
            if when == "before the update":
                watcher.log("nth", step)
                run.log({"mine": step})
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if when == "before other values":
                run.log({"mine": step})
                watcher.log("nth", step)
    run.finish()

    rows = read_rows(tmp_path)
    assert [row["mine"] for row in rows if "mine" in row] == list(range(5))
    measured = [row for row in rows if "torchglass/hidden.weight" in row]
    assert [row["torchglass/step"] for row in measured] == list(range(5))
    numbered = [row for row in rows if "torchglass/nth" in row]
    assert [row["torchglass/nth"] for row in numbered] == list(range(5))
    assert all(row["torchglass/nth"] == row["torchglass/step"] for row in numbered)


def test_no_attribute_or_hook_stays_on_a_wandb_run(run: wandb.Run, tmp_path: Path) -> None:
    before, hooks = dict(vars(run)), list(run._teardown_hooks)

    with tg.watch(Net(), backend="wandb", save=tmp_path / "a.glass", verbose=False):
        pass

    assert set(vars(run)) == set(before)
    assert run._teardown_hooks == hooks


def test_the_last_step_is_counted_if_logged_before_the_update(
    run: wandb.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Net()

    with tg.watch(model, backend="wandb", save=tmp_path / "a.glass"):
        _train_and_log(model, run, 3)

    assert "finished (3 steps)" in capsys.readouterr().err


def test_a_run_shown_in_wandb_is_one_file(run: wandb.Run, tmp_path: Path) -> None:
    model = Net()

    with tg.watch(model, backend="wandb", save=tmp_path / "a.glass", verbose=False) as watcher:
        train(model, watcher, 2)

    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["a.glass"]


def test_the_page_is_uploaded_after_a_minute_and_then_less_often(
    run: wandb.Run, tmp_path: Path
) -> None:
    model = Net()
    store = MemoryStore(tg.open(_recorded(model, tmp_path / "a.glass")).run)
    store.put_model(tg.open(tmp_path / "a.glass").model)
    loss = store.series("", "loss")
    seconds = [0.0]
    backend = WandbBackend(now=lambda: seconds[-1])

    backend.begin(store)
    for step in range(12):
        frame = Frame(step=step, time_ns=step, points={loss: math.pi / (step + 1)})
        store.put_frame(frame)
        backend.frame(frame, {each.id: each for each in store.series()})
        seconds.append(seconds[-1] + FIRST_PAGE_SECONDS / 2)
    backend.close()
    run.finish()

    pages = list(tmp_path.glob("wandb/offline-run-*/files/media/**/*.html"))
    assert len(pages) == 3


def test_two_models_side_by_side_do_not_mix(run: wandb.Run, tmp_path: Path) -> None:
    one, other = Net(), torch.nn.Linear(4, 1)

    with (
        tg.watch(one, backend="wandb", run_dir=tmp_path, verbose=False) as first,
        tg.watch(other, backend="wandb", run_dir=tmp_path, verbose=False) as second,
    ):
        train(one, first, 3)
        train(other, second, 2)
    run.finish()

    rows = read_rows(tmp_path)
    steps = [row["torchglass/step"] for row in rows if row.get("torchglass/hidden.weight")]
    others = [row["torchglass-2/step"] for row in rows if row.get("torchglass-2/weight")]
    assert steps[-3:] == [0, 1, 2]
    assert others[-2:] == [0, 1]
    assert not any("torchglass/weight" in row for row in rows)


def _train_and_log(
    model: torch.nn.Module,
    run: wandb.Run,
    steps: int,
    *,
    log: Callable[[wandb.Run, float, int], None] = ROWS["a row"],
    before_row: Callable[[torch.Tensor], None] = lambda loss: None,
) -> list[float]:
    """Train on inputs that are all n + 1 in step n, and log each loss to wandb."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        loss = model(torch.ones(6, 4) * (step + 1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        before_row(loss)
        losses.append(loss.item())
        log(run, losses[-1], step)
    return losses


def _page_status(folder: Path) -> dict[str, Any]:
    """What the page in a wandb run says about its training."""
    (page,) = folder.glob("wandb/offline-run-*/files/media/**/*.html")
    text = page.read_text(encoding="utf-8")
    (packed,) = re.findall(r'id="torchglass-data">([^<]*)<', text)
    data = json.loads(gzip.decompress(base64.b64decode(packed)))
    status: dict[str, Any] = data["runs"][0]["run"]["status"]
    return status


def _recorded(model: torch.nn.Module, path: Path) -> Path:
    with tg.watch(model, save=path, verbose=False) as watcher:
        train(model, watcher, 1)
    return path
