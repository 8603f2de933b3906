"""How a run tells that it goes on, and how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.command_line import main
from tests.pages import read_page
from tests.recorded import going_on


class Model(nn.Module):
    """Raises in one of its forwards, if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 1)
        self.fails = False

    def forward(self, x: torch.Tensor) -> Any:
        if self.fails:
            raise ValueError("bad batch\nof many lines")
        return self.fc(x)


def train(
    watcher: Any, model: Model, at: str = "", error: type[BaseException] = ValueError
) -> None:
    """Six steps; something raises in step 4, at a place of the loop."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def fail(place: str, step: int) -> None:
        if (place, step) == (at, 4):
            raise error("bad batch\nof many lines")

    for step in range(6):
        fail("loading", step)
        model.fails = (at, step) == ("forward", 4)
        loss = model(torch.eye(2, 4)).sum()
        fail("loss", step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        fail("logging", step)
        watcher.log("loss", loss)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.mark.parametrize("log_freq", [1, 3])
@pytest.mark.parametrize("at", ["loading", "forward", "loss", "logging"])
def test_an_exception_is_kept_with_its_step(
    at: str, log_freq: int, model: Model, tmp_path: Path
) -> None:
    watcher = tg.watch(model, save=tmp_path / "run.glass", log_freq=log_freq, verbose=False)
    with pytest.raises(ValueError, match="bad batch"), watcher:
        train(watcher, model, at)

    run = tg.open(tmp_path / "run.glass")

    assert run.status == "stopped by ValueError at step 4"
    assert (run.status.state, run.status.error, run.status.step) == ("stopped", "ValueError", 4)
    assert run.status.message == "bad batch"
    assert not run.finished
    assert "stopped by ValueError at step 4: bad batch" in repr(run)


def test_a_completed_run_has_status_finished(model: Model, tmp_path: Path) -> None:
    with tg.watch(model, save=tmp_path / "run.glass", verbose=False) as watcher:
        assert tg.open(tmp_path / "run.glass").status == "running"
        train(watcher, model)

    run = tg.open(tmp_path / "run.glass")
    assert run.status == "finished"
    assert run.finished


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyboardInterrupt, "interrupted at step 4"),
        (SystemExit, "stopped by SystemExit at step 4"),
        (GeneratorExit, "finished"),
    ],
)
def test_interrupts_and_exits_are_not_reported_as_errors(
    error: type[BaseException], told: str, model: Model, tmp_path: Path
) -> None:
    watcher = tg.watch(model, save=tmp_path / "run.glass", verbose=False)
    with pytest.raises(error), watcher:
        train(watcher, model, "loss", error)

    assert tg.open(tmp_path / "run.glass").status == told


def test_closing_in_except_or_finally_records_the_active_exception(
    model: Model, tmp_path: Path
) -> None:
    for name in ("finally", "except"):
        watcher = tg.watch(model, save=tmp_path / f"{name}.glass", verbose=False)
        try:
            train(watcher, model, "loss")
        except ValueError:
            if name == "except":
                watcher.close()
        finally:
            watcher.close()

    assert tg.open(tmp_path / "except.glass").status == "stopped by ValueError at step 4"
    assert tg.open(tmp_path / "finally.glass").status == "finished"


def test_an_earlier_exception_is_not_the_end_of_a_run(model: Model, tmp_path: Path) -> None:
    try:
        raise ImportError("no fast kernels")
    except ImportError:
        watcher = tg.watch(model, save=tmp_path / "run.glass", verbose=False)
        train(watcher, model)
        watcher.close()

    assert tg.open(tmp_path / "run.glass").status == "finished"


SCRIPT = """
import sys, time, torch, torchglass as tg
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
{before}
watcher = tg.watch(model, save=sys.argv[1], verbose=False)
for step in range(5):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    watcher.log("loss", 1.0)
    if step == 3:
        {fail}
"""


def script(tmp_path: Path, fail: str, before: str = "") -> list[str]:
    (tmp_path / "train.py").write_text(SCRIPT.format(fail=fail, before=before), encoding="utf-8")
    return [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "run.glass")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fail", "told"),
    [
        ('raise RuntimeError("boom")', "stopped by RuntimeError at step 3"),
        ("raise KeyboardInterrupt", "interrupted at step 3"),
        ("pass", "finished"),
    ],
)
def test_the_end_is_recorded_without_a_with_block(fail: str, told: str, tmp_path: Path) -> None:
    hook = "sys.excepthook = lambda *error: print('own hook', error[0].__name__)"
    done = subprocess.run(script(tmp_path, fail, hook), capture_output=True, text=True, check=False)

    assert tg.open(tmp_path / "run.glass").status == told
    assert ("own hook" in done.stdout) == (told != "finished")


@pytest.mark.slow
def test_a_killed_process_is_reported_at_once(tmp_path: Path) -> None:
    command = script(tmp_path, "print('ready', flush=True); time.sleep(600)")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with tg.open(tmp_path / "run.glass") as run:
            assert run.status == "running"
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert run.status == "killed"
            assert run.status.is_over
            assert not run.finished


def test_a_run_without_new_steps_is_stalled(tmp_path: Path) -> None:
    with going_on(tmp_path / "run.glass", 103, 102, 101, 100) as path, tg.open(path) as run:
        told = run.status

    assert re.fullmatch(r"stalled for 1\d\d s", told) or re.fullmatch(r"stalled for \d min", told)
    assert not told.is_over


def test_a_run_with_slow_steps_is_not_stalled(tmp_path: Path) -> None:
    with going_on(tmp_path / "run.glass", 18_000, 12_000, 6_000) as path, tg.open(path) as run:
        assert run.status == "running"


def change_writer(path: Path, **facts: Any) -> None:
    with sqlite3.connect(path) as connection:
        ((value,),) = connection.execute("SELECT value FROM meta WHERE key = 'writer'")
        changed = json.dumps({**json.loads(value), **facts})
        connection.execute("UPDATE meta SET value = ? WHERE key = 'writer'", [changed])
    connection.close()


def test_a_run_on_another_machine_is_judged_by_its_heartbeat(tmp_path: Path) -> None:
    with going_on(tmp_path / "run.glass", 1) as path, tg.open(path) as run:
        change_writer(path, machine="elsewhere", time_ns=time.time_ns())
        assert run.status == "running"
        change_writer(path, time_ns=time.time_ns() - 60_000_000_000)
        assert run.status == "killed"


def test_a_reused_pid_is_not_taken_for_the_writer(
    tmp_path: Path,
) -> None:
    with going_on(tmp_path / "run.glass", 1) as path, tg.open(path) as run:
        change_writer(path, began=1)

        assert run.status == "killed"


def test_a_run_without_writer_information_has_a_status(tmp_path: Path) -> None:
    with going_on(tmp_path / "run.glass", 7200) as path, tg.open(path) as run:
        with sqlite3.connect(path) as connection:
            connection.execute("DELETE FROM meta WHERE key = 'writer'")
        connection.close()

        assert run.status == "stalled for 2 h"


def test_a_resumed_run_has_status_running(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "run.glass"
    watcher = tg.watch(model, save=path, verbose=False)
    with pytest.raises(ValueError, match="bad"), watcher:
        train(watcher, model, "loss")
    again = Model()

    with tg.watch(again, resume=path, verbose=False) as watcher:
        assert tg.open(path).status == "running"
        train(watcher, again)

    assert tg.open(path).status == "finished"


def test_several_ranks_have_the_worst_status(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, at in enumerate(["", "loss"]):
        monkeypatch.setenv("RANK", str(rank))
        watcher = tg.watch(model, run_dir=tmp_path, verbose=False)
        with contextlib.suppress(RuntimeError), watcher:
            train(watcher, model, at, RuntimeError)

    with tg.open(tmp_path) as run:
        assert list(run.ranks) == [0, 1]
        assert run.status == "stopped by RuntimeError at step 4"


def test_a_run_in_memory_writes_no_file(model: Model, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)

    for options in ({"save": ":memory:"}, {"resume": ":memory:"}, {"run_dir": ":memory:"}):
        with tg.watch(model, **options) as watcher:  # type: ignore[arg-type]
            train(watcher, model)
        assert watcher.path is None

    assert list(tmp_path.iterdir()) == []


def test_the_command_line_and_the_page_show_the_status(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.glass"
    watcher = tg.watch(model, save=path, verbose=False)
    with pytest.raises(ValueError, match="bad"), watcher:
        train(watcher, model, "loss")

    assert main(["summary", str(path)]) == 0
    assert (
        "Broken: stopped by ValueError at step 4: bad batch, last step 4" in capsys.readouterr().out
    )
    assert main(["summary", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["run"]
    assert (told["status"], told["state"]) == ("stopped by ValueError at step 4", "stopped")
    with contextlib.closing(tg.view(path, port=0)) as server:
        status = read_page(server.url, "api/run")["status"]
    assert status["how"] == "stopped by ValueError at step 4: bad batch"


# What is printed


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_the_final_message_names_problems_and_the_run_file(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    watcher = tg.watch(model, save="my run.glass")
    with pytest.raises(ValueError, match="bad"), watcher:
        train(watcher, model, "loss")
    watcher.close()

    head, command = printed(capsys)[1:]
    how = "stopped by ValueError at step 4: bad batch (5 steps)"
    assert head == f"torchglass: broken: {how}; no problems found"
    assert command == "  torchglass explore 'my run.glass'"


def test_the_first_nan_is_printed_at_once_and_five_lines_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8)))

    with tg.watch(model, save=tmp_path / "run.glass") as watcher:
        model(torch.full((2, 4), torch.nan)).sum().backward()
        watcher.step()
        said = printed(capsys)
        model(torch.full((2, 4), torch.nan)).sum().backward()

    nan = "All 8 values entering the model are NaN (since step 0)"
    assert said[1:] == [f"torchglass: {nan}"]
    head, *lines = printed(capsys)
    assert head == "torchglass: broken: finished (2 steps); 1 problem found:"
    assert lines[0] == f"  {nan}"
    assert len(lines) == 2


def test_verbose_false_prints_nothing(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tg.watch(model, save=tmp_path / "run.glass", verbose=False) as watcher:
        model(torch.full((2, 4), torch.nan)).sum().backward()
        train(watcher, model)

    assert printed(capsys) == []


def test_only_rank_0_prints(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    with tg.watch(model, save=tmp_path / "run.glass") as watcher:
        train(watcher, model)

    assert printed(capsys) == []


def test_messages_do_not_break_a_progress_bar(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tqdm = pytest.importorskip("tqdm").tqdm

    with tg.watch(model, save=tmp_path / "run.glass") as watcher:
        for _ in tqdm(range(3), mininterval=0):
            model(torch.full((2, 4), torch.nan)).sum().backward()
            watcher.step()

    told = next(line for line in printed(capsys) if "entering the model" in line)
    assert told.rpartition("\r")[2].startswith("torchglass: All 8 values")


def test_a_closed_stderr_does_not_stop_training(
    model: Model, tmp_path: Path, monkeypatch: Any
) -> None:
    with Path(os.devnull).open("w", encoding="utf-8") as closed:
        pass
    monkeypatch.setattr(sys, "stderr", closed)

    with tg.watch(model, save=tmp_path / "run.glass") as watcher:
        train(watcher, model)

    assert tg.open(tmp_path / "run.glass").status == "finished"
