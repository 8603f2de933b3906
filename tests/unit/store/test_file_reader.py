from __future__ import annotations

import gc
import json
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.recorded import MODEL, ROOT, RUN, going_on, stats, write_run
from torchglass.records.step_points import point_values
from torchglass.store import run_file
from torchglass.store.readers import FileReader
from torchglass.store.writer import FileSink

WRITE_WHEN_ASKED = """
import sys
from pathlib import Path
from tests.recorded import MODEL, RUN, put_step
from torchglass.store import writer

writer.FLUSH_SECONDS = 0.002
sink = writer.FileSink(Path(sys.argv[1]), RUN)
sink.put_model(MODEL)
step = 0
print("ready", flush=True)
for request in sys.stdin:
    for step in range(step, step + int(request)):
        put_step(sink, step)
    step += 1
sink.close()
"""


def test_a_finished_run_is_one_plain_file(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.glass")

    assert list(tmp_path.iterdir()) == [path]
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA journal_mode").fetchall() == [("delete",)]
    connection.close()


def test_an_unreferenced_reader_closes_the_file(tmp_path: Path) -> None:
    reader = FileReader(write_run(tmp_path / "run.glass"))
    connection = reader._connection
    assert connection is not None

    del reader
    gc.collect()

    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        connection.execute("SELECT 1")


def test_a_run_is_read_while_another_process_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "run.glass"
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_WHEN_ASKED, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        reader = FileReader(path)
        for written in (500, 1_000, 1_500):
            print(500, file=process.stdin, flush=True)
            while process.poll() is None and (last := reader.last_step()) < written - 1:
                if reader.series():
                    steps = reader.points(reader.series()[0].id).steps
                    assert steps.tolist() == list(range(len(steps)))
                    assert len(steps) > last
            assert reader.last_step() == written - 1
            assert not reader.finished()

    assert reader.finished()
    assert reader.model() == MODEL
    reader.close()


def test_several_threads_read_at_once(tmp_path: Path) -> None:
    reader = FileReader(write_run(tmp_path / "run.glass", steps=500))
    loss, weight = (series.id for series in reader.series())

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(reader.points, [loss, weight] * 40))

    assert [len(points) for points in found] == [500, 250] * 40
    reader.close()


def test_several_series_are_read_in_one_go(tmp_path: Path) -> None:
    reader = FileReader(write_run(tmp_path / "run.glass"))
    loss, weight = (series.id for series in reader.series())

    second, first = reader.points_of([weight, loss], after=3)

    assert (second.series.label, second.steps.tolist()) == ("fc.weight", [4, 6, 8])
    assert (first.series.label, first.steps.tolist()) == ("loss", [4, 5, 6, 7, 8, 9])
    reader.close()


def test_a_model_is_decoded_once(tmp_path: Path) -> None:
    reader = FileReader(write_run(tmp_path / "run.glass"))

    assert reader.model() is reader.model()
    reader.close()


def test_an_open_reader_does_not_block_the_writer_from_finishing(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "run.glass", RUN)
    reader = FileReader(sink.path)

    sink.close()

    assert reader.finished()
    reader.close()


def test_statistics_keep_their_exact_values(tmp_path: Path) -> None:
    reader = FileReader(write_run(tmp_path / "run.glass"))

    row = reader.points(reader.series()[1].id, after=7).values[0]

    assert tuple(row) == point_values(stats(8))
    reader.close()


def test_an_idle_writer_updates_its_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_file, "HEARTBEAT_SECONDS", 0.0)
    with going_on(tmp_path / "run.glass", 1) as path, FileReader(path) as reader:
        with sqlite3.connect(path) as connection:
            ((writer,),) = connection.execute("SELECT value FROM meta WHERE key = 'writer'")
            gone = json.dumps({**json.loads(writer), "machine": "elsewhere", "time_ns": 0})
            connection.execute("UPDATE meta SET value = ? WHERE key = 'writer'", [gone])
        connection.close()

        while reader.status() != "running":
            continue
