"""The run file: its SQLite schema, and how to open it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from torchglass.errors import SchemaError, StoreError, warn

VIEWS = {
    1: """
    PRAGMA temp_store = MEMORY;
    CREATE TEMP VIEW documents AS
        SELECT 2 * id AS id, 'model' AS kind, json FROM main.model
        UNION ALL SELECT 2 * id + 1, 'trace', json FROM main.trace;
    CREATE TEMP VIEW sessions AS
        SELECT 1 AS id, value AS run, (SELECT min(step) FROM main.frames) AS first_step
        FROM main.meta WHERE key = 'run';
    CREATE TEMP VIEW frames AS
        SELECT id, step, time_ns, 1 AS session, blob, NULL AS bins FROM main.frames;
    """,
}
"""Views that make a file of an earlier version look current, without writing to it."""

UPGRADES = {
    1: """
    CREATE TABLE documents (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, json BLOB NOT NULL);
    INSERT INTO documents (kind, json) SELECT 'model', json FROM model;
    INSERT INTO documents (kind, json) SELECT 'trace', json FROM trace;
    DROP TABLE model;
    DROP TABLE trace;
    CREATE TABLE sessions (id INTEGER PRIMARY KEY, run TEXT NOT NULL, first_step INTEGER);
    INSERT INTO sessions SELECT 1, value, (SELECT min(step) FROM frames)
        FROM meta WHERE key = 'run';
    ALTER TABLE frames ADD COLUMN session INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE frames ADD COLUMN bins BLOB;
    DROP INDEX frames_by_step;
    CREATE INDEX frames_by_step ON frames (step, session);
    PRAGMA user_version = 2;
    """,
}
"""Statements that upgrade a file of an earlier version when a run is resumed."""

SCHEMA_VERSION = 2
# 1: meta, model, series, frames, trace.
# 2: model and trace became documents, beside others; frames have bins, and sessions that wrote
#    them, so that a run can be resumed.

APPLICATION_ID = 0x74676C73
"""Marks an SQLite file as a Torchglass run ("tgls")."""

PAGE_BYTES = 8192

SCHEMA = f"""
PRAGMA page_size = {PAGE_BYTES}; -- steps are large: a third less work than with 4096
BEGIN;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};

CREATE TABLE meta (
    key TEXT PRIMARY KEY,       -- "run": a records.run.RunRecord;
                                -- "finished_ns": when the writer closed the run, absent before;
                                -- "summary": what a list of runs shows (store.run_index), absent
                                -- while the run is written and in files of older versions;
                                -- "writer": the process that writes, and when it last said so
                                -- (store.run_file), absent in files of older versions;
                                -- "latest": step and value of what was last logged, by name,
                                -- absent in files of older versions;
                                -- "dropped": frames that were not written, absent if none;
                                -- "thinned": frames that were taken out again, absent if none;
                                -- "random_seed": that of the trace, absent if none is known
                                -- "saved_only": present if a trace lists saved tensors only
    value TEXT NOT NULL         -- JSON
);

CREATE TABLE documents (
    id INTEGER PRIMARY KEY,     -- a new and higher one for each version; only the last is kept
    kind TEXT NOT NULL,         -- "model", or a name in records.run.DOCUMENT_NAMES
    json BLOB NOT NULL          -- the record, compressed with zlib; the tensors of a trace lie in
                                -- a safetensors file beside this one, if they were saved
);

CREATE TABLE series (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL,         -- the module it belongs to, "" for the model
    name TEXT NOT NULL,         -- what is measured there: "weight.grad"
    kind TEXT NOT NULL,         -- a key of records.run.FIELDS
    UNIQUE (path, name, kind)
);

CREATE TABLE sessions (         -- the processes that wrote to the run, one after the other
    id INTEGER PRIMARY KEY,     -- from 1: the first began the run, the others resumed it
    run TEXT NOT NULL,          -- a records.run.RunRecord as JSON: who, where and when
    first_step INTEGER          -- where it took up the run; what earlier sessions wrote from this
                                -- step on is an abandoned branch. NULL before its first frame
);

CREATE TABLE frames (
    id INTEGER PRIMARY KEY,     -- in the order of writing
    step INTEGER NOT NULL,
    time_ns INTEGER NOT NULL,   -- since the epoch
    session INTEGER NOT NULL,   -- which one wrote it
    blob BLOB NOT NULL,         -- the numbers of all points, as store.packing lays them out
    bins BLOB                   -- the bins of all histograms, as store.packing lays them out
);
CREATE INDEX frames_by_step ON frames (step, session);

COMMIT;
"""

Journal = Literal["WAL", "TRUNCATE"]
"""The SQLite journal mode of a file that is being written."""

_MOST_JOURNAL_BYTES = 16 << 20
"""A larger journal is truncated to this size."""

_STRANGE = """SELECT count(*) FROM main.sqlite_master
WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%'"""

_DAMAGED = (sqlite3.DatabaseError, UnicodeDecodeError, KeyError)
"""The exceptions that a corrupt file raises; the messages may not be valid UTF-8."""


_NOT_OPENED = (OSError, ValueError, sqlite3.Error)
"""The exceptions of opening a file; a path with a NUL raises ValueError."""


_LOCK_SECONDS = 60
"""How long a reader waits for a lock, which a writer without a write-ahead log often holds."""


def has_begun(path: Path) -> bool:
    """Whether a file has content."""
    try:
        return path.is_file() and path.stat().st_size > 0
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot open {path}: {error}") from error


def reserve(path: Path) -> bool:
    """Create an empty file for a run; False if the name is taken.

    Only one of several processes that ask for the same name gets it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=False)
    except (OSError, ValueError) as error:
        # If the folder is a file, the error is the same as for a name that is taken.
        if isinstance(error, FileExistsError) and path.parent.is_dir():
            return False
        raise _not_written(path, error) from error
    return True


def create(
    path: Path, journal: Journal = "WAL", *, is_reserved: bool = False
) -> sqlite3.Connection:
    """A new, empty run file, open for writing. An existing file is never overwritten.

    With `is_reserved` an empty file may exist.
    """
    try:
        if not (is_reserved and path.exists()) and not reserve(path):
            raise _taken(path)
        if has_begun(path):
            raise _taken(path)
        return _prepared(path, SCHEMA, journal)
    except _NOT_OPENED as error:
        raise _not_written(path, error) from error


def _taken(path: Path) -> StoreError:
    return StoreError(
        f'{path} already exists; choose another name, continue it with resume="{path}", '
        "or delete it"
    )


def _not_written(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"cannot write a run to {path}: {error}. Choose a folder that you can write to "
        "(run_dir= or save=)"
    )


def open_to_append(path: Path, journal: Journal = "WAL") -> sqlite3.Connection:
    """An existing run file, upgraded to the current version, open for writing."""
    with contextlib.closing(open_read_only(path)) as connection:
        version = _check(path, connection)
    upgrade = f"BEGIN; {UPGRADES[version]} COMMIT;" if version < SCHEMA_VERSION else ""
    try:
        return _prepared(path, upgrade, journal)
    except _NOT_OPENED as error:
        raise StoreError(f"cannot continue writing to {path}: {error}") from error


def open_read_only(path: Path) -> sqlite3.Connection:
    """A run file open for reading from any thread, also while it is being written."""
    if not has_begun(path):
        if not path.is_file():
            raise StoreError(f"there is no run file {path}")
        raise StoreError(f"{path} is empty: its writer stopped before it wrote anything")
    try:
        connection = _connect(path, "mode=ro")
    except sqlite3.OperationalError as error:
        _refuse_locked(path, error)
        connection = _recovered(path) or _connect_in_read_only_directory(path, error)
    except _DAMAGED as error:
        raise StoreError(f"{path} is not a run file: {error}") from error
    try:
        version = _check(path, connection)
        if version < SCHEMA_VERSION:
            connection.executescript(VIEWS[version])
    except _DAMAGED as error:
        connection.close()
        _refuse_locked(path, error)
        raise StoreError(f"{path} is corrupt: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_locked(path: Path, error: Exception) -> None:
    if "locked" in str(error):
        raise StoreError(f"{path} is locked by another process; try again later") from error


def remove_log(path: Path) -> None:
    """Move the write-ahead log of a finished run into its file, if nobody has it open.

    SQLite does this when the last connection closes, but not if that one is read-only.
    """
    if path.with_name(f"{path.name}-wal").exists():
        with contextlib.suppress(sqlite3.Error):
            _connect(path, "mode=rw").close()


def _prepared(path: Path, script: str, journal: Journal) -> sqlite3.Connection:
    """A file open for writing, after a script has run on it."""
    connection = sqlite3.connect(path)
    try:
        connection.executescript(script)
        connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_MOST_JOURNAL_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


def uri_of(path: Path, mode: str) -> str:
    """The address of a file for SQLite, with any name, and how it is opened."""
    return f"file:{quote(os.fsencode(path.absolute()))}?{mode}"


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    address = uri_of(path, mode)
    connection = sqlite3.connect(address, uri=True, check_same_thread=False, timeout=_LOCK_SECONDS)
    try:
        # SQLite reads nothing before the first query.
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _recovered(path: Path) -> sqlite3.Connection | None:
    """Open a file whose writer was killed during a commit and had no write-ahead log."""
    try:
        _connect(path, "mode=rw").close()
        return _connect(path, "mode=ro")
    except sqlite3.Error:
        return None


def _connect_in_read_only_directory(path: Path, error: sqlite3.Error) -> sqlite3.Connection:
    """Open a file in a folder where SQLite cannot create the index of its journal."""
    for journal in (path.with_name(path.name + suffix) for suffix in ("-wal", "-journal")):
        if journal.exists() and journal.stat().st_size:
            raise StoreError(
                f"cannot read {path} in this folder ({error}). Copy it and {journal.name} to a "
                "folder that you can write to, and open it there."
            ) from error
    try:
        return _connect(path, "mode=ro&immutable=1")
    except sqlite3.Error:
        raise StoreError(f"cannot read {path}: {error}") from error


def _has_foreign_parts(connection: sqlite3.Connection) -> bool:
    """Whether a file has views, triggers or virtual tables, which could run foreign queries."""
    ((strange,),) = connection.execute(_STRANGE)
    return bool(strange)


def _check(path: Path, connection: sqlite3.Connection) -> int:
    """The format version of a file; raises if it is not a run, or of a newer version."""
    ((application,),) = connection.execute("PRAGMA application_id")
    ((version,),) = connection.execute("PRAGMA user_version")
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is an SQLite database, but not a Torchglass run")
    if _has_foreign_parts(connection):
        raise StoreError(
            f"{path} is refused: it has views, triggers or virtual tables, which could run "
            "foreign queries. No Torchglass run has them."
        )
    if version > SCHEMA_VERSION:
        raise SchemaError(
            f"{path} has format {version}, and this Torchglass reads up to {SCHEMA_VERSION}. "
            "Upgrade with: pip install --upgrade torchglass"
        )
    return int(version)


# The table "meta" of a file that nobody writes to can be read without SQLite
# (https://sqlite.org/fileformat2.html): its rows lie on the second page, if they are small.

META_END = 2 * PAGE_BYTES
"""The end of the page of the table "meta" in a file."""
_HEADER_BYTES = 100
_LEAF = 13
"""The first byte of a page that has rows of a table."""
_LOCAL_BYTES = PAGE_BYTES - 35
"""A larger row continues on other pages."""


def is_complete(pages: bytes, size: int) -> bool:
    """Whether the first pages belong to a complete run file of the current format."""
    if len(pages) < META_END:
        return False
    count, was, now = (int.from_bytes(pages[at : at + 4], "big") for at in (28, 24, 92))
    return (
        pages[68:72] == APPLICATION_ID.to_bytes(4, "big")
        and pages[60:64] == SCHEMA_VERSION.to_bytes(4, "big")
        and pages[16:18] == PAGE_BYTES.to_bytes(2, "big")
        and pages[20] == 0  # bytes at the end of each page that are reserved for extensions
        and pages[_HEADER_BYTES] == _LEAF
        and was == now
        and count * PAGE_BYTES == size
    )


def schema_in(pages: bytes) -> bytes:
    """The first page without its header: all tables of the file, and where they are."""
    return pages[_HEADER_BYTES:PAGE_BYTES]


def has_meta_first(connection: sqlite3.Connection) -> bool:
    """Whether the rows of the table "meta" begin on the second page, as we create it."""
    found = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'meta'").fetchall()
    return found == [(2,)]


def small_rows(pages: bytes) -> dict[str, str]:
    """The rows of the table "meta" that lie on the second page, by their keys."""
    page = pages[PAGE_BYTES:META_END]
    if page[0] != _LEAF:
        return {}
    rows = {}
    for at in range(8, 8 + 2 * int.from_bytes(page[3:5], "big"), 2):
        size, start = _varint(page, int.from_bytes(page[at : at + 2], "big"))
        _, start = _varint(page, start)
        if size > _LOCAL_BYTES:
            continue
        head, types = _varint(page, start)
        key_type, types = _varint(page, types)
        value_type, _ = _varint(page, types)
        # The type of a text of n bytes is 13 + 2n.
        middle = start + head + (key_type - 13) // 2
        value = page[middle : middle + (value_type - 13) // 2]
        rows[page[start + head : middle].decode()] = value.decode()
    return rows


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """An integer of up to nine bytes, and where the next one begins."""
    value = 0
    for number in range(at, at + 9):
        value = value << 7 | page[number] & 127
        if page[number] < 128:
            return value, number + 1
    raise ValueError("an integer of more than nine bytes")


MOUNTS = Path("/proc/self/mounts")

# fmt: off
_OVER_A_NETWORK = frozenset((
    "afs", "beegfs", "ceph", "cifs", "davfs", "fhgfs", "gcsfuse", "glusterfs", "gpfs", "juicefs",
    "lustre", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "rclone", "s3fs", "smb3",
    "smbfs", "sshfs", "vboxsf", "wekafs",
))
# fmt: on


def file_system_of(path: Path) -> str:
    """The name of the file system of a path, "" if not known."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    return deepest(path.absolute(), lines)


def deepest(path: Path, mounts: Iterable[str]) -> str:
    """The file system of the mount of a path, from lines as in /proc/self/mounts."""
    best, name = -1, ""
    for line in mounts:
        _, place, kind, *_ = line.split(" ")
        folder = Path(_unescaped(place))
        # The later of two mounts at one path covers the other.
        if len(folder.parts) >= best and path.is_relative_to(folder):
            best, name = len(folder.parts), kind
    return name


def is_over_a_network(file_system: str) -> bool:
    """Whether other machines may open the same files, which a write-ahead log does not support."""
    return file_system.removeprefix("fuse.") in _OVER_A_NETWORK


def journal_for(path: Path, file_system: Callable[[Path], str]) -> Journal:
    """The journal mode for a path; warns if it is not the usual one."""
    kind = file_system(path)
    if not is_over_a_network(kind):
        return "WAL"
    warn(
        f"{path} is on a network file system ({kind}), so it is written without a write-ahead "
        "log. Readers may have to wait briefly."
    )
    return "TRUNCATE"


def _unescaped(place: str) -> str:
    """A path in which spaces and other characters are octal escapes, unescaped."""
    return (
        place.encode("utf-8", "surrogateescape")
        .decode("unicode_escape")
        .encode("latin-1")
        .decode("utf-8", "surrogateescape")
    )
