"""Files of earlier versions open as they did, read or resumed."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import struct
import zlib
from pathlib import Path

import pytest

from tests.recorded import MODEL, RUN, histogram, put_step, stats
from torchglass.errors import StoreError
from torchglass.records.json_data import to_json_data
from torchglass.records.run import Frame, Session
from torchglass.records.step_points import point_values
from torchglass.records.trace import Graph, TraceRecord
from torchglass.store import schema
from torchglass.store.readers import FileReader, read_trace
from torchglass.store.writer import FileSink

VERSION_1 = """
PRAGMA application_id = 0x74676C73;
PRAGMA user_version = 1;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE model (id INTEGER PRIMARY KEY, json BLOB NOT NULL);
CREATE TABLE series (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    UNIQUE (path, name, kind)
);
CREATE TABLE frames (
    id INTEGER PRIMARY KEY,
    step INTEGER NOT NULL,
    time_ns INTEGER NOT NULL,
    blob BLOB NOT NULL
);
CREATE INDEX frames_by_step ON frames (step);
CREATE TABLE trace (id INTEGER PRIMARY KEY, json BLOB NOT NULL);
"""
TRACE = TraceRecord(model="Net", calls=(), ops=(), notes=("as it was",))


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    """Three steps and a trace, as the first version wrote them."""
    path = tmp_path / "old.glass"
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_1)
    meta = {"run": to_json_data(RUN), "finished_ns": 1, "random_seed": 5}
    with connection:
        connection.executemany(
            "INSERT INTO meta VALUES (?, ?)", [(key, json.dumps(meta[key])) for key in meta]
        )
        for table, record in (("model", MODEL), ("trace", TRACE)):
            packed = zlib.compress(json.dumps(to_json_data(record)).encode())
            connection.execute(f"INSERT INTO {table} (json) VALUES (?)", [packed])
        connection.executemany(
            "INSERT INTO series VALUES (?, ?, ?, ?)",
            [(0, "", "loss", "scalar"), (1, "fc", "weight", "stats")],
        )
        for step in range(3):
            blob = struct.pack("<III8d", 2, 0, 1, 1 / (step + 1), *point_values(stats(step)))
            connection.execute(
                "INSERT INTO frames (step, time_ns, blob) VALUES (?, ?, ?)", [step, step, blob]
            )
    connection.close()
    return path


def test_a_file_that_cannot_be_upgraded_is_closed(version_1: Path) -> None:
    with contextlib.closing(sqlite3.connect(version_1)) as connection:
        connection.execute("DROP TABLE trace")

    # The error is kept, and with it all that was under way.
    with pytest.raises(StoreError, match=r"cannot continue writing to .*old\.glass") as kept:
        schema.open_to_append(version_1)

    with contextlib.closing(sqlite3.connect(version_1, timeout=0)) as connection:
        connection.execute("CREATE TABLE trace (id, json)")
    assert kept.value.__cause__ is not None


def test_a_version_1_file_is_read_completely(version_1: Path) -> None:
    before = version_1.read_bytes()

    with FileReader(version_1) as reader:
        loss, weight = reader.series()
        assert reader.run() == RUN
        assert reader.model() == MODEL
        assert reader.points(loss.id).column("value").tolist() == [1, 1 / 2, 1 / 3]
        assert tuple(reader.points(weight.id, after=1).values[0]) == point_values(stats(2))
        assert len(reader.histograms(weight.id)) == 0
        assert reader.document(Graph) is None
        assert reader.last_step() == 2
        assert reader.finished()
        assert reader.sessions() == (Session(number=1, run=RUN, first_step=0, last_step=2),)
    assert read_trace(version_1).trace == TRACE
    assert read_trace(version_1).random_seed == 5
    assert version_1.read_bytes() == before


def test_resuming_a_version_1_run_upgrades_it(version_1: Path) -> None:
    sink = FileSink(version_1, RUN, resume=True)
    put_step(sink, 3)
    output = sink.series("fc", "output", "histogram")
    sink.put_frame(Frame(step=4, time_ns=0, points={output: histogram(4)}))
    sink.put_document(Graph(passes=2))
    sink.close()

    with FileReader(version_1) as reader:
        loss, *_ = reader.series()
        assert reader.points(loss.id).steps.tolist() == [0, 1, 2, 3]
        assert tuple(reader.histograms(output).bins) == (histogram(4),)
        assert reader.document(Graph) == Graph(passes=2)
        assert reader.document(TraceRecord) == TRACE
        assert [session.first_step for session in reader.sessions()] == [0, 3]


def test_an_upgraded_file_has_the_current_schema(version_1: Path, tmp_path: Path) -> None:
    schema.open_to_append(version_1).close()
    schema.create(tmp_path / "new.glass").close()

    old, new = (_columns(path) for path in (version_1, tmp_path / "new.glass"))

    assert old == new


def _columns(path: Path) -> dict[str, set[str]]:
    connection = sqlite3.connect(path)
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    columns = {
        name: {row[1] for row in connection.execute(f"PRAGMA table_xinfo({name})")}
        for name in names
        if not name.startswith("sqlite_")
    }
    connection.close()
    return columns
