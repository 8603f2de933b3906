from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recorded import ROOT, RUN, put_step
from torchglass.errors import TorchglassWarning
from torchglass.records.series import Frame
from torchglass.store import writer
from torchglass.store.file import FileReader, FileSink

WRITE_UNTIL_KILLED = """
import itertools, sys
from pathlib import Path
from tests.recorded import MODEL, RUN, put_step
from torchglass.store import writer

writer.FLUSH_SECONDS = 0.003
sink = writer.FileSink(Path(sys.argv[1]), RUN)
sink.put_model(MODEL)
for step in itertools.count():
    put_step(sink, step)
    print(step, flush=True)
"""

WRITE_BEYOND_THE_LIMIT = """
import resource, sys, threading, warnings
from pathlib import Path
from tests.recorded import RUN, put_step
from torchglass.store import writer

writer.FLUSH_SECONDS = 0.01
warned = threading.Event()

def show(message, category, *_):
    print(category.__name__, message)
    warned.set()

warnings.showwarning = show
sink = writer.FileSink(Path(sys.argv[1]), RUN)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
step = 0
while not warned.wait(0.0002):
    put_step(sink, step)
    step += 1
for step in range(step, step + 3_000):
    put_step(sink, step)
if sys.argv[2] == "room returns":
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
sink.close()
print("trained", step)
"""

FORK = """
import os, sys
from pathlib import Path
from tests.recorded import RUN, put_step
from torchglass.store.writer import FileSink

sink = FileSink(Path(sys.argv[1]), RUN)
put_step(sink, 0)
child = os.fork()
put_step(sink, 1 if child else 99)
if child:
    assert os.waitpid(child, 0)[1] == 0
    put_step(sink, 2)
    sink.close()
else:
    sink.close()
    del sink
"""

NEVER_CLOSED = """
import sys
from pathlib import Path
from tests.recorded import RUN, put_step
from torchglass.store.writer import FileSink

put_step(FileSink(Path(sys.argv[1]), RUN), 0)
raise SystemExit(3)
"""


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    return subprocess.run(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def assert_is_a_prefix(path: Path) -> int:
    """Every step up to some step is there, whole; gives the number of steps."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    reader = FileReader(path)
    count = reader.last_step() + 1
    for series, every in zip(reader.series(), (1, 2), strict=False):
        points = reader.points(series.id)
        assert points.steps.tolist() == list(range(0, count, every))
        if series.label == "loss":
            assert points.column("value").tolist() == [1 / (step + 1) for step in range(count)]
    reader.close()
    return count


@pytest.mark.parametrize("seed", range(8))
def test_a_killed_process_leaves_a_file_that_opens(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "run.glass"
    steps_before_the_end = random.Random(seed).randrange(1, 4_000)
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_UNTIL_KILLED, str(path)], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        for _ in range(steps_before_the_end):
            process.stdout.readline()
        process.kill()

    before = FileReader(path)
    finished, last = before.finished(), before.last_step()
    before.close()

    assert not finished
    assert assert_is_a_prefix(path) == last + 1


def test_what_was_flushed_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "run.glass"
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_UNTIL_KILLED, str(path)], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        reader = FileReader(path)
        while (flushed := reader.last_step()) < 500:
            process.stdout.readline()
        process.kill()
    reader.close()

    assert assert_is_a_prefix(path) > flushed


def test_a_full_disk_warns_once_and_the_training_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run.glass"

    done = run_python(WRITE_BEYOND_THE_LIMIT, path, "stays full")

    warning, last = done.stdout.splitlines()
    assert warning.startswith(f"TorchglassWarning cannot write to {path}")
    assert last.startswith("trained")
    assert done.returncode == 0, done.stderr
    assert assert_is_a_prefix(path) > 0


def test_what_was_waiting_is_written_when_there_is_room_again(tmp_path: Path) -> None:
    path = tmp_path / "run.glass"

    done = run_python(WRITE_BEYOND_THE_LIMIT, path, "room returns")

    assert assert_is_a_prefix(path) == int(done.stdout.split()[-1]) + 1
    reader = FileReader(path)
    assert reader.finished()
    reader.close()


def test_steps_that_cannot_be_kept_are_counted_and_never_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MOST_WAITING_POINTS", 100)
    sink = FileSink(tmp_path / "run.glass", RUN)
    big = {sink.series("", f"s{i}"): 0.0 for i in range(101)}

    with pytest.warns(TorchglassWarning, match="is written too slowly"):
        sink.put_frame(Frame(step=0, time_ns=0, points=big))
    for step in range(1, 5):
        sink.put_frame(Frame(step=step, time_ns=0, points=big))
    put_step(sink, 5)
    sink.close()

    reader = FileReader(sink.path)
    assert (reader.dropped(), reader.last_step()) == (5, 5)
    reader.close()


def test_a_warning_that_is_an_error_does_not_reach_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "MOST_WAITING_POINTS", 0)
    sink = FileSink(tmp_path / "run.glass", RUN)

    put_step(sink, 0)
    sink.close()

    assert "is written too slowly" in caplog.text


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.glass"

    done = run_python(FORK, path)

    assert done.returncode == 0, done.stderr
    assert assert_is_a_prefix(path) == 3


def test_a_run_that_nobody_closes_is_closed_when_the_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "run.glass"

    done = run_python(NEVER_CLOSED, path)

    assert done.returncode == 3, done.stderr
    reader = FileReader(path)
    assert reader.finished()
    assert reader.last_step() == 0
    reader.close()


def test_closing_twice_or_writing_after_it_is_harmless(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "run.glass", RUN)
    put_step(sink, 0)

    sink.close()
    sink.close()
    put_step(sink, 1)

    assert assert_is_a_prefix(sink.path) == 1
