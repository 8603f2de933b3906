"""A run in memory, for views of this process."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import cast, overload

import numpy as np

from torchglass.errors import StoreError
from torchglass.records.model import Model
from torchglass.records.reader import D, Document, Reader
from torchglass.records.run import Ending, RunRecord, RunStatus, status_of_ending
from torchglass.records.series import (
    FIELDS,
    Frame,
    Points,
    Series,
    SeriesId,
    SeriesKind,
    point_values,
)
from torchglass.records.tensors import Histogram, Histograms
from torchglass.store.run_file import Catalog


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

    def points(self, series: SeriesId, *, after: int = -1) -> Points:
        known = self._known(series)
        with self._lock:
            rows = [row for row in self._rows.get(series, ()) if row[0] > after]
        return Points(
            series=known,
            steps=np.array([step for step, _ in rows], np.int64),
            values=np.array([values for _, values in rows], np.float64).reshape(
                -1, len(FIELDS[known.kind])
            ),
        )

    def points_of(self, ids: Sequence[SeriesId], *, after: int = -1) -> list[Points]:
        return [self.points(series, after=after) for series in ids]

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
