from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorded import RUN
from torchglass.records.run import Frame
from torchglass.store import schema, writer
from torchglass.store.readers import FileReader
from torchglass.store.run_file import FEWEST_FRAMES, PackedFrame, PendingWrites, RunFile, choose
from torchglass.store.step_blobs import Blobs
from torchglass.store.writer import FileSink

LIMIT = 400_000


def write_wide_steps(path: Path, steps: int, max_bytes: int | None) -> None:
    """Steps of 300 numbers each, some 4 kB."""
    sink = FileSink(path, RUN, max_bytes=max_bytes)
    ids = [sink.series("", f"s{number}") for number in range(300)]
    for step in range(steps):
        points = {series: float(step) for series in ids}
        sink.put_frame(Frame(step=step, time_ns=step, points=points))
    sink.close()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush every few steps, as in a training whose steps take longer."""
    monkeypatch.setattr(writer, "FLUSH_FRAMES", 8)
    monkeypatch.setattr(writer, "MOST_WAITING_BYTES", 1 << 40)


@pytest.mark.usefixtures("often")
def test_a_long_run_stays_within_its_size_limit(tmp_path: Path) -> None:
    write_wide_steps(tmp_path / "run.glass", 2_000, LIMIT)

    assert (tmp_path / "run.glass").stat().st_size <= LIMIT
    with FileReader(tmp_path / "run.glass") as reader:
        points = reader.points(reader.series()[0].id)
        assert len(points) + reader.thinned() == 2_000
        assert reader.dropped() == 0
        assert points.values[:, 0].tolist() == points.steps.tolist()
    with sqlite3.connect(tmp_path / "run.glass") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_the_queue_for_a_slow_disk_stays_within_the_size_limit(tmp_path: Path) -> None:
    write_wide_steps(tmp_path / "run.glass", 2_000, LIMIT)

    assert (tmp_path / "run.glass").stat().st_size <= LIMIT
    with FileReader(tmp_path / "run.glass") as reader:
        steps = reader.points(reader.series()[0].id).steps
        assert len(steps) + reader.thinned() + reader.dropped() == 2_000
        assert steps[-1] == 1_999


def test_steps_are_removed_to_fit_a_large_document(tmp_path: Path) -> None:
    file = RunFile(schema.create(tmp_path / "run.glass"), RUN)
    step = Blobs(bytes(4_000), None)
    for number in range(60):
        frame = PackedFrame(step=number, time_ns=number, blobs=step)
        file.write(PendingWrites(frames=[frame]), max_bytes=LIMIT)

    file.write(PendingWrites(documents={"findings": bytes(LIMIT // 3)}), max_bytes=LIMIT)
    file.close()

    assert (tmp_path / "run.glass").stat().st_size <= LIMIT


@pytest.mark.usefixtures("often")
def test_thinned_steps_span_the_whole_run_and_its_end_is_complete(tmp_path: Path) -> None:
    write_wide_steps(tmp_path / "run.glass", 2_000, LIMIT)

    with FileReader(tmp_path / "run.glass") as reader:
        steps = reader.points(reader.series()[0].id).steps
    assert (steps[0], steps[-1]) == (0, 1_999)
    assert np.diff(steps)[-len(steps) // 6 :].max() == 1
    assert np.diff(steps).max() <= 4 * 2_000 / len(steps)


def test_a_run_without_a_limit_is_never_thinned(tmp_path: Path) -> None:
    write_wide_steps(tmp_path / "run.glass", 200, None)

    with FileReader(tmp_path / "run.glass") as reader:
        assert reader.thinned() == 0
        assert len(reader.points(reader.series()[0].id)) == 200


def test_a_too_small_limit_still_keeps_some_steps(tmp_path: Path) -> None:
    write_wide_steps(tmp_path / "run.glass", 60, 1)

    with FileReader(tmp_path / "run.glass") as reader:
        assert reader.last_step() == 59


@given(st.lists(st.integers(1, 1_000), min_size=FEWEST_FRAMES + 1, max_size=300).map(np.cumsum))
def test_thinning_removes_at_most_a_quarter_no_neighbors_and_no_end(steps: np.ndarray) -> None:
    gone = choose(steps)

    assert 1 <= len(gone) <= len(steps) // 4
    assert len(gone) == 1 or np.diff(gone).min() > 1
    assert gone[0] > 0
    assert gone[-1] < len(steps) * 3 // 4


def test_thinning_removes_the_densest_steps_first() -> None:
    sparse, dense = np.arange(0, 1_000, 50), np.arange(1_000, 1_040)
    steps = np.concatenate([sparse, dense])

    gone = steps[choose(steps)]

    assert gone.min() >= 950
