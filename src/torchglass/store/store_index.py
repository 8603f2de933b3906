"""The runs below a URL as a list, from their manifests: no segment is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from torchglass.errors import StoreError
from torchglass.records.run import Ending, RunEntry, RunRecord
from torchglass.store.mirror import DELAY_SECONDS
from torchglass.store.object_store import Manifest, ObjectStore, manifest_name, read_manifest
from torchglass.store.readers import status_of

_DEPTH = 3
"""Levels of folders in which runs are looked for."""
_LISTED_SECONDS = 1.0
"""A page and its readers ask for the list many times a second."""
_AT_ONCE = 256
"""Manifests that are read at a time."""


class StoreIndex:
    """The runs below a URL, as `RunIndex` has those of a folder."""

    def __init__(self, url: str) -> None:
        self._store = ObjectStore(url)
        self._known: dict[str, list[RunEntry]] = {}
        """The entries of all ranks of a run, by its name."""
        self._read_at = 0.0

    def entries(self) -> list[RunEntry]:
        """All runs as they are now, or were a moment ago. A run that is over is read once."""
        if not self._read_at or time.monotonic() - self._read_at > _LISTED_SECONDS:
            self._known = dict(self._below("", _DEPTH))
            self._read_at = time.monotonic()
        return [entry for entries in self._known.values() for entry in entries]

    def curves(
        self, paths: Sequence[str], read: Callable[[str], npt.NDArray[np.float64]]
    ) -> dict[str, npt.NDArray[np.float64]]:
        """The curves of some runs, a row of steps and one of values; `read` gives each."""
        return {path: read(path) for path in paths}

    def _below(self, folder: str, depth: int) -> Iterator[tuple[str, list[RunEntry]]]:
        names = [f"{folder}{name}" for name in self._store.names(folder.rstrip("/"))]
        if any(manifest_name(0) == name.rpartition("/")[2] for name in names):
            names = [folder.rstrip("/")]
        new = []
        for name in names:
            if all(entry.status.is_over for entry in self._known.get(name, ())) and (
                name in self._known
            ):
                yield name, self._known[name]
            else:
                new.append(name)
        for start in range(0, len(new), _AT_ONCE):
            part = new[start : start + _AT_ONCE]
            read = self._store.read_many([f"{name}/{manifest_name(0)}" for name in part])
            for name in part:
                data = read.get(f"{name}/{manifest_name(0)}")
                if data is not None:
                    yield name, self._entries(name, data)
                elif depth > 1 and "." not in name.rpartition("/")[2]:
                    yield from self._below(f"{name}/", depth - 1)

    def _entries(self, name: str, data: bytes) -> list[RunEntry]:
        """The entries of all ranks of a run."""
        first = self._entry(name, manifest_name(0), data)
        others = [manifest_name(rank) for rank in range(1, first.run.world_size)]
        read = self._store.read_many([f"{name}/{other}" for other in others])
        return [
            first,
            *(
                self._entry(name, other, read[f"{name}/{other}"])
                for other in others
                if f"{name}/{other}" in read
            ),
        ]

    def _entry(self, name: str, file: str, data: bytes) -> RunEntry:
        try:
            return entry_of(read_manifest(data, f"{self._store.name}/{name}/{file}"), name)
        except StoreError as error:
            run = RunRecord(name="", created_ns=0)
            return RunEntry(path=name, run=run, bytes=len(data), unreadable=str(error))


def stored_entries(url: str) -> list[RunEntry]:
    """The entries of all ranks of the run at a URL; [] if it is not a run."""
    store = ObjectStore(url)
    ranks = store.ranks()
    read = store.read_many(list(ranks.values()))
    name = store.name.rpartition("/")[2]
    manifests = (read_manifest(read[file], f"{store.name}/{file}") for file in ranks.values())
    return [entry_of(manifest, name) for manifest in manifests]


def entry_of(manifest: Manifest, name: str) -> RunEntry:
    """A run as a table lists it, with its status now."""
    entry = manifest.entry
    if entry is None:
        raise StoreError(f"{name} is corrupt: its manifest has no entry")
    ending = entry.ending if "ending" in manifest.documents else None
    writer = manifest.meta.get("writer")
    status = status_of(
        ending,
        finished="finished_ns" in manifest.meta,
        step=entry.last_step,
        writer=None if writer is None else {**writer, "delay_seconds": DELAY_SECONDS},
        times_ns=manifest.times_ns,
    )
    now = Ending(state=status.state, step=status.step, error=status.error, message=status.message)
    size = sum(segment.bytes for segment in manifest.segments)
    size += sum(document.bytes for document in manifest.documents.values())
    return replace(entry, path=name, ending=now, bytes=size)
