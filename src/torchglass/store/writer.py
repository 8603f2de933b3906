"""The writing side of a run file: the training hands over, a thread of its own writes."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sqlite3
import threading
import time
import zlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Any

from torchglass.errors import StoreError, warn
from torchglass.records.model import Model
from torchglass.records.plain import to_plain
from torchglass.records.run import Run
from torchglass.records.series import Frame, Kind, Series, SeriesId
from torchglass.store import schema
from torchglass.store.catalog import Catalog
from torchglass.store.packing import pack

FLUSH_SECONDS = 0.5
"""What a killed process loses is at most this long ago, and the time of one commit."""

FLUSH_POINTS = 20_000
"""So many waiting points are written without waiting for the time to be up."""

FLUSH_FRAMES = 1_000
"""At most so many frames are one transaction, so that a disk that fills up keeps those before."""

MOST_WAITING_POINTS = 500_000
"""Beyond these (some 100 MB) frames are dropped and counted."""

CLOSE_SECONDS = 10.0
"""How long `close` waits for a disk that does not answer."""


class FileSink:
    """Writes a run to a new file, as `records.flow.Sink` promises: no waiting, no raising.

    Only making it raises: a StoreError when the file is already there or cannot be written.
    In a forked child it is still an object, but writes nothing.
    """

    def __init__(self, path: Path, run: Run) -> None:
        self.path = Path(path)
        self._owner = os.getpid()
        self._catalog = Catalog()
        self._model: Model | None = None
        self._frames: deque[Frame] = deque()
        self._waiting_points = 0
        self._dropped = 0
        self._warned = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        opened: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._work, args=(run, opened), name=f"torchglass {self.path.name}", daemon=True
        )
        self._thread.start()
        opened.result()
        atexit.register(self.close)

    def put_model(self, model: Model) -> None:
        """Keep the structure; a later one replaces it."""
        if self._is_open():
            with self._lock:
                self._model = model
            self._wake.set()

    def series(self, path: str, name: str, kind: Kind = "scalar") -> SeriesId:
        """The id of the series with this place and name, made on first use."""
        return self._catalog.id_of(path, name, kind)

    def put_frame(self, frame: Frame) -> None:
        """Keep what was measured at one step, or count it as dropped when too much is waiting."""
        if not self._is_open():
            return
        with self._lock:
            waiting = self._waiting_points + len(frame.points)
            if waiting <= MOST_WAITING_POINTS:
                self._frames.append(frame)
                self._waiting_points = waiting
            else:
                self._dropped += 1
        if waiting > MOST_WAITING_POINTS:
            self._warn(f"{self.path} is written too slowly, so some steps are left out of it")
        elif waiting >= FLUSH_POINTS:
            self._wake.set()

    def close(self) -> None:
        """Write what is still waiting, mark the run as finished, and let go of the file."""
        if self._is_open():
            self._closing = True
            self._wake.set()
            self._thread.join(CLOSE_SECONDS)
            atexit.unregister(self.close)

    def _is_open(self) -> bool:
        return not self._closing and os.getpid() == self._owner

    def _work(self, run: Run, opened: Future[None]) -> None:
        # The connection lives in this thread's frame alone: SQLite forbids a forked child to use or
        # even close one, and the child's copy of this frame is never run again nor cleaned up.
        try:
            file = _RunFile(self.path, run)
        except StoreError as error:
            opened.set_exception(error)
            return
        opened.set_result(None)
        while not self._closing:
            self._wake.wait(FLUSH_SECONDS)
            self._wake.clear()
            self._flush(file)
        self._flush(file)
        file.close()

    def _flush(self, file: _RunFile) -> None:
        """Write what is waiting; what cannot be written now waits for the next time."""
        try:
            while self._write_some(file):
                pass
        except sqlite3.Error as error:
            self._warn(
                f"cannot write to {self.path} ({error}); the training goes on, and writing is "
                "tried again until it works"
            )

    def _write_some(self, file: _RunFile) -> bool:
        """Write one transaction; True if more is waiting."""
        with self._lock:
            model, frames = self._model, tuple(islice(self._frames, FLUSH_FRAMES))
            dropped = self._dropped
        # The series are taken last, so that all that the frames speak of are among them.
        file.write(model, frames, dropped, self._catalog.all)
        with self._lock:
            for frame in frames:
                self._frames.popleft()
                self._waiting_points -= len(frame.points)
            if self._model is model:
                self._model = None
            return bool(self._frames)

    def _warn(self, message: str) -> None:
        """Warn of the first trouble; what follows from it is counted and can be read."""
        if not self._warned:
            self._warned = True
            warn(message)


class _RunFile:
    """The file itself, as its one writer sees it."""

    def __init__(self, path: Path, run: Run) -> None:
        self._connection = schema.create(path)
        self._series_written = 0
        self._dropped_written = 0
        with self._connection:
            self._put_meta("run", to_plain(run))

    def write(
        self, model: Model | None, frames: Sequence[Frame], dropped: int, series: Sequence[Series]
    ) -> None:
        """Write what is new in one transaction: all of it, or nothing."""
        new_series = series[self._series_written :]
        if model is None and not frames and not new_series and dropped == self._dropped_written:
            return
        with self._connection:
            if model is not None:
                self._put_model(model)
            self._connection.executemany(
                "INSERT INTO series VALUES (?, ?, ?, ?)",
                [(each.id, each.path, each.name, each.kind) for each in new_series],
            )
            self._connection.executemany(
                "INSERT INTO frames (step, time_ns, blob) VALUES (?, ?, ?)",
                ((frame.step, frame.time_ns, pack(frame.points)) for frame in frames),
            )
            if dropped:
                self._put_meta("dropped", dropped)
        self._series_written += len(new_series)
        self._dropped_written = dropped

    def close(self) -> None:
        """Mark the run as finished and fold the journal in, so that one file remains."""
        # Without room on the disk what was written before stays as it is.
        with contextlib.suppress(sqlite3.Error), self._connection:
            self._put_meta("finished_ns", time.time_ns())
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            # Without a journal the file can also be read where nothing can be written. A reader
            # that has it open is in the way of this, and there is no waiting for that one.
            self._connection.execute("PRAGMA busy_timeout = 0")
            self._connection.execute("PRAGMA journal_mode = DELETE")
        self._connection.close()

    def _put_model(self, model: Model) -> None:
        packed = zlib.compress(json.dumps(to_plain(model)).encode())
        added = self._connection.execute("INSERT INTO model (json) VALUES (?)", [packed])
        self._connection.execute("DELETE FROM model WHERE id < ?", [added.lastrowid])

    def _put_meta(self, key: str, value: Any) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)", [key, json.dumps(value)]
        )
