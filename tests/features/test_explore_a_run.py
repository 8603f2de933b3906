"""A run opens on its overview: the verdict first, then where to look."""

from __future__ import annotations

import contextlib
import math
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.explorer import Explorer, drive, shown, terminal
from torchglass import errors


def train(
    file: Path, steps: int = 30, *, nan_at: int | None = None, fails_at: int | None = None
) -> Path:
    """Train a small network; from a step on with NaN in its loss, or until it fails."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with tg.watch(model, save=file, verbose=False, guard=None) as watcher:
        for step in range(steps):
            x = torch.randn(32, 6)
            if step == fails_at:
                raise ValueError("no more data")
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            if nan_at is not None and step >= nan_at:
                loss = loss * math.nan
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
    return file


def test_a_healthy_run_opens_with_verdict_loss_and_gradients(tmp_path: Path) -> None:
    text = shown(train(tmp_path / "run.glass"), size=(100, 30))

    verdict, state = text.splitlines()[2:4]
    assert "✓ Healthy: no problems found in 30 steps" in verdict
    assert "finished · 30 steps" in state
    assert "loss" in text
    assert "gradient norm" in text
    assert "××" not in text


def test_a_broken_run_shows_the_cause_and_the_non_finite_values(
    tmp_path: Path,
) -> None:
    text = shown(train(tmp_path / "run.glass", nan_at=20), size=(100, 30))

    assert "✗ Broken: " in text.splitlines()[2]
    assert "NaN" in text.splitlines()[2]
    assert "✗ step 20" in text
    assert "× NaN or Inf" in text
    # Ten of thirty steps: a third of each row of the map.
    rows = [line for line in text.splitlines() if "××" in line and line.split()[0] in ("0", "2.0")]
    assert rows
    assert all(20 < line.count("×") < 35 for line in rows)


def test_a_stopped_run_says_so_first(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no more data"):
        train(tmp_path / "run.glass", fails_at=12)

    text = shown(tmp_path / "run.glass", size=(100, 30))

    assert "✗ Broken: the run was stopped by ValueError at step 12" in text
    assert "stopped by ValueError at step 12: no more data" in text.splitlines()[3]


def test_enter_on_a_finding_goes_to_its_module(tmp_path: Path) -> None:
    file = train(tmp_path / "run.glass", nan_at=20)
    problem = next(one for one in tg.open(file).findings if one.severity != "info")

    async def story(explorer: Explorer) -> None:
        await explorer.press("enter")
        assert explorer.selected == problem.path
        assert "Series" in explorer.text
        assert "params" in explorer.text.splitlines()[1]

    drive(story, file, size=(120, 30))


def test_a_cell_of_the_map_links_to_its_module_series_and_step(tmp_path: Path) -> None:
    file = train(tmp_path / "run.glass")

    async def story(explorer: Explorer) -> None:
        await explorer.press("end", *["shift+left"] * 12, "enter")
        assert explorer.selected == "2.0"
        assert "weight.grad  mean" in explorer.text
        assert "▲ step 0: " in explorer.text

    drive(story, file, size=(140, 30))


def test_the_cursor_shows_module_step_and_value_of_a_cell(tmp_path: Path) -> None:
    file = train(tmp_path / "run.glass", nan_at=20)

    async def story(explorer: Explorer) -> None:
        await explorer.press("end")
        assert line_with(explorer.text, "gradient norm NaN or Inf").split()[:3] == [
            "2.0",
            "step",
            "29",
        ]
        await explorer.press(*["shift+left"] * 9)
        told = line_with(explorer.text, "2.0  step 0")
        assert float(told.split()[-1]) > 0

    def line_with(text: str, words: str) -> str:
        return next(line for line in text.splitlines() if words in line)

    drive(story, file, size=(100, 30))


def test_space_switches_statistics_and_z_shows_a_row_per_module(tmp_path: Path) -> None:
    file = train(tmp_path / "run.glass")

    async def story(explorer: Explorer) -> None:
        titles = []
        for _ in range(4):
            titles.append(explorer.app.explorer.state.heat_map.title)
            await explorer.press("space")
        assert titles == [
            "gradient norm",
            "activation scale",
            "update ratio",
            "share of dead units",
        ]
        assert "gradient norm 1/4" in explorer.text
        await explorer.press("z")
        assert "2.0" in explorer.text

    drive(story, file, size=(100, 30))


def test_escape_goes_to_the_tree_and_v_returns_to_the_overview(tmp_path: Path) -> None:
    file = train(tmp_path / "run.glass", nan_at=20)

    async def story(explorer: Explorer) -> None:
        assert "params" not in explorer.text.splitlines()[1]
        await explorer.press("escape")
        tree = explorer.text
        assert "params" in tree.splitlines()[1]
        await explorer.press("j", "V")
        assert "params" not in explorer.text.splitlines()[1]
        assert "✗ Broken" in explorer.text

    drive(story, file, size=(100, 30))


def test_rows_of_the_tree_show_problems_and_folded_parents_count_them(tmp_path: Path) -> None:
    file = train(tmp_path / "run.glass", nan_at=20)
    (first, *_) = tg.open(file).findings

    async def story(explorer: Explorer) -> None:
        await explorer.press("escape")
        name = first.path.rpartition(".")[2] or "Sequential"
        assert f"{name} ✗" in explorer.text

    drive(story, file, size=(100, 30))


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (160, 45)])
def test_the_overview_fits_any_terminal(tmp_path: Path, size: tuple[int, int]) -> None:
    text = shown(train(tmp_path / "run.glass", nan_at=20), size=size)

    assert "✗ Broken" in text
    assert max(map(len, text.splitlines())) <= size[0]


def test_a_run_without_steps_says_so(tmp_path: Path) -> None:
    watcher: Any = tg.watch(nn.Linear(2, 2), save=tmp_path / "run.glass", verbose=False)
    try:
        text = shown(tmp_path / "run.glass", size=(100, 30))
    finally:
        watcher.close()

    assert "no steps recorded yet" in text


def test_a_run_can_be_opened_as_soon_as_watch_returns(tmp_path: Path) -> None:
    usual = sys.getswitchinterval()
    # As on a busy machine: the thread that writes hardly gets a turn.
    sys.setswitchinterval(1.0)
    try:
        for number in range(20):
            file = tmp_path / f"{number}.glass"
            with tg.watch(nn.Linear(2, 2), save=file, verbose=False):
                assert len(tg.open(file).model.modules) == 1
    finally:
        sys.setswitchinterval(usual)


def test_a_run_without_a_model_ends_the_explorer_with_an_error(tmp_path: Path) -> None:
    file = train(tmp_path / "run.glass", steps=1)
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DELETE FROM documents WHERE kind = 'model'")

    async def story(explorer: Explorer) -> None:
        while not explorer.app._exit and explorer.app._exception is None:
            await explorer.pilot.pause()

    with terminal(story) as apps:
        with pytest.raises(errors.StoreError, match="has no model yet"):
            tg.explore(file)
        # A crash of the app would fill the terminal with its stack.
        assert apps[0]._exception is None
