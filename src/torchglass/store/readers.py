"""Readers of a run: of its file, also while it is being written, and of a run in memory."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
import weakref
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast, final, overload

import numpy as np
import numpy.typing as npt

from torchglass.errors import StoreError
from torchglass.records.json_data import from_json_data
from torchglass.records.model import Histogram, Histograms, Model
from torchglass.records.run import (
    DOCUMENT_NAMES,
    D,
    Document,
    Ending,
    Frame,
    Points,
    Reader,
    RunRecord,
    RunStatus,
    Series,
    SeriesId,
    Session,
    status_of_ending,
)
from torchglass.records.step_points import FIELDS, BinColumns, SeriesKind, point_values
from torchglass.records.trace import TraceRecord
from torchglass.store import schema
from torchglass.store.mirror import mirror_of
from torchglass.store.run_file import (
    Catalog,
    PendingWrites,
    RunFile,
    is_there,
    read_meta,
    read_series,
)
from torchglass.store.step_blobs import (
    pack_document,
    unpack,
    unpack_bin_columns,
    unpack_document,
    unpack_histograms,
)

R = TypeVar("R")

_FRAMES = """frames WHERE step > :after AND session <= :session AND NOT EXISTS (
    SELECT 1 FROM sessions AS later
    WHERE later.id > frames.session AND later.id <= :session AND later.first_step <= frames.step
)"""
"""The frames of a session, and earlier frames that no later session has replaced."""

_SESSIONS = """SELECT
    id, run, first_step,
    (SELECT max(step) FROM frames WHERE frames.session = sessions.id),
    (
        SELECT min(first_step) FROM sessions AS later
        WHERE later.id > sessions.id AND later.id <= :session
    )
FROM sessions WHERE id <= :session ORDER BY id"""

_LATEST = 1 << 62

LOST_SECONDS = 30.0
"""A writer on another machine without a heartbeat for this long has ended."""
STALLED_SECONDS = 30.0
"""A run stalls if no step comes for this long, and for much longer than earlier steps took."""
_STALLED_STEPS = 5
PACE_FRAMES = 10
"""The last frames whose times tell how long a step takes."""

_UNREADABLE = (
    *(sqlite3.Error, zlib.error, ValueError, LookupError, TypeError, ArithmeticError),
    *(AttributeError, RecursionError, MemoryError),
)
"""The exceptions that a corrupt file raises."""


class StepTimes(NamedTuple):
    """When the steps of a run were measured."""

    steps: npt.NDArray[np.int64]
    times_ns: npt.NDArray[np.int64]
    """Since the epoch."""


@final
class FileReader(Reader):
    """Reads a run file from any thread, while it is written and after its writer was killed.

    A run that was resumed is read as it is now, or with `session` as it was at the end of that one.
    """

    def __init__(self, path: Path, *, session: int = _LATEST) -> None:
        self.path = Path(path)
        self._session = session
        self._connection: sqlite3.Connection | None = None
        self._let_go: Callable[[], object] = lambda: None
        self._is_closed = False
        self._lock = threading.Lock()
        self._opened()
        self._decoded: dict[str, tuple[int, Any]] = {}
        self._mirror = mirror_of(self.path)

    def run(self) -> RunRecord:
        with self._reading() as connection:
            return from_json_data(RunRecord, read_meta(connection, "run"))

    def model(self) -> Model:
        model = self._document(Model, "model")
        if model is None:
            raise StoreError(f"{self.path} has no model yet")
        return model

    def document(self, kind: type[D]) -> D | None:
        return self._document(kind, DOCUMENT_NAMES[kind])

    def revision(self) -> int:
        """A number that increases when the model or a document changes, or the run is resumed."""
        ((documents, sessions),) = self._rows(
            "SELECT (SELECT ifnull(max(id), 0) FROM documents), "
            "(SELECT ifnull(max(id), 0) FROM sessions)"
        )
        return int(documents + sessions)

    def series(self) -> Sequence[Series]:
        with self._reading() as connection:
            return read_series(connection)

    def points_of(
        self, ids: Sequence[SeriesId], *, after: int = -1, most: int | None = None
    ) -> list[Points]:
        if not ids:
            return []
        with self._reading() as connection:
            wanted, known = self._find(connection, ids)
            chosen = None if most is None else self._spread_out(connection, after, most)
            frames: Iterable[tuple[int, bytes]] = (
                connection.execute(
                    f"SELECT step, blob FROM {_FRAMES} ORDER BY id", self._line(after)
                )
                if chosen is None
                else _frames_at(connection, chosen)
            )
            return unpack(frames, wanted, known)

    def _spread_out(
        self, connection: sqlite3.Connection, after: int, most: int
    ) -> list[int] | None:
        """The ids of at most `most` frames, spread evenly over the full ones; None for all."""
        # The length of a blob is in the header of its row: its content is not read.
        rows = connection.execute(
            f"SELECT id, length(blob) FROM {_FRAMES} ORDER BY id", self._line(after)
        ).fetchall()
        if len(rows) <= most:
            return None
        ids, sizes = np.array(rows, np.int64).T
        full = ids[sizes >= sizes.max() / 2]
        chosen = np.linspace(0, len(full) - 1, min(most, len(full))).round().astype(np.int64)
        found: list[int] = full[chosen].tolist()
        return found

    def histograms_of(self, ids: Sequence[SeriesId], *, after: int = -1) -> list[Histograms]:
        with self._reading() as connection:
            wanted, known = self._find(connection, ids)
            frames = connection.execute(
                f"SELECT step, blob, bins FROM {_FRAMES} AND bins IS NOT NULL ORDER BY id",
                self._line(after),
            )
            return unpack_histograms(frames, wanted, known)

    def bin_columns(self, wanted: Sequence[Series]) -> BinColumns:
        """The bins of some histograms as columns, in the order of series, then of steps."""
        with self._reading() as connection:
            frames = connection.execute(
                f"SELECT blob, bins FROM {_FRAMES} AND bins IS NOT NULL ORDER BY id", self._line(-1)
            )
            return unpack_bin_columns(frames, wanted, read_series(connection))

    def last_step(self) -> int:
        rows = self._rows(f"SELECT step FROM {_FRAMES} ORDER BY step DESC LIMIT 1", self._line(-1))
        return int(rows[0][0]) if rows else -1

    def last_time_ns(self) -> int:
        """When the latest step was measured, since the epoch; 0 before the first."""
        rows = self._rows("SELECT time_ns FROM frames ORDER BY id DESC LIMIT 1")
        return int(rows[0][0]) if rows else 0

    def times(self) -> StepTimes:
        """When each step was measured."""
        rows = self._rows(f"SELECT step, time_ns FROM {_FRAMES} ORDER BY id", self._line(-1))
        steps, times = np.array(rows, np.int64).reshape(-1, 2).T
        return StepTimes(steps, times)

    def sessions(self) -> tuple[Session, ...]:
        """The processes that wrote to the run, in order."""
        with self._reading() as connection:
            rows = connection.execute(_SESSIONS, {"session": self._session}).fetchall()
            return tuple(
                Session(
                    number=number,
                    run=from_json_data(RunRecord, json.loads(run)),
                    first_step=first,
                    last_step=last,
                    abandoned_from=later if None not in (last, later) and later <= last else None,
                )
                for number, run, first, last, later in rows
            )

    def is_empty(self) -> bool:
        """Whether it has no content, as for ranks whose values are reduced on rank 0."""
        ((any_there,),) = self._rows(
            "SELECT EXISTS (SELECT 1 FROM documents) OR EXISTS (SELECT 1 FROM frames)"
        )
        return not any_there

    def finished(self) -> bool:
        return self._meta("finished_ns") is not None

    def status(self) -> RunStatus:
        rows = self._rows(f"SELECT time_ns FROM frames ORDER BY id DESC LIMIT {PACE_FRAMES}")
        return status_of(
            self.document(Ending),
            finished=self.finished(),
            step=self.last_step(),
            writer=self._meta("writer"),
            times_ns=[row[0] for row in rows],
        )

    def dropped(self) -> int:
        """The number of frames that were not written, for lack of time or space."""
        return self._meta("dropped") or 0

    def thinned(self) -> int:
        """The number of frames that were removed to limit the size of the file."""
        return self._meta("thinned") or 0

    def random_seed(self) -> int | None:
        """The random seed of the trace, if the run has one and it is known."""
        seed: int | None = self._meta("random_seed")
        return seed

    def lists_saved_only(self) -> bool:
        """Whether the trace, if any, lists only ops whose tensors were saved."""
        return bool(self._meta("saved_only"))

    def close(self) -> None:
        """Close the file; the last reader of a finished run removes its write-ahead log."""
        with self._lock:
            self._is_closed = True
            self._let_go()

    def rest(self) -> None:
        """Close the file until it is read again, unless it is being read now."""
        if self._lock.acquire(blocking=False):
            try:
                self._let_go()
                self._connection = None
            finally:
                self._lock.release()

    def _opened(self) -> sqlite3.Connection:
        if self._is_closed:
            raise StoreError(f"cannot read {self.path}: it was closed")
        if self._connection is None:
            self._connection = schema.open_read_only(self.path)
            # Users who only read a curve (`tg.open(path)["loss"]`) close nothing.
            self._let_go = weakref.finalize(self, _let_go, self._connection, self.path.absolute())
        _recently_read(self)
        return self._connection

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _document(self, cls: type[R], kind: str) -> R | None:
        with self._reading() as connection:
            ((version,),) = connection.execute(
                "SELECT max(id) FROM documents WHERE kind = ?", [kind]
            )
            if version is None:
                return None
            if kind not in self._decoded or self._decoded[kind][0] != version:
                ((packed,),) = connection.execute(
                    "SELECT json FROM documents WHERE id = ?", [version]
                )
                self._decoded[kind] = version, unpack_document(cls, packed)
            return cast(R, self._decoded[kind][1])

    def _find(
        self, connection: sqlite3.Connection, ids: Sequence[SeriesId]
    ) -> tuple[list[Series], list[Series]]:
        """The series with these ids, and all series."""
        known = read_series(connection)
        by_id = {series.id: series for series in known}
        if missing := [each for each in ids if each not in by_id]:
            raise StoreError(f"{self.path} has no series with the id {missing[0]}")
        return [by_id[each] for each in ids], known

    def _line(self, after: int) -> dict[str, int]:
        return {"after": after, "session": self._session}

    def _meta(self, key: str) -> Any:
        with self._reading() as connection:
            return read_meta(connection, key)

    def _rows(self, query: str, names: Mapping[str, int] | None = None) -> list[Any]:
        with self._reading() as connection:
            return connection.execute(query, names or {}).fetchall()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """The connection in a read transaction, so that one caller sees one state of the file."""
        if self._mirror is not None:
            self._mirror.want_update()
        with self._lock:
            try:
                connection = self._opened()
                connection.execute("BEGIN")
                try:
                    yield connection
                finally:
                    connection.execute("COMMIT")
            except _UNREADABLE as error:
                raise StoreError(f"cannot read {self.path}: {error}") from error


_FEWEST_OPEN, _MOST_OPEN = 64, 256
_FILES_EACH, _FILES_OF_OTHERS = 3, 256
"""Files of an open run, and those that are left to the rest of the program."""
_RECENT: OrderedDict[int, weakref.ref[FileReader]] = OrderedDict()
_RECENT_LOCK = threading.Lock()


def _recently_read(reader: FileReader) -> None:
    """Close the files that were read longest ago, if too many are open."""
    most = _most_open()
    with _RECENT_LOCK:
        _RECENT[id(reader)] = weakref.ref(reader)
        _RECENT.move_to_end(id(reader))
        oldest = [_RECENT.popitem(last=False)[1] for _ in range(len(_RECENT) - most)]
    for known in oldest:
        if (other := known()) is not None:
            other.rest()


@cache
def _most_open() -> int:
    """How many files may be open at a time: a run may have a thousand ranks.

    Each takes 0.4 MB of memory. One that was closed is opened again in a millisecond.
    """
    try:
        import resource
    except ImportError:
        # Windows has no such limit.
        return _FEWEST_OPEN
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(max((soft - _FILES_OF_OTHERS) // _FILES_EACH, _FEWEST_OPEN), _MOST_OPEN)


def _frames_at(connection: sqlite3.Connection, ids: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    # One statement for all: one for each id takes five times as long.
    listed = ",".join(map(str, ids))
    return connection.execute(f"SELECT step, blob FROM frames WHERE id IN ({listed}) ORDER BY id")


def _let_go(connection: sqlite3.Connection, path: Path) -> None:
    try:
        is_finished = read_meta(connection, "finished_ns") is not None
    except _UNREADABLE:
        is_finished = False
    connection.close()
    if is_finished:
        schema.remove_log(path)


def status_of(
    ending: Ending | None,
    *,
    finished: bool,
    step: int,
    writer: Mapping[str, Any] | None,
    times_ns: Sequence[int],
) -> RunStatus:
    """The status of a run, from what its file has; `times_ns` are the times of its last frames."""
    if ending is not None:
        return status_of_ending(ending)
    if finished:
        return RunStatus("finished", step=step)
    now, last_ns = time.time(), times_ns[0] if times_ns else 0
    interval = max((later - earlier for later, earlier in pairwise(times_ns)), default=0) / 1e9
    silent = now - last_ns / 1e9 if last_ns else 0.0
    if writer is None:
        # Older versions did not record the writer.
        return _alive(step, silent, interval)
    said = max(now - writer["time_ns"] / 1e9, 0.0)
    delay = writer.get("delay_seconds", 0.0)
    exists = is_there(writer)
    if exists is False or (exists is None and said > LOST_SECONDS + delay):
        return RunStatus("killed", step=step)
    # A suspended process has no heartbeat.
    return _alive(step, max(silent, said), interval, delay)


def _alive(step: int, silent: float, interval: float, delay: float = 0.0) -> RunStatus:
    if silent > max(STALLED_SECONDS, _STALLED_STEPS * interval) + delay:
        return RunStatus("stalled", step=step, seconds=silent)
    return RunStatus("running", step=step)


@dataclass(frozen=True, kw_only=True)
class StoredTrace:
    """A traced pass as stored in a file."""

    model: Model
    trace: TraceRecord
    random_seed: int | None = None
    saved_only: bool = False
    """Whether the trace lists only ops whose tensors were saved."""


def tensors_file(path: Path) -> Path:
    """The path of the tensors of a trace, a name that model weights do not have."""
    return path.with_name(f"{path.name}.safetensors")


def write_trace(path: Path, run: RunRecord, stored: StoredTrace) -> None:
    """Write a pass and its model to a new, finished run file."""
    try:
        file = RunFile(schema.create(path), run)
        file.write(
            PendingWrites(
                documents={
                    "model": pack_document(stored.model),
                    DOCUMENT_NAMES[TraceRecord]: pack_document(stored.trace),
                },
                facts=_facts(stored),
            )
        )
        file.close()
    except sqlite3.Error as error:
        raise StoreError(f"cannot write the trace to {path}: {error}") from error


def read_trace(path: Path) -> StoredTrace:
    """The traced pass in a run file."""
    with FileReader(path) as reader:
        model, trace, seed = reader.model(), reader.document(TraceRecord), reader.random_seed()
        saved_only = reader.lists_saved_only()
    if trace is None:
        raise StoreError(f"{path} contains a run but no trace; open it with tg.open")
    return StoredTrace(model=model, trace=trace, random_seed=seed, saved_only=saved_only)


def _facts(stored: StoredTrace) -> dict[str, int]:
    facts = {"saved_only": 1} if stored.saved_only else {}
    return facts if stored.random_seed is None else {**facts, "random_seed": stored.random_seed}


class MemoryStore(Reader):
    """A sink and a reader in one."""

    def __init__(self, run: RunRecord) -> None:
        self._run = run
        self._model: Model | None = None
        self._documents: dict[type[Document], Document] = {}
        self._revision = 0
        self._catalog = Catalog()
        self._rows: defaultdict[SeriesId, list[tuple[int, tuple[float, ...]]]] = defaultdict(list)
        self._bins: defaultdict[SeriesId, list[tuple[int, Histogram]]] = defaultdict(list)
        self._last_step = -1
        self._finished = False
        self._lock = threading.Lock()

    def put_model(self, model: Model) -> None:
        self._model = model
        self._revision += 1

    def put_document(self, document: Document) -> None:
        self._documents[type(document)] = document
        self._revision += 1

    def put_frame(self, frame: Frame) -> None:
        with self._lock:
            for series, point in frame.points.items():
                self._rows[series].append((frame.step, point_values(point)))
                if isinstance(point, Histogram):
                    self._bins[series].append((frame.step, point))
            self._last_step = max(self._last_step, frame.step)

    @overload
    def series(self) -> Sequence[Series]: ...

    @overload
    def series(self, path: str, name: str, kind: SeriesKind = "scalar") -> SeriesId: ...

    def series(
        self, path: str | None = None, name: str = "", kind: SeriesKind = "scalar"
    ) -> Sequence[Series] | SeriesId:
        """All series; or, for a path and a name, the id of that series."""
        if path is None:
            return tuple(self._catalog.all)
        return self._catalog.id_of(path, name, kind)

    def run(self) -> RunRecord:
        return self._run

    def model(self) -> Model:
        if self._model is None:
            raise StoreError("the run has no model yet")
        return self._model

    def document(self, kind: type[D]) -> D | None:
        return cast(D | None, self._documents.get(kind))

    def revision(self) -> int:
        return self._revision

    def points(self, series: SeriesId, *, after: int = -1, most: int | None = None) -> Points:
        known = self._known(series)
        with self._lock:
            rows = [row for row in self._rows.get(series, ()) if row[0] > after]
        if most is not None and len(rows) > most:
            rows = [rows[at] for at in np.linspace(0, len(rows) - 1, most).round().astype(int)]
        return Points(
            series=known,
            steps=np.array([step for step, _ in rows], np.int64),
            values=np.array([values for _, values in rows], np.float64).reshape(
                -1, len(FIELDS[known.kind])
            ),
        )

    def points_of(
        self, ids: Sequence[SeriesId], *, after: int = -1, most: int | None = None
    ) -> list[Points]:
        return [self.points(series, after=after, most=most) for series in ids]

    def histograms(self, series: SeriesId, *, after: int = -1) -> Histograms:
        known = self._known(series)
        with self._lock:
            kept = [row for row in self._bins.get(series, ()) if row[0] > after]
        return Histograms(
            series=known,
            steps=np.array([step for step, _ in kept], np.int64),
            bins=tuple(histogram for _, histogram in kept),
        )

    def histograms_of(self, ids: Sequence[SeriesId], *, after: int = -1) -> list[Histograms]:
        return [self.histograms(series, after=after) for series in ids]

    def last_step(self) -> int:
        return self._last_step

    def finished(self) -> bool:
        return self._finished

    def status(self) -> RunStatus:
        ending = self.document(Ending)
        if ending is None:
            return RunStatus("finished" if self._finished else "running", step=self._last_step)
        return status_of_ending(ending)

    def close(self) -> None:
        """End the run; it can still be read."""
        self._finished = True

    def _known(self, series: SeriesId) -> Series:
        if not 0 <= series < len(self._catalog.all):
            raise StoreError(f"the run has no series with the id {series}")
        return self._catalog.all[series]
