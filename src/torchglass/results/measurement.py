"""What the results of all measurements share: rows by path, tables of them, and JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from torchglass.analyse.rows import Measured, Sort
from torchglass.errors import LookupFailedError
from torchglass.export.texts import json_text
from torchglass.results.files import File, written
from torchglass.targets.names import near_or_all
from torchglass.views.tables import Look

M = TypeVar("M", bound=Measured)


class Rows(dict[str, M]):
    """What was measured of each module, by its path."""

    def __missing__(self, path: str) -> M:
        raise LookupFailedError(f"no module {path!r} was measured{near_or_all(str(path), self)}")


class Measurement(ABC, Generic[M]):
    """What was measured of each module and op of a model; print it for a table."""

    @property
    @abstractmethod
    def rows(self) -> Mapping[str, M]:
        """What was measured of each module, by its path; the model itself is ""."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings and numbers."""

    @abstractmethod
    def _table(self, look: Look) -> str: ...

    @abstractmethod
    def _op_table(self, count: int | None, room: int | None) -> str: ...

    def __getitem__(self, path: str) -> M:
        return self.rows[path]

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__

    def table(
        self,
        *,
        sort: Sort | None = None,
        depth: int | None = None,
        columns: Iterable[str] | None = None,
        width: int | None = None,
    ) -> str:
        """The modules as a table: as a tree, or those that take most first.

        With `sort="total"` the largest of siblings comes first, with `sort="self"` the largest of
        all. `depth` says how far below the model rows are shown. A `width` leaves out what there is
        no room for in so many terminal cells, and says what that is.
        """
        return self._table(Look(sort, depth, columns, width))

    def op_table(self, count: int | None = 20, *, width: int | None = None) -> str:
        """The ops that take most as a table; a `count` of None shows all."""
        return self._op_table(count, width)

    def to_json(self, file: File | None = None) -> str:
        """JSON, also written to a file if one is named."""
        return written(json_text(self.to_dict()), file)
