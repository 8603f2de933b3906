from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.recorded import MODEL, RUN, put_step, write_run
from torchglass.errors import StoreError, TorchglassWarning
from torchglass.records.run import Frame, RunRecord, Session
from torchglass.store.readers import FileReader
from torchglass.store.writer import FileSink

LATER = RunRecord(name="today", created_ns=RUN.created_ns + 1, host="there")


def resume(path: Path, steps: range, value: float = 0.5) -> None:
    sink = FileSink(path, LATER, resume=True)
    loss = sink.series("", "loss")
    for step in steps:
        sink.put_frame(Frame(step=step, time_ns=step, points={loss: value}))
    sink.close()


def losses(path: Path, **options: int) -> dict[int, float]:
    with FileReader(path, **options) as reader:
        points = reader.points(reader.series()[0].id)
        assert reader.last_step() == max(points.steps)
        return dict(zip(points.steps.tolist(), points.column("value").tolist(), strict=True))


def test_a_resumed_run_continues_in_its_file(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.glass", steps=3)

    resume(path, range(3, 5))

    assert losses(path) == {0: 1, 1: 1 / 2, 2: 1 / 3, 3: 0.5, 4: 0.5}
    with FileReader(path) as reader:
        assert reader.run() == RUN
        assert reader.model() == MODEL
        assert reader.finished()
        assert [series.label for series in reader.series()] == ["loss", "fc.weight"]
        assert reader.sessions() == (
            Session(number=1, run=RUN, first_step=0, last_step=2),
            Session(number=2, run=LATER, first_step=3, last_step=4),
        )


def test_resuming_a_missing_file_creates_it(tmp_path: Path) -> None:
    resume(tmp_path / "run.glass", range(2))

    assert losses(tmp_path / "run.glass") == {0: 0.5, 1: 0.5}


def test_a_file_left_empty_by_a_killed_writer_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "run.glass").touch()

    resume(tmp_path / "run.glass", range(2))

    assert losses(tmp_path / "run.glass") == {0: 0.5, 1: 0.5}


def test_restarting_from_an_earlier_step_keeps_the_old_branch(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.glass", steps=6)

    resume(path, range(2, 4))

    assert losses(path) == {0: 1, 1: 1 / 2, 2: 0.5, 3: 0.5}
    assert losses(path, session=1) == {step: 1 / (step + 1) for step in range(6)}
    with FileReader(path) as reader:
        first, second = reader.sessions()
        assert (first.last_step, first.abandoned_from) == (5, 2)
        assert (second.first_step, second.abandoned_from) == (2, None)


def test_a_branch_of_a_branch_is_read_unchanged(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.glass", steps=4)

    resume(path, range(2, 6), value=2.0)
    resume(path, range(4, 5), value=3.0)

    assert losses(path) == {0: 1, 1: 1 / 2, 2: 2, 3: 2, 4: 3}
    assert losses(path, session=2) == {0: 1, 1: 1 / 2, 2: 2, 3: 2, 4: 2, 5: 2}
    assert list(losses(path, session=1)) == [0, 1, 2, 3]


def test_an_open_reader_sees_a_resumed_run(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.glass", steps=3)
    with FileReader(path) as reader:
        before = reader.revision()
        sink = FileSink(path, LATER, resume=True)
        assert not reader.finished()
        assert reader.revision() > before
        put_step(sink, 3)
        sink.close()

        assert reader.last_step() == 3
        assert reader.finished()


def test_a_replaced_writer_stops_writing(tmp_path: Path) -> None:
    first = FileSink(tmp_path / "run.glass", RUN)
    put_step(first, 0)
    with FileReader(first.path) as reader:
        while reader.last_step() < 0:
            pass
    second = FileSink(first.path, LATER, resume=True)
    put_step(second, 1)

    def go_on() -> None:
        put_step(first, 1)
        first.close()

    with pytest.warns(TorchglassWarning, match="another process has resumed the run"):
        go_on()
    second.close()

    with FileReader(first.path) as reader:
        assert reader.points(reader.series()[0].id).steps.tolist() == [0, 1]
        assert reader.finished()


def test_a_file_that_is_not_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "other.glass"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE frames (step)")
    other.close()

    with pytest.raises(StoreError, match="not a Torchglass run"):
        FileSink(path, RUN, resume=True)


def test_dropped_steps_are_counted_over_all_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchglass.store.writer.MOST_WAITING_BYTES", 0)
    for _ in range(2):
        sink = FileSink(tmp_path / "run.glass", RUN, resume=True)
        with pytest.warns(TorchglassWarning, match="too slow"):
            put_step(sink, 0)
        sink.close()

    with FileReader(tmp_path / "run.glass") as reader:
        assert reader.dropped() == 2
