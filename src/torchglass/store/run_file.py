"""The writer's side of a run file: each step is written completely or not at all.

If the file may not grow, old frames are removed. The newest quarter of the frames stays complete.
Before it, the most densely spaced frames are removed first; the first frame always stays.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torchglass.errors import StoreError
from torchglass.records.json_data import to_json_data
from torchglass.records.run import RunRecord, Series, SeriesId
from torchglass.records.step_points import SeriesKind
from torchglass.store.step_blobs import Blobs, LatestValues

FEWEST_FRAMES = 16
"""A file with no more frames than this is not thinned further."""


def used_bytes(connection: sqlite3.Connection) -> int:
    """The size of the file without free pages."""
    ((pages,),) = connection.execute("PRAGMA page_count")
    ((free,),) = connection.execute("PRAGMA freelist_count")
    ((size,),) = connection.execute("PRAGMA page_size")
    return int((pages - free) * size)


def thin(connection: sqlite3.Connection) -> int:
    """Remove at most a quarter of the frames; returns the number of removed frames."""
    # Sorted here: without ORDER BY, SQLite reads only the index.
    rows = sorted(connection.execute("SELECT id, step FROM frames INDEXED BY frames_by_step"))
    if len(rows) <= FEWEST_FRAMES:
        return 0
    ids, steps = np.array(rows, np.int64).T
    superfluous = ids[choose(steps)].tolist()
    connection.executemany("DELETE FROM frames WHERE id = ?", [(each,) for each in superfluous])
    return len(superfluous)


def choose(steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The indices of the frames to remove, at most a quarter of them, in order."""
    # Every second one, so that no two neighbors are removed and a gap at most doubles.
    candidates = np.arange(1, len(steps) * 3 // 4, 2)
    gaps = np.abs(steps[candidates + 1] - steps[candidates - 1])
    close = max(2 * gaps.min(), np.quantile(gaps, 1 / 4))
    closest = np.argsort(gaps, kind="stable")[: len(steps) // 4]
    return np.sort(candidates[closest[gaps[closest] <= close]])


HEARTBEAT_SECONDS = 5.0
"""How often a writer updates its heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFrame:
    """The measurements of one step, packed for writing."""

    step: int
    time_ns: int
    blobs: Blobs

    @property
    def bytes(self) -> int:
        """Its size."""
        return len(self.blobs.numbers) + len(self.blobs.bins or b"")


@dataclass(frozen=True, kw_only=True)
class PendingWrites:
    """The contents of one transaction."""

    documents: Mapping[str, bytes] = field(default_factory=dict)
    """By their kind in the file, packed."""
    frames: Sequence[PackedFrame] = ()
    dropped: int = 0
    """The number of frames dropped so far."""
    series: Sequence[Series] = ()
    """All series so far."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the run, by their keys in the table "meta"."""


class RunFile:
    """A run file open for writing, and the session that writes to it."""

    def __init__(self, connection: sqlite3.Connection, run: RunRecord) -> None:
        self._connection = connection
        self._begun = False
        with connection:
            self.known_series = read_series(connection)
            self._dropped_before = self._meta("dropped") or 0
            self._put_meta("run", _continued(self._meta("run"), to_json_data(run)))
            connection.execute("DELETE FROM meta WHERE key IN ('finished_ns', 'summary')")
            connection.execute("DELETE FROM documents WHERE kind = 'ending'")
            self._say_alive()
            added = connection.execute(
                "INSERT INTO sessions (run) VALUES (?)", [json.dumps(to_json_data(run))]
            )
        self._session = added.lastrowid
        self._latest = LatestValues(self._meta("latest") or {})
        self._series_written = len(self.known_series)
        self._dropped_written = 0

    def write(self, news: PendingWrites, *, max_bytes: int | None = None) -> None:
        """Write one transaction, after making room for it if the file may not grow."""
        new_series = news.series[self._series_written :]
        if not (news.documents or news.frames or new_series) and (
            news.dropped == self._dropped_written
        ):
            self._stay_alive()
            return
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._assert_is_ours()
            if max_bytes is not None:
                self._make_room(news, max_bytes)
            for kind, packed in news.documents.items():
                self._put_document(kind, packed)
            self._connection.executemany(
                "INSERT INTO series VALUES (?, ?, ?, ?)",
                [(each.id, each.path, each.name, each.kind) for each in new_series],
            )
            self._put_frames(news.frames)
            self._put_latest(news)
            for key, fact in news.facts.items():
                self._put_meta(key, fact)
            if news.dropped:
                self._put_meta("dropped", self._dropped_before + news.dropped)
            if self._is_silent():
                self._say_alive()
        self._series_written += len(new_series)
        self._dropped_written = news.dropped
        self._begun = self._begun or bool(news.frames)

    def _is_silent(self) -> bool:
        return time.monotonic() - self._said_alive >= HEARTBEAT_SECONDS

    def _stay_alive(self) -> None:
        """Update the heartbeat even if there is nothing to write."""
        if self._is_silent():
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                self._assert_is_ours()
                self._say_alive()

    def _say_alive(self) -> None:
        self._put_meta("writer", {**_this_process(), "time_ns": time.time_ns()})
        self._said_alive = time.monotonic()

    def close(
        self,
        *,
        dropped: int = 0,
        summary_of: Callable[[sqlite3.Connection], Any] = lambda _: None,
    ) -> None:
        """Mark the run as finished and remove the journal, so that one file remains."""
        # On a full disk the journal is the only space left for this last write. Without it,
        # everything written before stays valid.
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with contextlib.suppress(sqlite3.Error, StoreError), self._connection:
            self._assert_is_ours()
            self._put_meta("finished_ns", time.time_ns())
            if dropped:
                self._put_meta("dropped", self._dropped_before + dropped)
            summary = summary_of(self._connection)
            if summary is not None:
                self._put_meta("summary", summary)
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            # Without a journal the file can also be read in a read-only folder. This fails if a
            # reader has the file open; do not wait for it.
            self._connection.execute("PRAGMA busy_timeout = 0")
            self._connection.execute("PRAGMA journal_mode = DELETE")
        self._connection.close()

    def _put_document(self, kind: str, packed: bytes) -> None:
        added = self._connection.execute(
            "INSERT INTO documents (kind, json) VALUES (?, ?)", [kind, packed]
        )
        self._connection.execute(
            "DELETE FROM documents WHERE kind = ? AND id < ?", [kind, added.lastrowid]
        )

    def _put_meta(self, key: str, value: Any) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)", [key, json.dumps(value)]
        )

    def _put_frames(self, frames: Sequence[PackedFrame]) -> None:
        if frames and not self._begun:
            self._connection.execute(
                "UPDATE sessions SET first_step = ? WHERE id = ?",
                [min(frame.step for frame in frames), self._session],
            )
        self._connection.executemany(
            "INSERT INTO frames (step, time_ns, session, blob, bins) VALUES (?, ?, ?, ?, ?)",
            [(frame.step, frame.time_ns, self._session, *frame.blobs) for frame in frames],
        )

    def _put_latest(self, news: PendingWrites) -> None:
        """Keep the last value of what is logged: a list of runs reads no frames."""
        for frame in news.frames:
            self._latest.add(frame.step, frame.blobs.numbers, news.series)
        if news.frames and self._latest.by_name:
            self._put_meta("latest", self._latest.by_name)

    def _make_room(self, news: PendingWrites, max_bytes: int) -> None:
        ((page_bytes,),) = self._connection.execute("PRAGMA page_size")
        sizes = [frame.bytes for frame in news.frames] + [*map(len, news.documents.values())]
        new = sum(size + page_bytes for size in sizes)
        taken_out = 0
        while used_bytes(self._connection) + new > max_bytes:
            thinned = thin(self._connection)
            taken_out += thinned
            if not thinned:
                break
        if taken_out:
            self._put_meta("thinned", (self._meta("thinned") or 0) + taken_out)

    def _assert_is_ours(self) -> None:
        ((latest,),) = self._connection.execute("SELECT max(id) FROM sessions")
        if latest != self._session:
            raise StoreError("another process has resumed the run")

    def _meta(self, key: str) -> Any:
        return read_meta(self._connection, key)


def _continued(begun: dict[str, Any] | None, run: dict[str, Any]) -> dict[str, Any]:
    """The record of a run; a resumed run takes the new settings and notes."""
    if begun is None:
        return run
    renewed = {key: run[key] for key in ("notes", "git_commit", "store") if run.get(key)}
    config = {**begun.get("config", {}), **run.get("config", {})}
    return {**begun, **renewed, **({"config": config} if config else {})}


def add_config(path: Path, config: Mapping[str, Any]) -> None:
    """Add settings to a run while its writer has it open. Raises sqlite3.Error."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        run = _continued(read_meta(connection, "run"), {"config": dict(config)})
        connection.execute("UPDATE meta SET value = ? WHERE key = 'run'", [json.dumps(run)])


def read_meta(connection: sqlite3.Connection, key: str) -> Any:
    """A value of the table "meta", None if absent."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", [key]).fetchone()
    return None if row is None else json.loads(row[0])


def read_series(connection: sqlite3.Connection) -> list[Series]:
    """The series of a run in the order in which they were first seen."""
    rows = connection.execute("SELECT id, path, name, kind FROM series ORDER BY id")
    return [Series(id=row[0], path=row[1], name=row[2], kind=row[3]) for row in rows]


def _this_process() -> dict[str, Any]:
    pid = os.getpid()
    return {"pid": pid, "machine": _machine(), "began": _began(pid)}


def is_there(writer: Mapping[str, Any]) -> bool | None:
    """Whether the process that writes a run still exists; None if that cannot be known."""
    pid: object = writer.get("pid")
    began: int | None = writer.get("began")
    if began is None or not isinstance(pid, int) or writer.get("machine") != _machine():
        return None
    # Another process may have got the id of one that has ended.
    return _began(pid) == began


def _machine() -> str:
    """The scope of process ids: a machine since it booted, or a container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return platform.node()


def _began(pid: int) -> int | None:
    """The start time of a process in system ticks; None if it has ended, or if not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    # A killed process keeps its id until its parent has waited for it.
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


class Catalog:
    """The series of one run in order of creation; thread-safe."""

    def __init__(self, known: Iterable[Series] = ()) -> None:
        self.all = list(known)
        self._ids = {(each.path, each.name, each.kind): each.id for each in self.all}
        self._lock = threading.Lock()

    def id_of(self, path: str, name: str, kind: SeriesKind) -> SeriesId:
        """The id of a series, created on first use."""
        key = (path, name, kind)
        if key not in self._ids:
            with self._lock:
                if key not in self._ids:
                    self._ids[key] = self._made(_writable(path), _writable(name), kind)
        return self._ids[key]

    def _made(self, path: str, name: str, kind: SeriesKind) -> SeriesId:
        known = self._ids.get((path, name, kind))
        if known is not None:
            return known
        new = Series(id=SeriesId(len(self.all)), path=path, name=name, kind=kind)
        self.all.append(new)
        self._ids[path, name, kind] = new.id
        return new.id


def _writable(name: str) -> str:
    """A name as valid UTF-8: a lone surrogate, as in some file names, is escaped."""
    return str(name).encode("utf-8", "backslashreplace").decode()
