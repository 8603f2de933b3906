"""A local copy of a run in an object store, as run files: every reader of files reads it.

Only what is new is fetched. A reader of the copy asks for the next update whenever it reads, and
never waits for it.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import platformdirs

from torchglass.errors import StoreError, error_line, warn
from torchglass.records.run import Series, SeriesId
from torchglass.store import schema
from torchglass.store.object_store import (
    Manifest,
    ObjectStore,
    checked,
    is_continued,
    read_manifest,
)
from torchglass.store.segments import unpack_segment

DELAY_SECONDS = 90.0
"""By how many seconds the store may lag behind the writer's last sign of life."""
_UPDATE_SECONDS = 2.0
_UNUSED_SECONDS = 30 * 86_400.0
_CORRUPT = (sqlite3.Error, KeyError, ValueError, TypeError, IndexError)


class Mirror:
    """The copy of one run: a run file for each rank, in a folder of its own."""

    def __init__(self, url: str) -> None:
        self.store = ObjectStore(url)
        self.folder = _cache(self.store) / hashlib.sha256(self.store.name.encode()).hexdigest()[:16]
        self._name = self.store.name.rpartition("/")[2] or "run"
        self._manifests: dict[str, bytes] = {}
        """The content of each when it was last copied."""
        self._lock = threading.Lock()
        self._updated = 0.0
        self._has_warned = False

    @property
    def path(self) -> Path:
        """The run file; with several ranks their folder."""
        files = sorted(self.folder.glob("*.glass"))
        return files[0] if len(files) == 1 else self.folder

    def update(self) -> None:
        """Copy what is new in the store."""
        with self._lock:
            ranks = self.store.ranks()
            if not ranks:
                raise StoreError(f"there is no run at {self.store.name}")
            self._forget_other_ranks(ranks)
            manifests = self.store.read_many(list(ranks.values()))
            for rank, name in ranks.items():
                path = self.file_of(rank, of_many=len(ranks) > 1)
                self._update_rank(name, path, manifests.get(name))
                _MIRRORS[path] = self
            self._updated = time.monotonic()

    def file_of(self, rank: int, *, of_many: bool) -> Path:
        """The copy of a rank."""
        stem = f"{self._name}-rank{rank}" if of_many else self._name
        return self.folder / f"{stem}.glass"

    def _forget_other_ranks(self, ranks: Iterable[int]) -> None:
        """Delete copies of another run that was at this URL before."""
        many = len(list(ranks)) > 1
        expected = {self.file_of(rank, of_many=many) for rank in ranks}
        for file in set(self.folder.glob("*.glass")) - expected:
            delete_run_file(file)

    def _update_rank(self, name: str, path: Path, data: bytes | None) -> None:
        while data is None or self._manifests.get(name) != data or not path.exists():
            if data is None:
                raise StoreError(f"{self.store.name}/{name} is missing")
            try:
                update_file(path, self.store, read_manifest(data, f"{self.store.name}/{name}"))
                self._manifests[name] = data
            except StoreError:
                # Segments are deleted some time after a manifest without them was written.
                before, data = data, self.store.read(name)
                if data == before:
                    raise

    def want_update(self) -> None:
        """Update in the background, unless that was done just now."""
        if time.monotonic() - self._updated < _UPDATE_SECONDS or self._lock.locked():
            return
        self._updated = time.monotonic()
        threading.Thread(target=self._update_quietly, name="torchglass mirror", daemon=True).start()

    def _update_quietly(self) -> None:
        try:
            self.update()
            self._has_warned = False
        except StoreError as error:
            if not self._has_warned:
                self._has_warned = True
                warn(f"{error}. What was read before is still shown.")


_MIRRORS: dict[Path, Mirror] = {}
"""The mirrors of this process by their run files."""


def mirror_of(path: Path) -> Mirror | None:
    """The mirror that a run file belongs to, if it was opened by its URL in this process."""
    return _MIRRORS.get(path)


def mirrored(url: str) -> Path:
    """The local copy of the run at a URL: a run file, or the folder of its ranks."""
    known = next((each for each in _MIRRORS.values() if each.store.url == url), None)
    mirror = known or Mirror(url)
    mirror.update()
    return mirror.path


def run_or_folder(url: str) -> Path:
    """The local copy of the run at a URL, or the URL of a folder of runs as a path."""
    store = ObjectStore(url)
    if store.ranks() or not store.names():
        return mirrored(url)
    return Path(url)


def update_file(path: Path, store: ObjectStore, manifest: Manifest) -> None:
    """Bring a run file to the state of a manifest; it is created if it does not exist."""
    journal: schema.Journal = (
        "TRUNCATE" if schema.is_over_a_network(schema.file_system_of(path)) else "WAL"
    )
    if _is_earlier(path, manifest):
        with contextlib.closing(schema.open_to_append(path, journal)) as connection:
            _copy(connection, store, manifest)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Another process may do the same: each has its own file until it is complete.
    new = path.with_name(f".{os.getpid()}-{threading.get_ident()}-{path.name}")
    try:
        with contextlib.closing(schema.create(new, journal)) as connection:
            _copy(connection, store, manifest)
        delete_run_file(path)
        new.replace(path)
    finally:
        delete_run_file(new)


def _is_earlier(path: Path, manifest: Manifest) -> bool:
    """Whether a file is an earlier state of the run of a manifest, or the same."""
    found = sessions_and_last(path)
    if found is None:
        return False
    sessions, last = found
    return is_continued(sessions, manifest.sessions) and last <= manifest.last


def sessions_and_last(path: Path) -> tuple[list[Any], int] | None:
    """The sessions of a run file and the number of its last frame; None if it cannot be read."""
    if not schema.has_begun(path):
        return None
    try:
        with contextlib.closing(schema.open_read_only(path)) as connection:
            sessions = connection.execute("SELECT id, run FROM sessions ORDER BY id").fetchall()
            ((last,),) = connection.execute("SELECT ifnull(max(id), 0) FROM frames")
    except (StoreError, sqlite3.Error):
        return None
    return sessions, last


def fetch_to_resume(path: Path, store: ObjectStore, manifest: Manifest) -> None:
    """Bring a local file to the state of the store, unless it has that and more.

    A file with steps that neither this state nor a later one has is renamed, and kept.
    """
    found = sessions_and_last(path)
    if found is not None:
        sessions, last = found
        if is_continued(manifest.sessions, sessions) and manifest.last <= last:
            return
    if schema.has_begun(path) and not _is_earlier(path, manifest):
        names = (path.with_name(f"{path.stem}-aside{number}{path.suffix}") for number in count(1))
        aside = next(name for name in names if not name.exists())
        path.rename(aside)
        warn(
            f"{store.name} was continued elsewhere after {path.name} was written here. The run "
            f"continues from the store; the old file is kept as {aside}."
        )
    update_file(path, store, manifest)


def _copy(connection: sqlite3.Connection, store: ObjectStore, manifest: Manifest) -> None:
    try:
        documents = _missing_documents(connection, manifest)
        content = _read_documents(store, manifest, documents)
        series = _series(content.get("series", b"[]"))
        ((last,),) = connection.execute("SELECT ifnull(max(id), 0) FROM frames")
        # One segment at a time: a run may have more than fits into memory.
        for segment in manifest.segments:
            if segment.last > last:
                data = checked(store.read(segment.file), segment, store.name)
                with _writing(connection):
                    _put_tables(connection, series, manifest)
                    connection.executemany(
                        "INSERT OR REPLACE INTO frames VALUES (?, ?, ?, ?, ?, ?)",
                        unpack_segment(data, series, after=last),
                    )
        with _writing(connection):
            _put_tables(connection, series, manifest)
            _put_documents(connection, manifest, documents, content)
            connection.execute("DELETE FROM meta")
            connection.executemany("INSERT INTO meta VALUES (?, ?)", _meta(manifest))
        if "finished_ns" in manifest.meta:
            # Without a journal it is opened faster, unless a reader has it open now.
            with contextlib.suppress(sqlite3.Error):
                connection.execute("PRAGMA busy_timeout = 0")
                connection.execute("PRAGMA journal_mode = DELETE")
    except _CORRUPT as error:
        raise StoreError(f"{store.name} cannot be read: {error_line(error)}") from error


@contextlib.contextmanager
def _writing(connection: sqlite3.Connection) -> Iterator[None]:
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


def _put_tables(
    connection: sqlite3.Connection, series: Sequence[Series], manifest: Manifest
) -> None:
    ((there,),) = connection.execute("SELECT count(*) FROM series")
    connection.executemany(
        "INSERT INTO series VALUES (?, ?, ?, ?)",
        [(each.id, each.path, each.name, each.kind) for each in series[there:]],
    )
    connection.execute("DELETE FROM sessions")
    connection.executemany("INSERT INTO sessions VALUES (?, ?, ?)", manifest.sessions)


def _put_documents(
    connection: sqlite3.Connection,
    manifest: Manifest,
    kinds: Sequence[str],
    content: Mapping[str, bytes],
) -> None:
    kept = list(manifest.documents)
    connection.execute(
        f"DELETE FROM documents WHERE kind NOT IN ({', '.join('?' * len(kept))})", kept
    )
    for kind in kinds:
        connection.execute("DELETE FROM documents WHERE kind = ?", [kind])
        connection.execute(
            "INSERT OR REPLACE INTO documents VALUES (?, ?, ?)",
            [manifest.documents[kind].id, kind, content[kind]],
        )


def _meta(manifest: Manifest) -> list[tuple[str, str]]:
    found = dict(manifest.meta)
    if "writer" in found:
        found["writer"] = {**found["writer"], "delay_seconds": DELAY_SECONDS}
    return [(key, json.dumps(value)) for key, value in found.items()]


def _read_documents(
    store: ObjectStore, manifest: Manifest, kinds: Sequence[str]
) -> dict[str, bytes]:
    """The documents of some kinds, and the list of series as "series"."""
    wanted = {kind: manifest.documents[kind] for kind in kinds}
    if manifest.series is not None:
        wanted["series"] = manifest.series
    read = store.read_many([each.file for each in wanted.values()])
    return {kind: checked(read.get(each.file), each, store.name) for kind, each in wanted.items()}


def _missing_documents(connection: sqlite3.Connection, manifest: Manifest) -> list[str]:
    rows = connection.execute("SELECT kind, id, json FROM documents").fetchall()
    there = {kind: (number, hashlib.sha256(data).hexdigest()) for kind, number, data in rows}
    return [
        kind
        for kind, stored in manifest.documents.items()
        if there.get(kind) != (stored.id, stored.sha256)
    ]


def _series(data: bytes) -> list[Series]:
    return [
        Series(id=SeriesId(number), path=path, name=name, kind=kind)
        for number, (path, name, kind) in enumerate(json.loads(data))
    ]


def delete_run_file(path: Path) -> None:
    """Delete a run file and its journals."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _cache(store: ObjectStore) -> Path:
    """The folder of all copies, without those that were not used for a month."""
    if store.is_in_memory:
        return _temporary_folder()
    folder = platformdirs.user_cache_path("torchglass") / "stores"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for copy in folder.iterdir():
            if time.time() - copy.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(copy, ignore_errors=True)
    except OSError:
        return _temporary_folder()
    return folder


@cache
def _temporary_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="torchglass-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
