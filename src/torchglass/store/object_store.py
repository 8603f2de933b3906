"""A run in an object store: its layout, its manifest, and access by any fsspec URL.

    s3://bucket/run/manifest.json           what the run of rank 0 has by now; written last
    s3://bucket/run/manifest-3.json         the same of rank 3
    s3://bucket/run/segments/*.parquet      steps, in the columns of `store.arrow_columns` and more
    s3://bucket/run/documents/*.json.zz     the model, findings and so on; JSON, zlib-compressed

Objects are never changed, apart from manifests. What a manifest names is complete: a segment
counts as shipped once a manifest that names it is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerError
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from torchglass.errors import SchemaError, StoreError, TargetError, error_line
from torchglass.records.json_data import from_json_data, to_json_data
from torchglass.records.run import RunEntry
from torchglass.records.urls import without_secrets

VERSION = 1
"""The format of manifests; a reader refuses a higher one."""
FORMAT = "torchglass-run"

_MANIFEST = re.compile(r"manifest(?:-(\d+))?\.json")
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_PACKAGES = {"gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}

T = TypeVar("T")


def manifest_name(rank: int) -> str:
    """The name of the manifest of a rank."""
    return f"manifest-{rank}.json" if rank else "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedObject:
    """An object that a manifest names."""

    file: str
    bytes: int
    sha256: str
    id: int = 0
    """Of a document its version, of the list of series their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedSegment:
    """The steps of one Parquet file."""

    file: str
    bytes: int
    sha256: str
    first: int
    """The number of its first frame, in the order of writing."""
    last: int
    frames: int
    """How many it has: those that were thinned out are missing."""
    unpacked_bytes: int
    """The size of its frames in a run file."""
    level: int = 0
    """How often its steps were merged into a larger segment."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What the run of one rank has in the store."""

    format: str
    version: int
    meta: Mapping[str, Any]
    """The table "meta" of the run file."""
    sessions: tuple[Any, ...]
    """The table "sessions" of the run file."""
    series: ShippedObject | None
    """The list of series: path, name and kind of each."""
    documents: Mapping[str, ShippedObject]
    segments: tuple[ShippedSegment, ...]
    replaced: tuple[str, ...]
    """Objects that were merged into others and will be deleted."""
    entry: RunEntry | None = None
    """The run as a table of runs lists it; its status was true when the manifest was written."""
    times_ns: tuple[int, ...] = ()
    """When the last frames were measured, the latest first."""

    @property
    def last(self) -> int:
        """The number of the last frame; 0 before the first."""
        return self.segments[-1].last if self.segments else 0

    @property
    def files(self) -> set[str]:
        """The names of all objects."""
        objects = [*self.documents.values(), *([self.series] if self.series is not None else [])]
        return {*(each.file for each in objects), *(each.file for each in self.segments)}

    def to_bytes(self) -> bytes:
        """The manifest as it is stored."""
        return json.dumps(_strict(to_json_data(self)), indent=1).encode()


def _strict(plain: Any) -> Any:
    """Plain data with {"float": "nan"} for NaN and Inf, which JSON does not have."""
    if isinstance(plain, dict):
        return {key: _strict(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [_strict(value) for value in plain]
    is_odd = isinstance(plain, float) and not math.isfinite(plain)
    return {"float": str(plain)} if is_odd else plain


def _with_floats(plain: dict[str, Any]) -> Any:
    return float(plain["float"]) if plain.keys() == {"float"} else plain


def read_manifest(data: bytes, where: str) -> Manifest:
    """The manifest in an object. Raises if it is corrupt, foreign or of a newer version."""
    try:
        plain = json.loads(data, object_hook=_with_floats)
        kind, version = plain["format"], plain["version"]
    except (ValueError, LookupError, TypeError) as error:
        raise StoreError(f"{where} is not the manifest of a run: {error_line(error)}") from error
    if kind != FORMAT:
        raise StoreError(f"{where} is not the manifest of a Torchglass run")
    if version > VERSION:
        raise SchemaError(
            f"{where} has format {version}, and this Torchglass reads up to {VERSION}. "
            "Upgrade with: pip install --upgrade torchglass"
        )
    try:
        return from_json_data(Manifest, plain)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StoreError(f"{where} is corrupt: {error_line(error)}") from error


def is_continued(old: Sequence[Any], new: Sequence[Any]) -> bool:
    """Whether the sessions of a run are the first of some others."""
    return [tuple(row[:2]) for row in old] == [tuple(row[:2]) for row in new[: len(old)]]


class ObjectStore:
    """The objects below one URL. Every problem is a StoreError of one line."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = without_secrets(url)
        """The URL as it may be shown and stored."""
        fsspec = _import_fsspec()
        try:
            # A listing that is kept does not show what other processes write.
            self._fs, self._root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            scheme = url.partition(":")[0]
            package = _EXTRAS.get(scheme)
            command = f"'torchglass[{package}]'" if package else _PACKAGES.get(scheme, "fsspec")
            raise TargetError(f"{scheme}:// needs a package: pip install {command}") from error
        except ValueError as error:
            raise TargetError(f"{self.name} cannot be used: {error_line(error)}") from error
        self._is_local = "file" in _protocols(self._fs)

    @property
    def is_in_memory(self) -> bool:
        """Whether only this process can read it."""
        return "memory" in _protocols(self._fs)

    def read(self, name: str) -> bytes | None:
        """An object; None if it does not exist."""
        return self.read_many([name]).get(name)

    def read_many(self, names: Sequence[str]) -> dict[str, bytes]:
        """Some objects at once, without those that do not exist."""
        if not names:
            return {}
        paths = {self._path(name): name for name in names}
        found = self._try("read", lambda: self._fs.cat(list(paths), on_error="return"))
        # Of one path that has no wildcard, some file systems return the bytes alone.
        by_path = found if isinstance(found, dict) else {next(iter(paths)): found}
        objects = {}
        for path, data in by_path.items():
            if isinstance(data, (FileNotFoundError, NotADirectoryError)):
                continue
            if isinstance(data, BaseException):
                raise self._problem("read", data)
            objects[paths[path]] = data
        return objects

    def write(self, name: str, data: bytes) -> None:
        """Write an object completely or not at all."""
        path = self._path(name)
        if not self._is_local:
            self._try("write to", lambda: self._fs.pipe_file(path, data))
            return
        # A file that is replaced is never half-written; an object never is.
        part = f"{path}.part"

        def replace() -> None:
            self._fs.makedirs(self._fs._parent(path), exist_ok=True)
            self._fs.pipe_file(part, data)
            self._fs.mv(part, path)

        self._try("write to", replace)

    def names(self, folder: str = "") -> list[str]:
        """The names of the objects and folders in a folder, [] if it does not exist."""
        try:
            found = self._fs.ls(self._path(folder) if folder else self._root, detail=False)
        except Exception as error:
            # A folder without objects does not exist; a bucket does.
            if isinstance(error, FileNotFoundError) and "bucket does not exist" not in str(error):
                return []
            raise self._problem("list", error) from error
        return sorted(each.rstrip("/").rpartition("/")[2] for each in found)

    def remove(self, names: Iterable[str]) -> None:
        """Delete objects; those that are gone already do not matter."""

        def remove(path: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(path)

        for name in names:
            self._try("delete from", partial(remove, self._path(name)))

    def ranks(self) -> dict[int, str]:
        """The names of the manifests by rank; {} if this is not a run."""
        found = (_MANIFEST.fullmatch(name) for name in self.names())
        return {int(each[1] or 0): each[0] for each in found if each is not None}

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _try(self, verb: str, do: Callable[[], T]) -> T:
        try:
            return do()
        except Exception as error:
            raise self._problem(verb, error) from error

    def _problem(self, verb: str, error: BaseException) -> StoreError:
        return StoreError(f"cannot {verb} {self.name}: {without_secrets(error_line(error))}")


def _protocols(file_system: Any) -> Sequence[str]:
    found = file_system.protocol
    return [found] if isinstance(found, str) else list(found)


def _import_fsspec() -> Any:
    try:
        import fsspec
        import fsspec.core
    except ImportError as error:
        raise TargetError(
            "runs in an object store need fsspec and pyarrow: pip install 'torchglass[s3]' for S3, "
            "'torchglass[objects]' for others"
        ) from error
    return fsspec


def in_time(ask: Callable[[], T], seconds: float) -> T:
    """The answer of a store, unless it takes too long; it is asked in another thread."""
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the answer gets it
            answer.set_exception(error)

    threading.Thread(target=work, name="torchglass store", daemon=True).start()
    try:
        return answer.result(seconds)
    except NoAnswerError as error:
        raise StoreError(f"the store did not answer within {seconds:g} s") from error


def checked(data: bytes | None, stored: ShippedObject | ShippedSegment, where: str) -> bytes:
    """The content of an object that a manifest names. Raises if it is not what was written."""
    if data is None:
        raise StoreError(f"{where}/{stored.file} is missing")
    if len(data) != stored.bytes:
        raise StoreError(
            f"{where}/{stored.file} is truncated: {len(data):,} of {stored.bytes:,} bytes"
        )
    if hashlib.sha256(data).hexdigest() != stored.sha256:
        raise StoreError(f"{where}/{stored.file} is corrupt: its checksum differs")
    return data
