from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.recorded import ROOT, RUN, put_step, stats
from torchglass.errors import TorchglassWarning
from torchglass.records.findings import Finding, Findings
from torchglass.records.model import Histogram
from torchglass.records.run import Frame
from torchglass.records.trace import Graph
from torchglass.store import schema, writer
from torchglass.store.readers import FileReader
from torchglass.store.writer import FileSink

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

FORK_WRITERS = """
import itertools, os, sys
from pathlib import Path
from tests.recorded import MODEL, RUN, put_step
from torchglass.store import writer

writer.FLUSH_SECONDS = 0.002
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
        sink = writer.FileSink(Path(line.strip()), RUN)
        sink.put_model(MODEL)
        for step in itertools.count():
            put_step(sink, step)
            print(step, flush=True)
    os.waitpid(child, 0)
    print("killed", flush=True)
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


def killed_writers(folder: Path, moments: Sequence[int]) -> list[Path]:
    """Files whose writers were killed after so many steps each, or while making the file."""
    paths = [folder / f"{number}.glass" for number, _ in enumerate(moments)]
    with subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK_WRITERS],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for path, steps in zip(paths, moments, strict=True):
            print(path, file=parent.stdin, flush=True)
            child = int(parent.stdout.readline())
            for _ in range(steps):
                parent.stdout.readline()
            os.kill(child, signal.SIGKILL)
            # What the child wrote last may lack the end of its line.
            while not parent.stdout.readline().endswith("killed\n"):
                pass
    return paths


@pytest.mark.slow
def test_fifty_killed_processes_leave_files_that_open(tmp_path: Path) -> None:
    random_moments = random.Random(0)
    moments = [int(10 ** random_moments.uniform(0, 3.3)) for _ in range(50)]

    for path in killed_writers(tmp_path, moments):
        with FileReader(path) as reader:
            finished, last = reader.finished(), reader.last_step()
        assert not finished
        assert assert_is_a_prefix(path) == last + 1


def test_a_process_killed_while_creating_its_file_leaves_no_or_an_empty_run(
    tmp_path: Path,
) -> None:
    begun = [path for path in killed_writers(tmp_path, [0] * 30) if schema.has_begun(path)]

    for path in begun:
        with FileReader(path) as reader:
            assert reader.last_step() == -1


def test_flushed_data_survives_a_kill(tmp_path: Path) -> None:
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


def test_a_full_disk_warns_once_and_training_continues(tmp_path: Path) -> None:
    path = tmp_path / "run.glass"

    done = run_python(WRITE_BEYOND_THE_LIMIT, path, "stays full")

    warning, last = done.stdout.splitlines()
    assert warning.startswith(f"TorchglassWarning cannot write to {path}")
    assert last.startswith("trained")
    assert done.returncode == 0, done.stderr
    assert assert_is_a_prefix(path) > 0


def test_steps_not_written_because_of_a_full_disk_are_counted_as_dropped(tmp_path: Path) -> None:
    path = tmp_path / "run.glass"

    done = run_python(WRITE_BEYOND_THE_LIMIT, path, "stays full")

    measured = int(done.stdout.split()[-1]) + 1
    with FileReader(path) as reader:
        assert reader.finished()
        assert reader.dropped() == measured - assert_is_a_prefix(path)


def test_queued_steps_are_written_once_the_disk_has_space(tmp_path: Path) -> None:
    path = tmp_path / "run.glass"

    done = run_python(WRITE_BEYOND_THE_LIMIT, path, "room returns")

    assert assert_is_a_prefix(path) == int(done.stdout.split()[-1]) + 1
    reader = FileReader(path)
    assert reader.finished()
    reader.close()


def test_steps_that_cannot_be_queued_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MOST_WAITING_BYTES", 100)
    sink = FileSink(tmp_path / "run.glass", RUN)
    big = {sink.series("", f"s{i}"): 0.0 for i in range(101)}

    with pytest.warns(TorchglassWarning, match="writing to the disk is too slow"):
        sink.put_frame(Frame(step=0, time_ns=0, points=big))
    for step in range(1, 5):
        sink.put_frame(Frame(step=step, time_ns=0, points=big))
    put_step(sink, 5)
    sink.close()

    reader = FileReader(sink.path)
    assert (reader.dropped(), reader.last_step()) == (5, 5)
    reader.close()


def test_warnings_as_errors_do_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "MOST_WAITING_BYTES", 0)
    sink = FileSink(tmp_path / "run.glass", RUN)

    put_step(sink, 0)
    sink.close()

    assert "writing to the disk is too slow" in caplog.text


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.glass"

    done = run_python(FORK, path)

    assert done.returncode == 0, done.stderr
    assert assert_is_a_prefix(path) == 3


def test_an_open_run_is_closed_when_the_process_ends(tmp_path: Path) -> None:
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


def test_an_unserializable_document_is_skipped_and_the_rest_is_written(
    tmp_path: Path,
) -> None:
    sink = FileSink(tmp_path / "run.glass", RUN)
    finding = Finding(severity="info", kind="odd", message="", facts={"what": 1j})

    def write() -> None:
        sink.put_document(Findings(findings=(finding,)))
        sink.put_document(Graph(passes=2))
        put_step(sink, 0)
        sink.close()

    with pytest.warns(TorchglassWarning, match=r"run\.glass is written without its findings"):
        write()

    with FileReader(sink.path) as reader:
        assert reader.document(Findings) is None
        assert reader.document(Graph) == Graph(passes=2)
        assert reader.last_step() == 0


def test_steps_may_be_numpy_integers(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "run.glass", RUN)
    loss = sink.series("", "loss")

    for step in np.arange(3):
        points = {loss: np.float32(0.5)}
        sink.put_frame(Frame(step=step, time_ns=step, points=points))  # type: ignore[arg-type]
    sink.close()

    with FileReader(sink.path) as reader:
        assert reader.points(loss).steps.tolist() == [0, 1, 2]


def test_an_unstorable_step_is_dropped_and_counted(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "run.glass", RUN)
    output = sink.series("fc", "output", "histogram")
    beyond = Histogram(exponent=0, first=1 << 80, counts=(1,), stats=stats(1))

    def write() -> None:
        put_step(sink, 0)
        sink.put_frame(Frame(step=1, time_ns=0, points={output: beyond}))
        put_step(sink, 2)
        sink.close()

    with pytest.warns(TorchglassWarning, match=r"step 1 is missing in .*run\.glass"):
        write()

    with FileReader(sink.path) as reader:
        assert reader.last_step() == 2
        assert reader.dropped() == 1


def test_an_immediately_writing_thread_does_not_race_with_construction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FLUSH_SECONDS", 0)
    paths = [tmp_path / f"{number}.glass" for number in range(40)]

    for path in paths:
        sink = FileSink(path, RUN)
        put_step(sink, 0)
        sink.close()

    for path in paths:
        with FileReader(path) as reader:
            assert reader.last_step() == 0


@pytest.mark.parametrize("whole_folder", [False, True])
def test_a_deleted_file_is_reported_once_and_training_continues(
    tmp_path: Path, whole_folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs" / "run.glass"
    told: list[str] = []
    has_told = threading.Event()

    def tell(message: str) -> None:
        told.append(message)
        has_told.set()

    monkeypatch.setattr(writer, "warn", tell)
    sink = FileSink(path, RUN)
    put_step(sink, 0)

    shutil.rmtree(path.parent) if whole_folder else path.unlink()
    put_step(sink, 1)

    assert has_told.wait(120)
    put_step(sink, 2)
    sink.close()
    assert len(told) == 1
    assert "run.glass was deleted or moved" in told[0]


def test_chdir_during_training_does_not_move_the_run_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = FileSink(Path("run.glass"), RUN)
    monkeypatch.chdir(tmp_path.parent)
    put_step(sink, 0)
    sink.close()

    with FileReader(tmp_path / "run.glass") as reader:
        assert reader.last_step() == 0


def test_a_run_may_be_closed_by_the_thread_that_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = FileSink(tmp_path / "run.glass", RUN)
    monkeypatch.setattr(sink, "_look_for_file", sink.close)
    put_step(sink, 0)

    sink._thread.join(120)

    with FileReader(tmp_path / "run.glass") as reader:
        assert reader.finished()
        assert reader.last_step() == 0
