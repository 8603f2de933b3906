"""The runs of a folder as a list, each read once: an index beside them keeps what was read.

The index is one SQLite file. Each row has the entry of a run file and the sizes and times of the
files that it was read from, and is valid while these do not change. A corrupt index is created
again; if it cannot be written, everything is read again next time.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torchglass.errors import StoreError
from torchglass.records.json_data import from_json_data, to_json_data
from torchglass.records.run import Ending, RunEntry, RunRecord, Series
from torchglass.store import schema
from torchglass.store.readers import PACE_FRAMES, status_of
from torchglass.store.run_file import read_meta
from torchglass.store.step_blobs import LatestValues

INDEX_NAME = ".torchglass-runs.sqlite"
RUN_SUFFIX = ".glass"

_VERSION = 2
_APPLICATION_ID = 0x74676C69
"""Marks an SQLite file as an index of runs ("tgli")."""
_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_VERSION};
CREATE TABLE IF NOT EXISTS runs (
    path TEXT PRIMARY KEY,      -- in the folder
    mark TEXT NOT NULL,         -- sizes and times of the files it was read from
    entry TEXT NOT NULL         -- a records.run.RunEntry as JSON
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS curves (
    path TEXT PRIMARY KEY,
    mark TEXT NOT NULL,
    points BLOB NOT NULL        -- steps, then values, as float64, of the loss of a run that is over
) WITHOUT ROWID;
"""
_LOCK_SECONDS = 2.0
_BESIDE = ("-wal", "-journal")
_LEFT_OUT = {"node_modules", "site-packages", "__pycache__"}
_SEVERITIES = ("error", "warning")
_MOST_PROBLEMS = 5
_UNREADABLE = (
    *(sqlite3.Error, zlib.error, ValueError, LookupError, TypeError, ArithmeticError),
    *(AttributeError, RecursionError, MemoryError, OSError),
)
"""The exceptions that a corrupt file raises."""

_DOCUMENTS = """
SELECT kind, CASE kind WHEN 'trace' THEN NULL ELSE json END FROM documents
WHERE kind IN ('ending', 'findings', 'trace')
"""
_TIMES = "SELECT step, time_ns FROM frames ORDER BY id DESC LIMIT ?"
_ABSENT = object()


class RunFileMark(NamedTuple):
    """A run file as found in a folder."""

    path: str
    mark: str
    """Changes when the file does."""
    size: int
    is_quiet: bool
    """Whether it has no journal, so that nobody writes to it."""


class RunIndex:
    """The runs of a folder and of the folders in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[str, RunEntry]] = {}
        self._file = folder / INDEX_NAME
        self._is_read = False

    def entries(self) -> list[RunEntry]:
        """All runs as they are now. Only what has changed since the last time is read."""
        if not self._is_read:
            self._is_read = True
            self._known = _read_index(self._file)
        found = list(run_files(self.folder))
        now: dict[str, tuple[str, RunEntry]] = {}
        news: list[tuple[str, str, str]] = []
        reader = RunFileReader()
        for file in found:
            known = self._known.get(file.path)
            if known is None or known[0] != file.mark or not known[1].status.is_over:
                entry = reader.read(self.folder, file)
                if known is None or (file.mark, entry) != known:
                    news.append((file.path, file.mark, json.dumps(to_json_data(entry))))
                known = file.mark, entry
            now[file.path] = known
        gone = [path for path in self._known if path not in now]
        self._known = now
        if news or gone:
            self._write(news, gone)
        return [entry for _, entry in now.values()]

    def curves(
        self, paths: Sequence[str], read: Callable[[str], npt.NDArray[np.float64]]
    ) -> dict[str, npt.NDArray[np.float64]]:
        """The curves of some runs, a row of steps and one of values; `read` gives new ones."""
        kept = self._kept_curves(paths)
        found: dict[str, npt.NDArray[np.float64]] = {}
        news = []
        for path in paths:
            mark, entry = self._known.get(path, ("", None))
            if path in kept and kept[path][0] == mark:
                found[path] = np.frombuffer(kept[path][1], np.float64).reshape(2, -1)
                continue
            found[path] = read(path)
            if entry is not None and entry.status.is_over:
                news.append((path, mark, found[path].tobytes()))
        if news:
            with contextlib.suppress(*_UNREADABLE):
                if _is_ours(self._file):
                    self._put((), (), news)
        return found

    def _kept_curves(self, paths: Sequence[str]) -> dict[str, tuple[str, bytes]]:
        rows: list[tuple[str, str, bytes]] = []
        with contextlib.suppress(*_UNREADABLE), contextlib.closing(_open(self._file)) as index:
            for path in paths:
                rows += index.execute("SELECT * FROM curves WHERE path = ?", [path]).fetchall()
        return {path: (mark, points) for path, mark, points in rows}

    def _write(self, news: list[tuple[str, str, str]], gone: list[str]) -> None:
        """Keep what was read. Without permission, or with another writer, it is read again."""
        with contextlib.suppress(*_UNREADABLE):
            if self._file.exists() and not _is_ours(self._file):
                return
            try:
                self._put(news, gone)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise  # Locked, or not writable.
                # Corrupt: it is made again, with everything that is known by now.
                self._file.unlink()
                self._put(
                    [
                        (path, mark, json.dumps(to_json_data(entry)))
                        for path, (mark, entry) in self._known.items()
                    ],
                    [],
                )

    def _put(
        self,
        news: Sequence[tuple[str, str, str]],
        gone: Sequence[str],
        curves: Sequence[tuple[str, str, bytes]] = (),
    ) -> None:
        connection = sqlite3.connect(self._file, timeout=_LOCK_SECONDS)
        with contextlib.closing(connection), connection:
            ((version,),) = connection.execute("PRAGMA user_version")
            if version not in (0, _VERSION):
                connection.executescript("DROP TABLE IF EXISTS runs; DROP TABLE IF EXISTS curves")
            connection.executescript(_SCHEMA)
            # It can be made again: a commit need not wait for the disk.
            connection.execute("PRAGMA synchronous = OFF")
            connection.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", news)
            connection.executemany("INSERT OR REPLACE INTO curves VALUES (?, ?, ?)", curves)
            for table in ("runs", "curves"):
                connection.executemany(
                    f"DELETE FROM {table} WHERE path = ?", [(path,) for path in gone]
                )


def _is_ours(file: Path) -> bool:
    """Whether an index may be replaced: it is one, or it is the start of one."""
    with file.open("rb") as opened:
        head = opened.read(100)
    return not head or head[68:72] == _APPLICATION_ID.to_bytes(4, "big")


def _open(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)


def _read_index(file: Path) -> dict[str, tuple[str, RunEntry]]:
    try:
        if not file.is_file() or not _is_ours(file):
            return {}
        with contextlib.closing(_open(file)) as connection:
            ((version,),) = connection.execute("PRAGMA user_version")
            if version != _VERSION:
                return {}
            rows = connection.execute("SELECT path, mark, entry FROM runs").fetchall()
        return {
            path: (mark, from_json_data(RunEntry, json.loads(entry))) for path, mark, entry in rows
        }
    except _UNREADABLE:
        return {}


def run_files(folder: Path) -> Iterator[RunFileMark]:
    """The run files in a folder and the folders in it, without reading them."""
    waiting = [(os.fspath(folder), "")]
    while waiting:
        place, prefix = waiting.pop()
        sizes: dict[str, str] = {}
        names: list[tuple[str, int]] = []
        try:
            inside = list(os.scandir(place))
        except OSError:
            continue
        for one in inside:
            name = one.name
            with contextlib.suppress(OSError):
                if one.is_dir(follow_symlinks=False):
                    if not name.startswith(".") and name not in _LEFT_OUT:
                        waiting.append((one.path, f"{prefix}{name}/"))
                elif RUN_SUFFIX in name and name.endswith((RUN_SUFFIX, *_BESIDE)):
                    stat = one.stat()
                    sizes[name] = f"{stat.st_mtime_ns}.{stat.st_size}"
                    if name.endswith(RUN_SUFFIX):
                        names.append((name, stat.st_size))
        for name, size in names:
            beside = [sizes[name + each] for each in _BESIDE if name + each in sizes]
            mark = " ".join([sizes[name], *beside])
            yield RunFileMark(prefix + name, mark, size, not beside)


class RunFileReader:
    """Reads the entries of many run files, one after the other.

    A run that has ended has a summary, which lies on the first pages of its file. SQLite takes
    three times as long to read it, mostly for opening the file.
    """

    def __init__(self) -> None:
        self._checked: dict[bytes, bool] = {}
        """By the first page of a file from its schema on: whether a summary in it may be used."""

    def read(self, folder: Path, file: RunFileMark) -> RunEntry:
        """The entry of a run file; one that cannot be read says why."""
        path = folder / file.path
        try:
            if file.is_quiet:
                with contextlib.suppress(*_UNREADABLE):
                    entry = self._summarized(path, file)
                    if entry is not None:
                        return entry
            with contextlib.closing(schema.open_read_only(path)) as connection:
                return _entry(file, connection)
        except StoreError as error:
            reason = str(error)
        except _UNREADABLE as error:
            reason = f"{path} is corrupt: {error}"
        run = RunRecord(name="", created_ns=int(file.mark.partition(".")[0]))
        return RunEntry(path=file.path, run=run, bytes=file.size, unreadable=reason)

    def _summarized(self, path: Path, file: RunFileMark) -> RunEntry | None:
        """The entry of a run that has ended, from its summary; None without a valid one."""
        with path.open("rb", buffering=0) as opened:
            pages = opened.read(schema.META_END)
        if not schema.is_complete(pages, file.size):
            return None
        rows = schema.small_rows(pages)
        if not {"summary", "finished_ns"} <= rows.keys() or not self._may_use(path, pages):
            return None
        summary = json.loads(rows["summary"])
        if summary["finished_ns"] != json.loads(rows["finished_ns"]):
            return None
        entry = {**summary["entry"], "path": file.path, "bytes": file.size}
        return from_json_data(RunEntry, entry)

    def _may_use(self, path: Path, pages: bytes) -> bool:
        known = schema.schema_in(pages)
        if known not in self._checked:
            # Refuses a file with foreign parts.
            with contextlib.closing(schema.open_read_only(path)) as connection:
                self._checked[known] = schema.has_meta_first(connection)
        return self._checked[known]


def entry_of(path: Path) -> RunEntry:
    """The entry of one run file, whatever its name is."""
    stat = path.stat()
    mark = RunFileMark(path.name, f"{stat.st_mtime_ns}.{stat.st_size}", stat.st_size, False)
    return RunFileReader().read(path.parent, mark)


def summary_of(connection: sqlite3.Connection) -> dict[str, Any] | None:
    """What the writer of a run keeps in it at its end, so that a list reads nothing else.

    It is valid for this end only: a version without summaries may resume the run.
    """
    with contextlib.suppress(*_UNREADABLE):
        entry = _entry(RunFileMark("", "", 0, True), connection)
        return {"finished_ns": read_meta(connection, "finished_ns"), "entry": to_json_data(entry)}
    return None


def _entry(file: RunFileMark, connection: sqlite3.Connection) -> RunEntry:
    meta = {key: json.loads(value) for key, value in connection.execute("SELECT * FROM meta")}
    packed = dict(connection.execute(_DOCUMENTS).fetchall())
    is_trace = packed.pop("trace", _ABSENT) is not _ABSENT
    documents = {kind: json.loads(zlib.decompress(value)) for kind, value in packed.items()}
    is_over = "ending" in documents or "finished_ns" in meta
    frames = connection.execute(_TIMES, [1 if is_over else PACE_FRAMES]).fetchall()
    run = from_json_data(RunRecord, meta["run"])
    times = [time_ns for _, time_ns in frames]
    # What was written last is the last step: a session that restarts earlier abandons later ones.
    last_step = int(frames[0][0]) if frames else -1
    status = status_of(
        from_json_data(Ending, documents["ending"]) if "ending" in documents else None,
        finished="finished_ns" in meta,
        step=last_step,
        writer=meta.get("writer"),
        times_ns=times,
    )
    latest = meta.get("latest")
    entry = RunEntry(
        path=file.path,
        run=run,
        ending=Ending(
            state=status.state, step=status.step, error=status.error, message=status.message
        ),
        last_step=last_step,
        seconds=max(times[0] - run.created_ns, 0) / 1e9 if times else 0.0,
        values=_last_frame(connection)
        if latest is None and last_step >= 0
        else {name: float(value) for name, (_, value) in (latest or {}).items()},
        bytes=file.size,
        is_trace=is_trace and last_step < 0,
    )
    return _with_problems(entry, documents.get("findings", {}))


def _with_problems(entry: RunEntry, findings: Mapping[str, Any]) -> RunEntry:
    found = [one for one in findings.get("findings", ()) if one["severity"] in _SEVERITIES]
    if not found:
        return entry
    found.sort(key=lambda one: _SEVERITIES.index(one["severity"]))
    problems = tuple(str(one["message"]) for one in found[:_MOST_PROBLEMS])
    return replace(entry, problems=problems, severity=found[0]["severity"])


def _last_frame(connection: sqlite3.Connection) -> dict[str, float]:
    """What the last step of a run of an older version logged."""
    rows = connection.execute("SELECT id, path, name, kind FROM series ORDER BY id")
    series = [Series(id=row[0], path=row[1], name=row[2], kind=row[3]) for row in rows]
    latest = LatestValues({})
    for step, blob in connection.execute("SELECT step, blob FROM frames ORDER BY id DESC LIMIT 1"):
        latest.add(step, blob, series)
    return {name: value for name, (_, value) in latest.by_name.items()}
