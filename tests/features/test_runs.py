"""Someone keeps many runs in a folder, and looks for the one that matters."""

from __future__ import annotations

import json
import subprocess
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch import nn

import torchglass as tg
from tests.command_line import main
from tests.models import train


@dataclass
class Settings:
    lr: float = 0.1
    layers: tuple[int, ...] = (4, 8)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"lr": 0.1, "model": {"width": 8}}, {"lr": 0.1, "model.width": 8}),
        (Namespace(lr=0.1, seed=None), {"lr": 0.1, "seed": None}),
        (Settings(), {"lr": 0.1, "layers": "(4, 8)"}),
        ({"data": Path("images")}, {"data": "images"}),
    ],
)
def test_the_settings_of_a_training_are_recorded(
    tmp_path: Path, given: object, kept: dict[str, object]
) -> None:
    path = tmp_path / "run.glass"
    with tg.watch(nn.Linear(2, 1), save=path, config=given, notes="a try", verbose=False) as run:
        run.step()

    with tg.open(path) as read:
        assert read.config == kept
        assert read.notes == "a try"
        assert "Notes: a try" in str(read)


def test_settings_that_are_no_settings_are_refused() -> None:
    with pytest.raises(tg.TorchglassError, match="config must be a dict.* not int"):
        tg.watch(nn.Linear(2, 1), config=3)


def test_a_setting_that_cannot_be_printed_does_not_stop_a_training(tmp_path: Path) -> None:
    class Bad:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    path = tmp_path / "run.glass"
    with tg.watch(nn.Linear(2, 1), save=path, config={"bad": Bad()}, verbose=False) as run:
        run.step()

    with tg.open(path) as read:
        assert read.config == {"bad": "<Bad>"}


def test_a_run_knows_the_commit_of_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=me", "-c", "user.email=me@example.com"]
        done = subprocess.run(
            ["git", *who, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    (tmp_path / "experiments").mkdir()
    monkeypatch.chdir(tmp_path / "experiments")
    assert _recorded_commit("one.glass") == git("rev-parse", "HEAD")

    git("commit", "-q", "--allow-empty", "-m", "second")
    git("pack-refs", "--all")
    assert _recorded_commit("two.glass") == git("rev-parse", "HEAD")

    git("worktree", "add", "-q", "-b", "other", str(tmp_path / "other"))
    monkeypatch.chdir(tmp_path / "other")
    assert _recorded_commit("three.glass") == git("rev-parse", "other")

    git("checkout", "-q", "--detach")
    monkeypatch.chdir(tmp_path)
    assert _recorded_commit("four.glass") == git("rev-parse", "HEAD")


def _recorded_commit(name: str) -> str:
    with tg.watch(nn.Linear(2, 1), save=name, verbose=False):
        pass
    with tg.open(name) as run:
        return run.git_commit


def test_a_run_that_is_resumed_has_the_settings_of_both(tmp_path: Path) -> None:
    path = tmp_path / "run.glass"
    first, later = {"lr": 0.1, "seed": 1}, {"lr": 0.01}
    for config in (first, later):
        with tg.watch(nn.Linear(2, 1), resume=path, config=config, verbose=False) as watcher:
            watcher.step()

    with tg.open(path) as run:
        assert run.config == {"lr": 0.01, "seed": 1}
        assert [session.run.config for session in run.sessions] == [first, later]


def test_the_settings_are_in_the_json_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.glass"
    model = nn.Linear(3, 1)
    with tg.watch(model, save=path, config={"lr": 0.1}, notes="a try", verbose=False) as watcher:
        train(model, watcher, 2)

    assert main(["summary", str(path), "--json"]) == 0

    run = json.loads(capsys.readouterr().out)["run"]
    assert run["config"] == {"lr": 0.1}
    assert run["notes"] == "a try"
