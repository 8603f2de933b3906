"""How a run tells that it goes on, and how it ended."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.command_line import main
from torchglass.records.run import Ending, RunRecord, RunStatus, worst_status
from torchglass.records.series import Frame
from torchglass.store import run_file
from torchglass.store.file_reader import FileReader, FileSink
from torchglass.views.web.payloads import mark, status


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
        loss = model(torch.ones(2, 4)).sum()
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


def test_a_training_that_came_to_its_end_is_finished(model: Model, tmp_path: Path) -> None:
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
def test_what_is_no_error_is_told_as_what_it_is(
    error: type[BaseException], told: str, model: Model, tmp_path: Path
) -> None:
    watcher = tg.watch(model, save=tmp_path / "run.glass", verbose=False)
    with pytest.raises(error), watcher:
        train(watcher, model, "loss", error)

    assert tg.open(tmp_path / "run.glass").status == told


def test_closing_in_a_clause_keeps_the_exception_that_led_there(
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


def test_an_exception_from_before_the_training_does_not_end_it(
    model: Model, tmp_path: Path
) -> None:
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


@pytest.mark.parametrize(
    ("fail", "told"),
    [
        ('raise RuntimeError("boom")', "stopped by RuntimeError at step 3"),
        ("raise KeyboardInterrupt", "interrupted at step 3"),
        ("pass", "finished"),
    ],
)
def test_a_program_without_a_with_block_tells_how_it_ended(
    fail: str, told: str, tmp_path: Path
) -> None:
    hook = "sys.excepthook = lambda *error: print('own hook', error[0].__name__)"
    done = subprocess.run(script(tmp_path, fail, hook), capture_output=True, text=True, check=False)

    assert tg.open(tmp_path / "run.glass").status == told
    assert ("own hook" in done.stdout) == (told != "finished")


def test_a_process_that_was_killed_is_told_at_once(tmp_path: Path) -> None:
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


def frames(*ages: float) -> Iterator[Frame]:
    now = time.time()
    for step, age in enumerate(ages):
        yield Frame(step=step, time_ns=int((now - age) * 1e9), points={})


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Callable[..., FileReader]]:
    """A run that this process writes, whose steps are so many seconds old."""
    sinks: list[FileSink] = []
    readers: list[FileReader] = []

    def write(*ages: float) -> FileReader:
        sink = FileSink(tmp_path / "run.glass", RunRecord(name="run", created_ns=0))
        sinks.append(sink)
        for frame in frames(*ages):
            sink.put_frame(frame)
        sink.flush()
        readers.append(FileReader(tmp_path / "run.glass"))
        return readers[-1]

    yield write
    for reader in readers:
        reader.close()
    for sink in sinks:
        sink.close()


def test_a_run_that_makes_no_more_steps_is_stalled(written: Callable[..., FileReader]) -> None:
    told = written(103, 102, 101, 100).status()

    assert re.fullmatch(r"stalled for 10\d s", told) or told == "stalled for 2 min"
    assert not told.is_over


def test_a_run_whose_steps_take_long_is_not_stalled(written: Callable[..., FileReader]) -> None:
    assert written(180, 120, 60).status() == "running"


def change_writer(path: Path, **facts: Any) -> None:
    with sqlite3.connect(path) as connection:
        ((value,),) = connection.execute("SELECT value FROM meta WHERE key = 'writer'")
        changed = json.dumps({**json.loads(value), **facts})
        connection.execute("UPDATE meta SET value = ? WHERE key = 'writer'", [changed])
    connection.close()


def test_of_another_machine_the_heartbeat_tells(written: Callable[..., FileReader]) -> None:
    reader = written(1)

    change_writer(reader.path, machine="elsewhere")
    assert reader.status() == "running"
    change_writer(reader.path, time_ns=time.time_ns() - 60_000_000_000)
    assert reader.status() == "killed"


def test_a_writer_with_nothing_to_write_says_that_it_is_there(
    written: Callable[..., FileReader], monkeypatch: Any
) -> None:
    monkeypatch.setattr(run_file, "HEARTBEAT_SECONDS", 0.0)
    reader = written(1)

    change_writer(reader.path, machine="elsewhere", time_ns=0)

    while reader.status() != "running":
        continue


def test_another_process_with_the_number_of_one_that_is_gone_does_not_count(
    written: Callable[..., FileReader],
) -> None:
    reader = written(1)

    change_writer(reader.path, began=1)

    assert reader.status() == "killed"


def test_a_file_that_does_not_say_who_writes_it_is_read(written: Callable[..., FileReader]) -> None:
    reader = written(7200)

    with sqlite3.connect(reader.path) as connection:
        connection.execute("DELETE FROM meta WHERE key = 'writer'")
    connection.close()

    assert reader.status() == "stalled for 2 h"


def test_a_run_that_is_resumed_runs_again(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "run.glass"
    watcher = tg.watch(model, save=path, verbose=False)
    with pytest.raises(ValueError, match="bad"), watcher:
        train(watcher, model, "loss")
    again = Model()

    with tg.watch(again, resume=path, verbose=False) as watcher:
        assert tg.open(path).status == "running"
        train(watcher, again)

    assert tg.open(path).status == "finished"


def test_of_many_ranks_the_worst_is_told(tmp_path: Path) -> None:
    for rank, fails in enumerate([False, True]):
        run = RunRecord(name="run", created_ns=0, rank=rank, world_size=2, group="one")
        sink = FileSink(tmp_path / f"run-rank{rank}.glass", run)
        sink.put_frame(next(frames(1)))
        if fails:
            sink.put_document(Ending(state="stopped", error="RuntimeError", step=7))
        sink.close()

    assert tg.open(tmp_path).status == "stopped by RuntimeError at step 7"
    assert worst_status([RunStatus("finished"), RunStatus("running")]) == "running"


def test_a_run_in_memory_is_no_file(model: Model, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)

    for options in ({"save": ":memory:"}, {"resume": ":memory:"}, {"run_dir": ":memory:"}):
        with tg.watch(model, **options) as watcher:  # type: ignore[arg-type]
            train(watcher, model)
        assert watcher.path is None

    assert list(tmp_path.iterdir()) == []


def test_the_command_line_and_the_page_tell_it(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.glass"
    watcher = tg.watch(model, save=path, verbose=False)
    with pytest.raises(ValueError, match="bad"), watcher:
        train(watcher, model, "loss")

    assert main(["summary", str(path)]) == 0
    assert "Run: stopped by ValueError at step 4: bad batch, last step 4" in capsys.readouterr().out
    assert main(["summary", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["run"]
    assert (told["status"], told["state"]) == ("stopped by ValueError at step 4", "stopped")
    with FileReader(path) as reader:
        payload = status(reader)
    assert payload["how"] == "stopped by ValueError at step 4: bad batch"
    assert mark([payload]) != mark([{**payload, "state": "finished"}])


# What is printed


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_the_end_of_a_training_is_told_with_what_was_found_and_where_to_look(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    watcher = tg.watch(model, save="my run.glass")
    with pytest.raises(ValueError, match="bad"), watcher:
        train(watcher, model, "loss")
    watcher.close()

    assert printed(capsys)[1:] == [
        "torchglass: stopped by ValueError at step 4: bad batch (5 steps); no problems found",
        "  torchglass explore 'my run.glass'",
    ]


def test_the_first_nan_is_told_at_once_and_all_problems_in_five_lines_at_the_end(
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
    assert re.fullmatch(r"torchglass: finished \(2 steps\); \d\d problems found:", head)
    assert lines[0] == f"  {nan}"
    assert len(lines) == 4


def test_who_wants_quiet_has_it(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tg.watch(model, save=tmp_path / "run.glass", verbose=False) as watcher:
        model(torch.full((2, 4), torch.nan)).sum().backward()
        train(watcher, model)

    assert printed(capsys) == []


def test_only_the_first_rank_speaks(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    with tg.watch(model, save=tmp_path / "run.glass") as watcher:
        train(watcher, model)

    assert printed(capsys) == []


def test_a_progress_bar_stays_in_a_line_of_its_own(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tqdm = pytest.importorskip("tqdm").tqdm

    with tg.watch(model, save=tmp_path / "run.glass") as watcher:
        for _ in tqdm(range(3), mininterval=0):
            model(torch.full((2, 4), torch.nan)).sum().backward()
            watcher.step()

    told = next(line for line in printed(capsys) if "entering the model" in line)
    assert told.rpartition("\r")[2].startswith("torchglass: All 8 values")


def test_a_stream_that_is_closed_stops_nothing(
    model: Model, tmp_path: Path, monkeypatch: Any
) -> None:
    with Path(os.devnull).open("w", encoding="utf-8") as closed:
        pass
    monkeypatch.setattr(sys, "stderr", closed)

    with tg.watch(model, save=tmp_path / "run.glass") as watcher:
        train(watcher, model)

    assert tg.open(tmp_path / "run.glass").status == "finished"
