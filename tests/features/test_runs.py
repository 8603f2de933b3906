"""Someone keeps many runs in a folder, and looks for the one that matters."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.command_line import main
from tests.models import train
from tests.recorded import ROOT


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
def test_the_settings_of_a_run_are_recorded(
    tmp_path: Path, given: object, kept: dict[str, object]
) -> None:
    path = tmp_path / "run.glass"
    with tg.watch(nn.Linear(2, 1), save=path, config=given, notes="a try", verbose=False) as run:
        run.step()

    with tg.open(path) as read:
        assert read.config == kept
        assert read.notes == "a try"
        assert "Notes: a try" in str(read)


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(tg.TorchglassError, match=r"config must be a dict.* not int"):
        tg.watch(nn.Linear(2, 1), config=3)


def test_a_setting_whose_repr_raises_does_not_stop_training(tmp_path: Path) -> None:
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


def test_a_resumed_run_has_the_settings_of_both_sessions(tmp_path: Path) -> None:
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


def record(path: Path, loss: float, *, config: object = None, notes: str = "") -> None:
    """A run of two steps."""
    model = nn.Linear(2, 1)
    with tg.watch(model, save=path, config=config, notes=notes, verbose=False) as watcher:
        for value in (2 * loss, loss):
            watcher.log("loss", value)
            watcher.step()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three runs with two settings."""
    record(tmp_path / "a.glass", 0.5, config={"lr": 0.1, "optimizer": "sgd"}, notes="the first")
    record(tmp_path / "b.glass", 0.3, config={"lr": 0.01, "optimizer": "sgd"})
    record(tmp_path / "inner" / "c.glass", 0.4, config={"lr": 0.1, "optimizer": "adam"})
    return tmp_path


def test_a_folder_of_runs_is_a_table(folder: Path) -> None:
    runs = tg.runs(folder)

    assert [run.path for run in runs] == ["inner/c.glass", "b.glass", "a.glass"]
    text = str(runs)
    assert text.startswith(f"3 runs in {folder}: 3 healthy")
    (line,) = (line for line in text.splitlines() if line.startswith("a "))
    assert line.split()[3:] == ["finished", "2", "healthy", "0.5", "0.1", "sgd", "the", "first"]


def test_runs_are_filtered_sorted_and_grouped(folder: Path) -> None:
    runs = tg.runs(folder)

    assert [run.path for run in runs.where("lr < 0.05 or optimizer == 'adam'").sort("loss")] == [
        "b.glass",
        "inner/c.glass",
    ]
    assert [run.path for run in runs.where(optimizer="sgd").sort("-loss")] == ["a.glass", "b.glass"]
    assert [run.path for run in runs.where("'first' in notes and state == 'finished'")] == [
        "a.glass"
    ]
    groups = runs.group("optimizer")
    assert groups.answer.startswith("2 groups by optimizer; the lowest loss is 0.3")
    assert groups.to_dict()["entries"][0]["runs"] == 2


def test_runs_are_opened_from_their_table(folder: Path) -> None:
    runs = tg.runs(folder)

    with runs.sort("loss").open(0) as best:
        assert best.config["lr"] == 0.01
    with runs.open(runs["a"].id) as first:
        assert first.notes == "the first"
    with pytest.raises(tg.TorchglassError, match="no run is called 'd'"):
        runs["d"]
    with pytest.raises(tg.TorchglassError, match="no run 7: the table has 3 runs"):
        runs[7]


@pytest.mark.parametrize(
    ("filter", "told"),
    [
        ("lrr < 1", "no run has a value 'lrr'; did you mean lr"),
        ("lr <", "is not a filter"),
        ("__import__('os').system('true')", "only comparisons are allowed"),
        ("lr is 1", "use == and !="),
    ],
)
def test_an_invalid_filter_is_a_one_line_error(
    folder: Path, filter: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", str(folder), "--where", filter]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_a_filter_accepts_any_setting_name(tmp_path: Path) -> None:
    record(tmp_path / "a.glass", 0.5, config={"model": {"width": 8}, "data/set": "images"})

    runs = tg.runs(tmp_path)

    assert len(runs.where("model.width == 8")) == 1
    assert len(runs.where("config.model.width >= 8 and values.loss < 1")) == 1
    assert len(runs.where("`data/set` in ['images', 'texts']")) == 1
    assert len(runs.where("model.width == 'wide' or not -model.width < 0")) == 0


def test_the_command_line_prints_and_writes_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", str(folder), "--sort", "loss", "--columns", "name,loss"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[4:7]] == [["b", "0.3"], ["inner/c", "0.4"], ["a", "0.5"]]

    assert main(["runs", str(folder), "--json", "--where", "lr == 0.01"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["entries"]
    assert run["config"] == {"lr": 0.01, "optimizer": "sgd"}
    assert (run["values"], run["state"], run["steps"]) == ({"loss": 0.3}, "finished", 2)

    assert main(["runs", str(folder), "--csv", "-"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert {"name", "config.lr", "values.loss"} <= set(head.split(","))
    assert len(rows) == 3

    assert main(["runs", str(folder), "--html", str(folder / "runs.html")]) == 0
    assert "the first" in (folder / "runs.html").read_text()


def test_a_table_of_runs_is_a_data_frame(folder: Path) -> None:
    frame = tg.runs(folder).to_pandas()

    assert frame.set_index("name").loc["b", "config.lr"] == 0.01


def test_files_that_are_not_runs_are_noted_in_one_line_and_runs_are_shown(folder: Path) -> None:
    good = (folder / "a.glass").read_bytes()
    (folder / "text.glass").write_text("a text")
    (folder / "empty.glass").touch()
    (folder / "cut.glass").write_bytes(good[: len(good) // 3])
    (folder / "wrong.glass").write_bytes(good[:8192] + bytes(len(good) - 8192))
    sqlite3.connect(folder / "other.glass").execute("CREATE TABLE t (x)").connection.close()
    (folder / "notes.txt").write_text("not a run")

    runs = tg.runs(folder)

    assert len(runs) == 3
    assert len(runs.unreadable) == 5
    (note,) = (line for line in str(runs).splitlines() if line.startswith("Note:"))
    assert note.startswith("Note: 5 files cannot be read. The first: ")


def test_a_run_without_a_stored_summary_is_listed(folder: Path) -> None:
    wrong = nn.Linear(3, 1)
    with (
        pytest.raises(RuntimeError),
        tg.watch(wrong, save=folder / "failed.glass", verbose=False),
    ):
        wrong(torch.ones(2))
    with tg.watch(nn.Linear(2, 1), save=folder / "many.glass", verbose=False) as watcher:
        for number in range(500):  # More than the page of a file has room for.
            watcher.log(f"a value with a long name {number}", number)
        watcher.step()
    listed = tg.runs(folder).to_dict()["entries"]

    for path in folder.rglob("*.glass"):
        with contextlib.closing(sqlite3.connect(path)) as file, file:
            assert file.execute("DELETE FROM meta WHERE key = 'summary'").rowcount == 1

    assert tg.runs(folder).to_dict()["entries"] == listed


def test_an_outdated_stored_summary_is_not_used(folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "a.glass")) as file:
        (old,) = file.execute("SELECT value FROM meta WHERE key = 'summary'").fetchone()
    with tg.watch(nn.Linear(2, 1), resume=folder / "a.glass", verbose=False) as watcher:
        watcher.log("loss", 0.01)
        watcher.step()
    assert tg.runs(folder)["a"].values == {"loss": 0.01}

    # A version without summaries leaves the old one when it resumes a run.
    with contextlib.closing(sqlite3.connect(folder / "a.glass")) as file, file:
        file.execute("UPDATE meta SET value = ? WHERE key = 'summary'", [old])

    assert tg.runs(folder)["a"].values == {"loss": 0.01}


def test_only_changed_runs_are_read_again(folder: Path) -> None:
    tg.runs(folder)
    # What is not read again need not even be a run any more.
    before = (folder / "a.glass").stat()
    (folder / "a.glass").write_bytes(bytes(before.st_size))
    os.utime(folder / "a.glass", ns=(before.st_atime_ns, before.st_mtime_ns))
    with (folder / "b.glass").open("r+b") as file:
        file.truncate(100)
    record(folder / "d.glass", 0.1)

    runs = tg.runs(folder)

    assert [run.path for run in runs] == ["d.glass", "inner/c.glass", "a.glass"]
    assert [run.path for run in runs.unreadable] == ["b.glass"]


@pytest.mark.parametrize("content", [b"", b"no index", b"SQLite format 3\0" + bytes(2000)])
def test_a_corrupt_or_foreign_index_is_ignored(folder: Path, content: bytes) -> None:
    tg.runs(folder)
    (index,) = folder.glob(".torchglass*")
    index.write_bytes(content)

    assert len(tg.runs(folder)) == 3
    assert len(tg.runs(folder)) == 3


def test_a_corrupt_index_is_rebuilt(folder: Path) -> None:
    tg.runs(folder)
    (index,) = folder.glob(".torchglass*")
    good = index.read_bytes()
    index.write_bytes(good[:200] + bytes(len(good) - 200))

    assert len(tg.runs(folder)) == 3

    rows = sqlite3.connect(index).execute("SELECT path FROM runs ORDER BY path").fetchall()
    assert rows == [("a.glass",), ("b.glass",), ("inner/c.glass",)]


def test_a_read_only_folder_is_listed(folder: Path) -> None:
    folder.chmod(0o555)
    try:
        assert len(tg.runs(folder)) == 3
    finally:
        folder.chmod(0o755)


def test_the_ranks_of_a_run_are_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        with tg.watch(nn.Linear(2, 1), run_dir=tmp_path, verbose=False) as watcher:
            watcher.log("loss", rank)
            watcher.step()

    (run,) = runs = tg.runs(tmp_path)

    assert (run.ranks, run.values) == (2, {"loss": 0.5})
    with runs.open(0) as opened:
        assert sorted(opened.ranks) == [0, 1]


def test_traces_are_not_runs(folder: Path) -> None:
    tg.trace(nn.Linear(2, 1), torch.ones(1, 2)).save(folder / "trace.glass")

    assert len(tg.runs(folder)) == 3


TRAIN = """
import sys, torch
import torchglass as tg

with tg.watch(torch.nn.Linear(2, 1), save=sys.argv[1], verbose=False) as watcher:
    watcher.log("loss", 3.0)
    watcher.step()
    print("step", flush=True)
    sys.stdin.readline()
"""


def test_a_run_is_listed_while_it_runs_and_after_it_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TRAIN, str(tmp_path / "run.glass")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ},
    ) as training:
        assert training.stdout is not None
        training.stdout.readline()
        while not (runs := tg.runs(tmp_path)) or runs[0].last_step < 0:
            pass
        assert runs[0].status.state == "running"
        assert runs.answer.endswith("1 running")
        training.kill()

    (run,) = tg.runs(tmp_path)
    assert (run.status.state, run.values) == ("killed", {"loss": 3.0})


def test_a_missing_folder_is_named() -> None:
    with pytest.raises(tg.TorchglassError, match="nowhere does not exist"):
        tg.runs("nowhere")
