"""Which series there are, and the number that stands for each."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from torchglass.records.series import Kind, Series, SeriesId


class Catalog:
    """The series of one run in the order in which they were first asked for, from any thread."""

    def __init__(self, known: Iterable[Series] = ()) -> None:
        self.all = list(known)
        self._ids = {(each.path, each.name, each.kind): each.id for each in self.all}
        self._lock = threading.Lock()

    def id_of(self, path: str, name: str, kind: Kind) -> SeriesId:
        """The id of a series, made on first use."""
        key = (path, name, kind)
        if key not in self._ids:
            with self._lock:
                if key not in self._ids:
                    self._ids[key] = self._made(_writable(path), _writable(name), kind)
        return self._ids[key]

    def _made(self, path: str, name: str, kind: Kind) -> SeriesId:
        known = self._ids.get((path, name, kind))
        if known is not None:
            return known
        new = Series(id=SeriesId(len(self.all)), path=path, name=name, kind=kind)
        self.all.append(new)
        self._ids[path, name, kind] = new.id
        return new.id


def _writable(name: str) -> str:
    """A name as UTF-8 can hold it: a lone surrogate, as in a file's name, is spelled out."""
    return str(name).encode("utf-8", "backslashreplace").decode()
