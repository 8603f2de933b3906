"""A run that is kept in memory, for views of something that is happening in this process."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import overload

import numpy as np

from torchglass.errors import StoreError
from torchglass.records.model import Model
from torchglass.records.run import Run
from torchglass.records.series import FIELDS, Frame, Kind, Points, Series, SeriesId, numbers
from torchglass.store.catalog import Catalog


class MemoryStore:
    """A sink and its reader in one."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._model: Model | None = None
        self._catalog = Catalog()
        self._rows: defaultdict[SeriesId, list[tuple[int, tuple[float, ...]]]] = defaultdict(list)
        self._last_step = -1
        self._finished = False
        self._lock = threading.Lock()

    def put_model(self, model: Model) -> None:
        """Keep the structure; a later one replaces it."""
        self._model = model

    def put_frame(self, frame: Frame) -> None:
        """Keep what was measured at one step."""
        with self._lock:
            for series, point in frame.points.items():
                self._rows[series].append((frame.step, numbers(point)))
            self._last_step = max(self._last_step, frame.step)

    @overload
    def series(self) -> Sequence[Series]: ...

    @overload
    def series(self, path: str, name: str, kind: Kind = "scalar") -> SeriesId: ...

    def series(
        self, path: str | None = None, name: str = "", kind: Kind = "scalar"
    ) -> Sequence[Series] | SeriesId:
        """All series there are; or, for a place and a name, the id of that one."""
        if path is None:
            return tuple(self._catalog.all)
        return self._catalog.id_of(path, name, kind)

    def run(self) -> Run:
        """Who recorded this, where and when."""
        return self._run

    def model(self) -> Model:
        """The structure of the model."""
        if self._model is None:
            raise StoreError("the run holds no model yet")
        return self._model

    def points(self, series: SeriesId, *, after: int = -1) -> Points:
        """The points of one series at steps above `after`."""
        known = self._catalog.all
        if not 0 <= series < len(known):
            raise StoreError(f"the run has no series with the id {series}")
        with self._lock:
            rows = [row for row in self._rows.get(series, ()) if row[0] > after]
        width = len(FIELDS[known[series].kind])
        return Points(
            series=known[series],
            steps=np.array([step for step, _ in rows], np.int64),
            values=np.array([values for _, values in rows], np.float64).reshape(-1, width),
        )

    def last_step(self) -> int:
        """The latest step there is, -1 before the first."""
        return self._last_step

    def finished(self) -> bool:
        """Whether the writer closed the run."""
        return self._finished

    def close(self) -> None:
        """End the run; what it holds can still be read."""
        self._finished = True
