"""Ships a run file to an object store: what is committed, from a thread of its own.

Steps become immutable segments. When `FANOUT` segments of one level would stand side by side, the
new one takes their place and their steps: a long run has few segments, and a step is written again
as often as there are levels, which grow with the logarithm of the run's length.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchglass.errors import Fence, StoreError, TargetError, TorchglassError, warn
from torchglass.records.model import Model
from torchglass.records.run import Document, Frame, Series, SeriesId
from torchglass.records.step_points import SeriesKind
from torchglass.store import schema
from torchglass.store.object_store import (
    FORMAT,
    VERSION,
    Manifest,
    ObjectStore,
    ShippedObject,
    ShippedSegment,
    is_continued,
    manifest_name,
    read_manifest,
)
from torchglass.store.readers import PACE_FRAMES, FileReader
from torchglass.store.run_file import read_series
from torchglass.store.run_index import entry_of
from torchglass.store.segments import StoredFrame, pack_segment
from torchglass.store.writer import FileSink

FANOUT = 8
"""Segments of one level that become one of the next."""
MOST_BYTES = 32 << 20
"""Frames of a segment that is not merged further, and of one that is packed at a time."""

SECONDS = "TORCHGLASS_SHIP_SECONDS"
"""Environment variable: the time between two shipments, in place of what follows."""
_FIRST_SECONDS, _LAST_SECONDS = 5.0, 30.0
_SHARE = 0.01
"""The time between two shipments is this share of the time since the start, within these limits;
and the thread uses at most this share of the time."""
_RETRY_SECONDS = 60.0
_CLOSE_SECONDS = 5.0
"""How long the end of a training waits for the store."""

_FRAMES = "SELECT id, step, time_ns, session, blob, bins FROM frames WHERE id BETWEEN ? AND ?"


@dataclass(frozen=True)
class _FileState:
    """One state of a run file, without what the store has already."""

    meta: Mapping[str, Any]
    sessions: tuple[Any, ...]
    series: Sequence[Series]
    documents: Mapping[str, tuple[int, bytes | None]]
    """The version and content of each; no content if the store has it."""
    frames: Sequence[StoredFrame]
    last: int
    """The number of the last frame of the file."""
    times_ns: tuple[int, ...]


class RunShipper:
    """Ships one run file to one place; every call may raise a StoreError."""

    def __init__(self, path: Path, store: ObjectStore) -> None:
        self.path = path
        self._store = store
        self._rank = _rank_of(path)
        self._run_name = store.name.rpartition("/")[2]
        self._has_begun = False
        self._sessions = 0
        """Those that the file had at first: if there are more, another process continues it."""
        self.shipped_bytes = 0
        """All that was written to the store."""

    def ship(self, on_part: Callable[[int, int], None] | None = None) -> Manifest:
        """Ship everything that is committed; `on_part` gets the frames that are shipped, of all."""
        while True:
            manifest, last = self._ship_part()
            if on_part is not None:
                on_part(manifest.last, last)
            if manifest.last >= last:
                return manifest

    def _ship_part(self) -> tuple[Manifest, int]:
        old = self._stored()
        self._begin(old)
        news = self._read(old)
        is_all = not news.frames or news.frames[-1].id >= news.last
        segments = self._segments(old, news)
        new = Manifest(
            format=FORMAT,
            version=VERSION,
            meta=news.meta if is_all else _unfinished(news.meta),
            sessions=news.sessions,
            series=self._series(old, news.series),
            documents=self._documents(old, news, is_all=is_all),
            segments=segments,
            replaced=(),
            entry=entry_of(self.path),
            times_ns=news.times_ns,
        )
        outdated = old.files - new.files if old is not None else set()
        is_over = is_all and "finished_ns" in new.meta
        # What was replaced just now may still be read by those who have the manifest before.
        kept = () if is_over else tuple(sorted(outdated))
        self._write(manifest_name(self._rank), replace(new, replaced=kept).to_bytes())
        gone = {*(old.replaced if old is not None else ()), *outdated}
        # A document that is as it was before has its name again.
        self._store.remove(sorted(gone - set(kept) - new.files))
        return new, news.last

    def _stored(self) -> Manifest | None:
        name = manifest_name(self._rank)
        data = self._store.read(name)
        return None if data is None else read_manifest(data, f"{self._store.name}/{name}")

    def _begin(self, old: Manifest | None) -> None:
        """Delete what an earlier process shipped without a manifest that names it."""
        if self._has_begun:
            return
        folder = _folder("segments", self._rank)
        known = {segment.file for segment in old.segments} if old is not None else set()
        found = (f"{folder}/{name}" for name in self._store.names(folder))
        self._store.remove(file for file in found if file not in known)
        self._has_begun = True

    def _read(self, old: Manifest | None) -> _FileState:
        with contextlib.closing(schema.open_read_only(self.path)) as connection:
            connection.execute("BEGIN")
            sessions = tuple(
                [number, run, first]
                for number, run, first in connection.execute(
                    "SELECT id, run, first_step FROM sessions ORDER BY id"
                )
            )
            ((last,),) = connection.execute("SELECT ifnull(max(id), 0) FROM frames")
            self._sessions = self._sessions or len(sessions)
            if len(sessions) > self._sessions:
                raise _ForeignRunError("another process has resumed the run")
            if old is not None:
                self._expect_own(old, sessions, last)
            # After a resume, the version of a document may be that of a deleted one.
            known = old.documents if old and len(old.sessions) == len(sessions) else {}
            times = connection.execute(
                f"SELECT time_ns FROM frames ORDER BY id DESC LIMIT {PACE_FRAMES}"
            )
            return _FileState(
                meta={
                    key: json.loads(value)
                    for key, value in connection.execute("SELECT key, value FROM meta")
                },
                sessions=sessions,
                series=read_series(connection),
                documents=_new_documents(connection, known),
                frames=_frames_after(connection, old.last if old is not None else 0),
                last=last,
                times_ns=tuple(time_ns for (time_ns,) in times),
            )

    def _expect_own(self, old: Manifest, sessions: Sequence[Any], last: int) -> None:
        if not is_continued(old.sessions, sessions):
            raise _ForeignRunError(
                f"{self._store.name} has another run, or was resumed by another process"
            )
        if old.last > last:
            raise _ForeignRunError(f"{self._store.name} has more steps than {self.path}")

    def _segments(self, old: Manifest | None, news: _FileState) -> tuple[ShippedSegment, ...]:
        """All segments, after the new one is written."""
        before = list(old.segments) if old is not None else []
        if not news.frames:
            return tuple(before)
        new_bytes = sum(frame.bytes for frame in news.frames)
        merged, level = _to_merge(before, new_bytes)
        frames = list(news.frames)
        if merged:
            with contextlib.closing(schema.open_read_only(self.path)) as connection:
                between = merged[0].first, news.frames[0].id - 1
                frames = [*map(StoredFrame._make, connection.execute(_FRAMES, between)), *frames]
        first = merged[0].first if merged else frames[0].id
        last, session = frames[-1].id, len(news.sessions)
        folder = _folder("segments", self._rank)
        packed = pack_segment(frames, news.series, run=self._run_name, rank=self._rank)
        stored = self._put(f"{folder}/{first:09}-{last:09}-s{session}.parquet", packed)
        new = ShippedSegment(
            file=stored.file,
            bytes=stored.bytes,
            sha256=stored.sha256,
            first=first,
            last=last,
            frames=len(frames),
            unpacked_bytes=sum(frame.bytes for frame in frames),
            level=level,
        )
        return (*before[: len(before) - len(merged)], new)

    def _series(self, old: Manifest | None, series: Sequence[Series]) -> ShippedObject | None:
        if old is not None and old.series is not None and old.series.id == len(series):
            return old.series
        if not series:
            return None
        data = json.dumps([[each.path, each.name, each.kind] for each in series]).encode()
        file = f"{_folder('documents', self._rank)}/series-{len(series)}.json"
        return replace(self._put(file, data), id=len(series))

    def _documents(
        self, old: Manifest | None, news: _FileState, *, is_all: bool
    ) -> dict[str, ShippedObject]:
        folder = _folder("documents", self._rank)
        found: dict[str, ShippedObject] = {}
        for kind, (number, data) in news.documents.items():
            if kind == "ending" and not is_all:
                continue
            if data is None and old is not None:
                found[kind] = old.documents[kind]
            elif data is not None:
                name = f"{kind}-{hashlib.sha256(data).hexdigest()[:16]}.json.zz"
                found[kind] = replace(self._put(f"{folder}/{name}", data), id=number)
        return found

    def _put(self, file: str, data: bytes) -> ShippedObject:
        self._write(file, data)
        return ShippedObject(file=file, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def _write(self, file: str, data: bytes) -> None:
        self._store.write(file, data)
        self.shipped_bytes += len(data)


class _ForeignRunError(StoreError):
    """The store has what this process did not write: trying again does not help."""


def _folder(what: str, rank: int) -> str:
    return f"{what}-{rank}" if rank else what


def _rank_of(path: Path) -> int:
    with contextlib.closing(schema.open_read_only(path)) as connection:
        ((run,),) = connection.execute("SELECT value FROM meta WHERE key = 'run'")
        return int(json.loads(run).get("rank", 0))


def _unfinished(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in meta.items() if key not in ("finished_ns", "summary")}


def _new_documents(
    connection: sqlite3.Connection, known: Mapping[str, ShippedObject]
) -> dict[str, tuple[int, bytes | None]]:
    found: dict[str, tuple[int, bytes | None]] = {}
    for number, kind in connection.execute("SELECT id, kind FROM documents").fetchall():
        if kind in known and known[kind].id == number:
            found[kind] = number, None
        else:
            ((data,),) = connection.execute("SELECT json FROM documents WHERE id = ?", [number])
            found[kind] = number, data
    return found


def _frames_after(connection: sqlite3.Connection, after: int) -> list[StoredFrame]:
    """The next frames, as many as fit into a segment."""
    found: list[StoredFrame] = []
    size = 0
    for row in connection.execute(f"{_FRAMES} ORDER BY id", [after + 1, 1 << 62]):
        frame = StoredFrame._make(row)
        size += frame.bytes
        if found and size > MOST_BYTES:
            break
        found.append(frame)
    return found


def _to_merge(before: Sequence[ShippedSegment], new_bytes: int) -> tuple[list[ShippedSegment], int]:
    """The last segments that a new one of this size replaces, and the level of the new one."""
    rest, merged, level, size = list(before), list[ShippedSegment](), 0, new_bytes
    while len(rest) >= FANOUT - 1:
        last = rest[1 - FANOUT :]
        size += sum(segment.unpacked_bytes for segment in last)
        if any(segment.level != level for segment in last) or size > MOST_BYTES:
            break
        rest, merged, level = rest[: 1 - FANOUT], [*last, *merged], level + 1
    return merged, level


def _seconds_from_environment() -> float | None:
    text = os.environ.get(SECONDS, "")
    try:
        return float(text) if text else None
    except ValueError as error:
        raise TargetError(f"{SECONDS}={text!r} is not a number of seconds") from error


def ship_file(path: Path, url: str | None, on_part: Callable[[int, int], None]) -> str:
    """Ship a run file, by default to where its training was to ship it; returns the URL to show."""
    with FileReader(path) as reader:
        known, status = reader.run().store, reader.status()
    url = url or known
    if not url:
        raise StoreError(
            f"{path} was not recorded for a store. Name one: torchglass ship {path} URL"
        )
    store = ObjectStore(url)
    if known == store.name and not status.is_over:
        raise StoreError(f"{path} is still being written, by a process that ships it itself")
    RunShipper(path, store).ship(on_part)
    return store.name


class ShippedSink:
    """Writes a run to a file, and ships the file to an object store while it grows.

    No method waits for the store, except `close`, for a few seconds. An error of the store is
    reported once; shipping is tried again, also after `close` as long as the process lives.
    """

    def __init__(self, sink: FileSink, store: ObjectStore, tell: Callable[[str], object]) -> None:
        self._sink = sink
        self._store = store
        self._tell = tell
        self._path = sink.path.absolute()
        self._owner = os.getpid()
        self._fence = Fence(f"{self._path} is not shipped to {store.name}")
        self._wake = threading.Event()
        self._closing = False
        self._failures = 0
        self._has_warned = False
        self._is_over = False
        """Whether nothing more will be shipped."""
        self._last_try = threading.Event()
        """Set after the first try since `close` began."""
        self._started = time.monotonic()
        self._seconds = _seconds_from_environment()
        self._thread = threading.Thread(
            target=self._work, name=f"torchglass {store.name}", daemon=True
        )
        self._thread.start()

    def put_model(self, model: Model) -> None:
        self._sink.put_model(model)

    def put_document(self, document: Document) -> None:
        self._sink.put_document(document)

    def series(self, path: str, name: str, kind: SeriesKind = "scalar") -> SeriesId:
        return self._sink.series(path, name, kind)

    def put_frame(self, frame: Frame) -> None:
        self._sink.put_frame(frame)

    def close(self) -> None:
        """Close the file, and wait a few seconds until all of it is in the store."""
        self._sink.close()
        if self._closing or os.getpid() != self._owner:
            return
        self._closing = True
        self._wake.set()
        if threading.current_thread() is self._thread:
            return
        if not self._last_try.wait(1.0):
            self._tell(f"shipping the last steps to {self._store.name} …")
            self._last_try.wait(_CLOSE_SECONDS - 1.0)
        if not (self._is_over and self._last_try.is_set()):
            self._tell(
                f"not everything is in {self._store.name} yet. Nothing is lost: the run is in "
                f"{self._path}. Ship it with: torchglass ship {os.path.relpath(self._path)} "
                f"{self._store.name}"
            )

    def discard(self) -> None:
        """Close the file and ship nothing more."""
        self._is_over = self._closing = True
        self._wake.set()
        self._sink.close()

    def _work(self) -> None:
        shipper: RunShipper | None = None
        used = 0.0
        while not self._is_over:
            self._wake.wait(self._pause(used))
            self._wake.clear()
            is_last = self._closing
            began = time.thread_time()
            with self._fence:
                shipper = shipper or self._opened()
                if shipper is not None:
                    self._ship(shipper, is_last=is_last)
            used = time.thread_time() - began
            if is_last:
                self._last_try.set()

    def _opened(self) -> RunShipper | None:
        try:
            return RunShipper(self._path, self._store)
        except StoreError as error:
            self._failed(error)
            return None

    def _ship(self, shipper: RunShipper, *, is_last: bool) -> None:
        try:
            shipper.ship()
            self._failures = 0
            self._is_over = is_last
        except _ForeignRunError as error:
            self._is_over = True
            warn(f"{self._path} is no longer shipped: {error}. The training continues.")
        except TorchglassError as error:
            self._failed(error)

    def _failed(self, error: TorchglassError) -> None:
        self._failures += 1
        if not self._has_warned:
            self._has_warned = True
            warn(
                f"{error}. The training continues; its run is kept in {self._path} and shipped "
                "when the store answers."
            )

    def _pause(self, used: float) -> float:
        """The seconds until the next shipment."""
        if self._seconds is not None:
            return self._seconds
        if self._failures:
            return float(min(_FIRST_SECONDS * 2 ** min(self._failures, 8), _RETRY_SECONDS))
        age = time.monotonic() - self._started
        return max(min(max(_SHARE * age, _FIRST_SECONDS), _LAST_SECONDS), used / _SHARE)
