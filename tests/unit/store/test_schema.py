from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.recorded import RUN, put_step, write_run
from torchglass.errors import SchemaError, StoreError
from torchglass.records.trace import TraceRecord
from torchglass.store.readers import FileReader
from torchglass.store.writer import FileSink

NOBODY = 65534


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run.glass")


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """A directory in which nothing can be written, not even by root."""
    is_root = os.geteuid() == 0
    above = [parent for parent in directory.parents if parent != Path("/")]
    modes = {parent: parent.stat().st_mode for parent in above}
    for parent in above if is_root else ():
        parent.chmod(modes[parent] | 0o055)
    directory.chmod(0o555)
    for file in directory.iterdir():
        file.chmod(0o444)
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        directory.chmod(0o755)
        for parent in above if is_root else ():
            parent.chmod(modes[parent])


@pytest.mark.parametrize(
    "name", ["a run.glass", "50%25?mode=rw#1.glass", "läuft.glass", ".glass", "x'y\"z.glass"]
)
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    path = write_run(tmp_path / "odd & deep?" / name)

    reader = FileReader(path)

    assert reader.last_step() == 9
    assert [file.name for file in path.parent.iterdir()] == [name]
    reader.close()


def test_a_run_never_overwrites_an_existing_file(run_file: Path) -> None:
    told = r"run\.glass already exists; choose another name, continue it with resume=\".*run\.glass"
    with pytest.raises(StoreError, match=told):
        FileSink(run_file, RUN)

    reader = FileReader(run_file)
    assert reader.last_step() == 9
    reader.close()


def test_an_unwritable_path_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StoreError, match=r"cannot write a run to .*run\.glass"):
        FileSink(tmp_path / "file" / "run.glass", RUN)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no run file .*gone\.glass"):
        FileReader(tmp_path / "gone.glass")


def test_an_empty_file_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "run.glass").touch()

    with pytest.raises(StoreError, match=r"run\.glass is empty"):
        FileReader(tmp_path / "run.glass")


def test_another_kind_of_file_is_not_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run.glass"
    path.write_bytes(b"PK\x03\x04 something else " * 1000)

    with pytest.raises(StoreError, match="is not a run file"):
        FileReader(path)


def test_another_sqlite_database_is_not_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run.glass"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE frames (step)")
    other.close()

    with pytest.raises(StoreError, match="is an SQLite database, but not a Torchglass run"):
        FileReader(path)


def test_a_truncated_file_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    whole = write_run(tmp_path / "run.glass", steps=2_000).read_bytes()
    path = tmp_path / "cut.glass"

    for size in (10, 100, 5_000, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(StoreError, match=r"cut\.glass"):
            _read_all(path)


def test_a_file_with_flipped_bytes_is_read_or_refused_without_a_crash(tmp_path: Path) -> None:
    whole = write_run(tmp_path / "run.glass", steps=50).read_bytes()
    path = tmp_path / "damaged.glass"
    random_places = random.Random(0)

    read = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for place in random_places.sample(range(len(whole)), 20):
            damaged[place] = random_places.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(StoreError):
            _read_all(path)
            read += 1

    assert 0 < read < 300


def test_a_file_of_a_newer_version_suggests_upgrading(run_file: Path) -> None:
    connection = sqlite3.connect(run_file)
    connection.execute("PRAGMA user_version = 99")
    connection.close()

    with pytest.raises(SchemaError, match=r"format 99, .* pip install --upgrade torchglass"):
        FileReader(run_file)


def test_a_finished_run_opens_in_a_read_only_folder(run_file: Path) -> None:
    with read_only(run_file.parent):
        assert _read_all(run_file) == 10


def test_a_run_closed_by_its_reader_opens_in_a_read_only_folder(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "run.glass", RUN)
    reader = FileReader(sink.path)
    put_step(sink, 0)
    sink.close()
    reader.close()
    for journal in tmp_path.glob("*-*"):
        journal.unlink()

    with read_only(tmp_path):
        assert _read_all(sink.path) == 1


def test_a_live_run_opens_in_a_read_only_folder(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "run.glass", RUN)
    put_step(sink, 0)
    watching = FileReader(sink.path)
    while watching.last_step() < 0:
        pass

    with read_only(tmp_path):
        assert _read_all(sink.path) == 1

    watching.close()
    sink.close()


def test_an_unreadable_write_ahead_log_is_not_silently_ignored(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "live" / "run.glass", RUN)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("run.glass", "run.glass-wal"):
        shutil.copy(sink.path.parent / name, copy / name)
    sink.close()

    with (
        read_only(copy),
        pytest.raises(StoreError, match=r"Copy it and run\.glass-wal to a folder"),
    ):
        FileReader(copy / "run.glass")


def _read_all(path: Path) -> int:
    reader = FileReader(path)
    try:
        reader.run()
        reader.document(TraceRecord)
        reader.sessions()
        for series in reader.series():
            reader.points(series.id)
            reader.histograms(series.id)
        return len(reader.points(reader.series()[0].id))
    finally:
        reader.close()
