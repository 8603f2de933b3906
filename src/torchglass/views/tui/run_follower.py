"""Reads a growing run in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from torchglass.errors import TorchglassError
from torchglass.records.model import Model
from torchglass.records.reader import DOCUMENT_NAMES, Document, Reader
from torchglass.records.run import RunStatus
from torchglass.records.series import Points, Series, SeriesId
from torchglass.records.tensors import Histograms


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUpdate:
    """What was read since the last time."""

    step: int
    finished: bool
    status: RunStatus | None = None
    series: tuple[Series, ...] = ()
    """Those that were not there before."""
    points: tuple[Points, ...] = ()
    histograms: tuple[Histograms, ...] = ()
    model: Model | None = None
    """The model, where it is another one than before."""
    documents: Mapping[type[Document], Document] | None = field(default=None, compare=False)
    """All records of the run, where one of them changed."""
    problem: str = ""
    """Why nothing could be read."""

    @property
    def is_news(self) -> bool:
        """Whether it tells more than how far the run is."""
        return bool(self.series or self.points or self.model or self.documents is not None)


class RunFollower:
    """Follows a run and tells what is new. Only the thread that calls `follow` reads."""

    def __init__(
        self,
        reader: Reader,
        tell: Callable[[RunUpdate], object],
        *,
        interval: float,
        model: Model | None = None,
    ) -> None:
        self._reader = reader
        self._tell = tell
        self._interval = interval
        self._model = model
        self._revision = -1
        self._wanted: frozenset[SeriesId] = frozenset()
        self._known: list[Series] = []
        self._read_to: dict[SeriesId, int] = {}
        self._last: RunUpdate | None = None
        self._wake = threading.Event()
        self._waiting = False
        self._stopped = False

    def want(self, series: Iterable[SeriesId]) -> None:
        """Read these series from now on."""
        wanted = frozenset(series)
        if wanted != self._wanted:
            self._wanted = wanted
            self._wake.set()

    def stop(self) -> None:
        """Make `follow` return."""
        self._stopped = True
        self._wake.set()

    @property
    def idle(self) -> bool:
        """Whether everything that is wanted was read, as far as the run went then."""
        return self._waiting and not self._wake.is_set()

    def follow(self) -> None:
        """Read whenever there may be something new, and tell of it, until stopped."""
        while True:
            self._wake.clear()
            # Asked after the clearing, which may have swept away the call that came with a stop.
            if self._stopped:
                return
            news = self._look()
            if news.is_news or news != self._last:
                self._tell(news)
            self._last = RunUpdate(
                step=news.step, finished=news.finished, status=news.status, problem=news.problem
            )
            # A finished run changes no more, but other series of it may still be wanted.
            self._waiting = True
            self._wake.wait(None if news.finished else self._interval)
            self._waiting = False

    def _look(self) -> RunUpdate:
        try:
            finished, step = self._reader.finished(), self._reader.last_step()
            status = self._reader.status()
            series = tuple(self._reader.series()[len(self._known) :])
            model, documents = self._revised()
            points, histograms = self._new_points(step)
        except (TorchglassError, OSError) as error:
            last = self._last or RunUpdate(step=-1, finished=False)
            return replace(last, problem=str(error))
        self._known += series
        return RunUpdate(
            step=step,
            finished=finished,
            status=status,
            series=series,
            points=points,
            histograms=histograms,
            model=model,
            documents=documents,
        )

    def _revised(self) -> tuple[Model | None, Mapping[type[Document], Document] | None]:
        """The model if it is another one, and all records if there are new ones."""
        revision = self._reader.revision()
        if revision == self._revision:
            return None, None
        model = self._reader.model()
        found = {kind: self._reader.document(kind) for kind in DOCUMENT_NAMES}  # type: ignore[type-var]
        changed = None if model is self._model or model == self._model else model
        self._revision, self._model = revision, model
        return changed, {kind: record for kind, record in found.items() if record is not None}

    def _new_points(self, step: int) -> tuple[tuple[Points, ...], tuple[Histograms, ...]]:
        behind = [one for one in self._wanted if self._read_to.get(one, -1) < step]
        reached = {one: self._read_to.get(one, -1) for one in behind}
        points = [self._reader.points(one, after=after) for one, after in reached.items()]
        binned = {one.id for one in self._known if one.kind == "histogram"} & reached.keys()
        bins = [self._reader.histograms(one, after=reached[one]) for one in binned]
        for one, found in zip(behind, points, strict=True):
            # The writer may have gone on since it said which step is its last.
            self._read_to[one] = max([step, *found.steps[-1:].tolist()])
        return tuple(filter(len, points)), tuple(filter(len, bins))
