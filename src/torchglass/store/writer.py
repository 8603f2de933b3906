"""Writes a run file: the training hands over steps, and a background thread writes them."""

from __future__ import annotations

import atexit
import os
import sqlite3
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import accumulate, islice
from pathlib import Path

from torchglass.errors import Fence, StoreError, undo_reliably, warn
from torchglass.records.model import Model
from torchglass.records.run import DOCUMENT_NAMES, Document, Frame, RunRecord, SeriesId
from torchglass.records.step_points import SeriesKind
from torchglass.store import schema
from torchglass.store.run_file import Catalog, PackedFrame, PendingWrites, RunFile
from torchglass.store.run_index import summary_of
from torchglass.store.schema import file_system_of, journal_for
from torchglass.store.step_blobs import pack, pack_document

FLUSH_SECONDS = 0.5
"""A killed process loses at most this time, plus the time of one commit."""

FLUSH_BYTES = 4 << 20
"""This much pending data is written at once."""

FLUSH_FRAMES = 1_000
"""The most frames per transaction, so that earlier ones are safe when a disk fills up."""

PORTIONS = 16
"""A file that may not grow is written in at least this many parts."""

MOST_WAITING_BYTES = 128 << 20
"""Above this, frames are dropped and counted."""

CLOSE_SECONDS = 10.0
"""How long `close` waits for a slow disk."""

_WHOLE = struct.Struct("<qq")
_NOT_PLAIN = (struct.error, TypeError, ValueError, OverflowError, RecursionError)
"""The exceptions of packing invalid data."""
_NEVER_WRITTEN = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
"""SQLite's errors for values that it cannot store; its other errors concern the disk."""


class FileSink:
    """Writes a run to a new file, as `records.run.Sink` requires: no waiting, no raising.

    With `resume` it continues an existing file. If the steps start again at an earlier step, what
    was written from that step on becomes an abandoned branch. With `max_bytes` old steps are
    removed when the file gets too large.

    Only the constructor raises: a StoreError if the file exists or cannot be written. In a forked
    child it writes nothing.
    """

    def __init__(
        self,
        path: Path,
        run: RunRecord,
        *,
        resume: bool = False,
        is_reserved: bool = False,
        max_bytes: int | None = None,
        file_system: Callable[[Path], str] = file_system_of,
    ) -> None:
        self.path = Path(path)
        self._place = self.path.absolute()
        """Absolute, in case the training changes the working directory."""
        self._resume = resume
        self._is_reserved = is_reserved
        """Whether an empty file was created for it before."""
        self._max_bytes = max_bytes
        self._journal = journal_for(self.path, file_system)
        self._owner = os.getpid()
        self._documents: dict[str, Document | Model] = {}
        self._frames: deque[PackedFrame] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._warned = False
        self._fence = Fence(f"some steps are missing in {self.path}")
        self._is_lost = False
        """Whether the file was deleted."""
        self._lock = threading.Lock()
        self._awaited: list[threading.Event] = []
        """Set when everything that was pending before is written."""
        self._wake = threading.Event()
        self._closing = False
        opened: Future[Catalog] = Future()
        self._thread = threading.Thread(
            target=self._work, args=(run, opened), name=f"torchglass {self.path.name}", daemon=True
        )
        self._thread.start()
        try:
            self._catalog = opened.result()
        except BaseException:
            self._closing = True
            self._wake.set()
            raise
        atexit.register(self.close)

    def put_model(self, model: Model) -> None:
        self._put("model", model)

    def put_document(self, document: Document) -> None:
        self._put(DOCUMENT_NAMES[type(document)], document)

    def series(self, path: str, name: str, kind: SeriesKind = "scalar") -> SeriesId:
        return self._catalog.id_of(path, name, kind)

    def put_frame(self, frame: Frame) -> None:
        """Store the measurements of one step, or count it as dropped if too much is pending.

        It is packed at once: every garbage collection would visit thousands of pending objects.
        """
        if not self._is_open():
            return
        packed = self._packed(frame)
        with self._lock:
            waiting = self._waiting_bytes + (packed.bytes if packed is not None else 0)
            has_room = waiting <= MOST_WAITING_BYTES
            if packed is not None and has_room:
                self._frames.append(packed)
                self._waiting_bytes = waiting
            else:
                self._dropped += 1
        if not has_room:
            self._warn(f"some steps are missing in {self.path}: writing to the disk is too slow")
        elif waiting >= FLUSH_BYTES:
            self._wake.set()

    def flush(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until everything so far is in the file, or the disk does not respond."""
        if self._is_open() and threading.current_thread() is not self._thread:
            written = threading.Event()
            with self._lock:
                self._awaited.append(written)
            self._wake.set()
            written.wait(seconds)

    def close(self) -> None:
        """Write what is pending, mark the run as finished, and close the file."""
        if self._is_open():
            self._closing = True
            atexit.unregister(self.close)
            # The garbage collector may close an unreferenced run in any thread.
            if threading.current_thread() is not self._thread:
                self._wake.set()
                self._thread.join(CLOSE_SECONDS)

    def _put(self, kind: str, document: Document | Model) -> None:
        if self._is_open():
            with self._lock:
                self._documents[kind] = document
            self._wake.set()

    def _is_open(self) -> bool:
        return not self._closing and os.getpid() == self._owner

    def _work(self, run: RunRecord, opened: Future[Catalog]) -> None:
        # Only this thread's frame has the connection: a forked child must not use or even close
        # it, and the child's copy of this frame never runs again and is never cleaned up.
        try:
            file = self._open(run)
            catalog = Catalog(file.known_series)
        except BaseException as error:  # noqa: BLE001 - whoever made the sink waits for the outcome
            opened.set_exception(error)
            return
        opened.set_result(catalog)
        while not self._closing:
            self._wake.wait(FLUSH_SECONDS)
            self._wake.clear()
            with self._fence:
                self._flush(file, catalog)
        with self._fence:
            self._flush(file, catalog)
        dropped = self._dropped + len(self._frames)
        undo_reliably(lambda: file.close(dropped=dropped, summary_of=summary_of))

    def _open(self, run: RunRecord) -> RunFile:
        if self._resume and schema.has_begun(self.path):
            connection = schema.open_to_append(self.path, self._journal)
        else:
            is_reserved = self._resume or self._is_reserved
            connection = schema.create(self.path, self._journal, is_reserved=is_reserved)
        try:
            return RunFile(connection, run)
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error):
                raise StoreError(f"cannot write a run to {self.path}: {error}") from error
            raise

    def _flush(self, file: RunFile, catalog: Catalog) -> None:
        """Write what is pending; what cannot be written now is tried again next time."""
        with self._lock:
            awaited, self._awaited = self._awaited, []
        try:
            while self._write_some(file, catalog):
                pass
            self._look_for_file()
        except sqlite3.Error as error:
            self._warn(
                f"cannot write to {self.path} ({error}). The training continues, and writing is "
                "retried."
            )
        except StoreError as error:
            self._warn(f"{self.path} is no longer written to: {error}")
            self._closing = True
        finally:
            for written in awaited:
                written.set()

    def _look_for_file(self) -> None:
        """Warn once if the file was deleted, because the system lets us continue to write."""
        if not self._is_lost and not os.path.lexists(self._place):
            self._is_lost = True
            warn(
                f"{self._place} was deleted or moved during the training. The training "
                "continues, but its record is lost."
            )

    def _write_some(self, file: RunFile, catalog: Catalog) -> bool:
        """Write one transaction; True if more is pending."""
        with self._lock:
            documents = dict(self._documents)
            frames = self._next_frames()
        try:
            self._write(file, catalog, documents, frames)
        except Exception as problem:
            if _may_work_later(problem):
                raise
            self._fence.caught(problem)
            self._dropped += len(frames)
            # A document is dropped only if it fails alone: the next try is without these frames.
            self._forget({} if frames else documents, frames)
        return bool(self._frames)

    def _write(
        self,
        file: RunFile,
        catalog: Catalog,
        documents: Mapping[str, Document | Model],
        frames: Sequence[PackedFrame],
    ) -> None:
        news = PendingWrites(
            documents=self._packed_documents(documents),
            frames=frames,
            dropped=self._dropped,
            # Read last, so that it includes all series of the frames.
            series=catalog.all,
        )
        file.write(news, max_bytes=self._max_bytes)
        self._forget(documents, frames)

    def _next_frames(self) -> tuple[PackedFrame, ...]:
        """The frames of one transaction: few enough that old frames can make room for them."""
        first = tuple(islice(self._frames, FLUSH_FRAMES))
        if self._max_bytes is None:
            return first
        ends = accumulate(frame.bytes for frame in first)
        few = sum(end <= self._max_bytes // PORTIONS for end in ends)
        return first[: max(1, few)]

    def _packed(self, frame: Frame) -> PackedFrame | None:
        try:
            step, time_ns = _WHOLE.unpack(_WHOLE.pack(int(frame.step), int(frame.time_ns)))
            return PackedFrame(step=step, time_ns=time_ns, blobs=pack(frame))
        except _NOT_PLAIN as error:
            self._warn(f"step {frame.step} is missing in {self.path}: {error}")
            return None

    def _packed_documents(self, documents: Mapping[str, Document | Model]) -> dict[str, bytes]:
        packed = {}
        for kind, document in documents.items():
            try:
                packed[kind] = pack_document(document)
            except _NOT_PLAIN as error:  # noqa: PERF203 - a handful of documents
                self._warn(f"{self.path} is written without its {kind}: {error}")
        return packed

    def _forget(
        self, documents: Mapping[str, Document | Model], frames: Sequence[PackedFrame]
    ) -> None:
        """Remove what was written from the queue."""
        with self._lock:
            for frame in frames:
                self._frames.popleft()
                self._waiting_bytes -= frame.bytes
            for kind, document in documents.items():
                if self._documents[kind] is document:
                    del self._documents[kind]

    def _warn(self, message: str) -> None:
        """Warn about the first problem; later ones are only counted."""
        if not self._warned:
            self._warned = True
            warn(message)


def _may_work_later(problem: Exception) -> bool:
    is_of_the_disk = isinstance(problem, (sqlite3.Error, StoreError))
    return is_of_the_disk and not isinstance(problem, _NEVER_WRITTEN)
