"""A run that is kept in a file: written by a thread of its own, read from anywhere meanwhile."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

from torchglass.errors import StoreError
from torchglass.records.model import Model
from torchglass.records.plain import from_plain
from torchglass.records.run import Run
from torchglass.records.series import Points, Series, SeriesId
from torchglass.store import schema
from torchglass.store.packing import unpack
from torchglass.store.writer import FileSink

__all__ = ["FileReader", "FileSink"]


@final
class FileReader:
    """Reads a run file from any thread, while it is written and after its writer was killed."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._connection = schema.open_read_only(self.path)
        self._lock = threading.Lock()
        self._model: tuple[int, Model] | None = None

    def run(self) -> Run:
        """Who recorded this, where and when."""
        return from_plain(Run, self._meta("run"))

    def model(self) -> Model:
        """The structure of the model."""
        with self._reading() as connection:
            ((version,),) = connection.execute("SELECT max(id) FROM model")
            if version is None:
                raise StoreError(f"{self.path} holds no model yet")
            if self._model is None or self._model[0] != version:
                ((packed,),) = connection.execute("SELECT json FROM model WHERE id = ?", [version])
                self._model = version, from_plain(Model, json.loads(zlib.decompress(packed)))
            return self._model[1]

    def series(self) -> Sequence[Series]:
        """What was measured, in the order in which it was first seen."""
        with self._reading() as connection:
            return _all_series(connection)

    def points(self, series: SeriesId, *, after: int = -1) -> Points:
        """The points of one series at steps above `after`."""
        (points,) = self.points_of([series], after=after)
        return points

    def points_of(self, ids: Sequence[SeriesId], *, after: int = -1) -> list[Points]:
        """The points of several series, for the price of reading the file once."""
        with self._reading() as connection:
            known = _all_series(connection)
            by_id = {series.id: series for series in known}
            if missing := [each for each in ids if each not in by_id]:
                raise StoreError(f"{self.path} has no series with the id {missing[0]}")
            frames = connection.execute(
                "SELECT step, blob FROM frames WHERE step > ? ORDER BY id", [after]
            )
            return unpack(frames, [by_id[each] for each in ids], known)

    def last_step(self) -> int:
        """The latest step there is, -1 before the first."""
        with self._reading() as connection:
            ((last,),) = connection.execute("SELECT max(step) FROM frames")
        return -1 if last is None else int(last)

    def finished(self) -> bool:
        """Whether the writer closed the run; False while it goes on, or if it was killed."""
        return self._meta("finished_ns") is not None

    def dropped(self) -> int:
        """How many frames the writer could not keep up with, or found no room for."""
        return self._meta("dropped") or 0

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _meta(self, key: str) -> Any:
        with self._reading() as connection:
            row = connection.execute("SELECT value FROM meta WHERE key = ?", [key]).fetchone()
        return None if row is None else json.loads(row[0])

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """The connection for one caller, who sees the file as it is at the first query."""
        with self._lock:
            try:
                self._connection.execute("BEGIN")
                try:
                    yield self._connection
                finally:
                    self._connection.execute("COMMIT")
            except (sqlite3.Error, zlib.error, json.JSONDecodeError) as error:
                raise StoreError(f"cannot read {self.path}: {error}") from error


def _all_series(connection: sqlite3.Connection) -> list[Series]:
    rows = connection.execute("SELECT id, path, name, kind FROM series ORDER BY id")
    return [Series(id=row[0], path=row[1], name=row[2], kind=row[3]) for row in rows]
