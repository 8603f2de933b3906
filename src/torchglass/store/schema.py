"""The run file: an SQLite database, one for each run and rank, and the ways to open it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from torchglass.errors import SchemaError, StoreError

SCHEMA_VERSION = 1
# 1: meta, model, series, frames, trace.

APPLICATION_ID = 0x74676C73
"""Marks an SQLite file as a Torchglass run ("tgls"), so that no other database is taken for one."""

SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};

CREATE TABLE meta (
    key TEXT PRIMARY KEY,       -- "run": a records.run.Run;
                                -- "finished_ns": when the writer closed the run, absent before;
                                -- "dropped": frames that were not written, absent if none;
                                -- "random_seed": that of the trace, absent if none is known
    value TEXT NOT NULL         -- JSON
);

CREATE TABLE model (
    id INTEGER PRIMARY KEY,     -- a new one for each version; only the last version is kept
    json BLOB NOT NULL          -- a records.model.Model, compressed with zlib
);

CREATE TABLE series (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL,         -- the module it belongs to, "" for the model
    name TEXT NOT NULL,         -- what is measured there: "weight.grad"
    kind TEXT NOT NULL,         -- a key of records.series.FIELDS
    UNIQUE (path, name, kind)
);

CREATE TABLE frames (
    id INTEGER PRIMARY KEY,     -- in the order of writing
    step INTEGER NOT NULL,
    time_ns INTEGER NOT NULL,   -- since the epoch
    blob BLOB NOT NULL          -- all points of the step, as store.packing lays them out
);
CREATE INDEX frames_by_step ON frames (step);

CREATE TABLE trace (
    id INTEGER PRIMARY KEY,     -- a file holds one, or none
    json BLOB NOT NULL          -- a records.trace.Trace, compressed with zlib; its tensors lie in
                                -- a safetensors file beside this one, if they were saved
);
"""


def create(path: Path) -> sqlite3.Connection:
    """A new, empty run file, open for writing. What is already there is never overwritten."""
    if path.exists():
        raise StoreError(f"{path} is already there; choose another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=False)
        connection = sqlite3.connect(path)
        connection.executescript(f"BEGIN; {SCHEMA} COMMIT;")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"cannot write a run to {path}: {error}") from error
    return connection


def open_read_only(path: Path) -> sqlite3.Connection:
    """A run file open for reading from any thread, whether or not it is still being written."""
    if not path.is_file():
        raise StoreError(f"there is no run file {path}")
    if not path.stat().st_size:
        raise StoreError(f"{path} is empty: its writer stopped before it began")
    try:
        connection = _connect(path, "mode=ro")
    except sqlite3.OperationalError as error:
        connection = _connect_in_read_only_directory(path, error)
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path} is not a run file: {error}") from error
    try:
        _check(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    address = f"file:{quote(str(path.absolute()))}?{mode}"
    connection = sqlite3.connect(address, uri=True, check_same_thread=False)
    try:
        # SQLite reads nothing before the first query.
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_in_read_only_directory(path: Path, error: sqlite3.Error) -> sqlite3.Connection:
    """Open a file beside which SQLite may not put the index of its journal."""
    journal = path.with_name(path.name + "-wal")
    if journal.exists() and journal.stat().st_size:
        raise StoreError(
            f"cannot read {path} where it is ({error}); copy it and {journal.name} to a directory "
            "that you can write to, and open it there"
        ) from error
    try:
        return _connect(path, "mode=ro&immutable=1")
    except sqlite3.Error:
        raise StoreError(f"cannot read {path}: {error}") from error


def _check(path: Path, connection: sqlite3.Connection) -> None:
    try:
        ((application,),) = connection.execute("PRAGMA application_id")
        ((version,),) = connection.execute("PRAGMA user_version")
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path} is damaged: {error}") from error
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is an SQLite database, but not a Torchglass run")
    if version > SCHEMA_VERSION:
        raise SchemaError(
            f"{path} has format {version} and this Torchglass reads up to {SCHEMA_VERSION}; "
            "upgrade it: pip install --upgrade torchglass"
        )
