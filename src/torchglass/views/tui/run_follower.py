"""Reads a run, counts its model and checks its weights in background threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from textual.message import Message
from textual.screen import Screen

from torchglass.analyse.training_overview import (
    HeatMap,
    HeatMaps,
    Statistic,
    TrainingOverview,
    training_overview,
)
from torchglass.errors import TorchglassError
from torchglass.records.findings import Finding, Findings
from torchglass.records.model import Histograms, Model
from torchglass.records.run import (
    DOCUMENT_NAMES,
    Document,
    Points,
    Reader,
    RunStatus,
    Series,
    SeriesId,
)
from torchglass.views.tui.explorer_state import ExplorerState, ModelContents, count_model

_POLL_SECONDS = 0.25
_HEAT_COLUMNS = 256
"""More than a terminal has room for beside the names."""
_REST = 10
"""At most a tenth of the time that a training is followed is spent on its overview."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverview:
    """The overview of a run, and one heat map."""

    training: TrainingOverview
    heat_map: HeatMap | None
    statistics: tuple[Statistic, ...] = ()
    """Those that there is a heat map of."""


class OverviewReader:
    """Reads the overview of a run again whenever something is new."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._maps = HeatMaps(reader, columns=_HEAT_COLUMNS)
        self.statistic: Statistic | None = None
        self._read: tuple[object, ...] = ()
        self._next = 0.0

    def read(self, update: RunUpdate, revision: int) -> RunOverview | None:
        """The overview; None if nothing is new, or too little time has passed."""
        now = update.step, update.status, revision, self.statistic
        is_asked = self._read[-1:] != (self.statistic,)
        started = time.monotonic()
        if now == self._read or (not update.finished and not is_asked and started < self._next):
            return None
        statistics = tuple(self._maps.available())
        wanted = self.statistic if self.statistic in statistics else next(iter(statistics), None)
        found = RunOverview(
            training=training_overview(self._reader, columns=_HEAT_COLUMNS),
            heat_map=self._maps.of(wanted) if wanted else None,
            statistics=statistics,
        )
        self._read = now
        ended = time.monotonic()
        self._next = ended + max(_REST * (ended - started), _POLL_SECONDS)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUpdate:
    """What was read since the last update."""

    step: int
    finished: bool
    status: RunStatus | None = None
    series: tuple[Series, ...] = ()
    """The new series."""
    points: tuple[Points, ...] = ()
    histograms: tuple[Histograms, ...] = ()
    model: Model | None = None
    """The model, if it changed."""
    documents: Mapping[type[Document], Document] | None = field(default=None, compare=False)
    """All records of the run, if one of them changed."""
    overview: RunOverview | None = None
    """The overview, if it was asked for and something is new."""
    problem: str = ""
    """Why nothing could be read."""

    @property
    def has_news(self) -> bool:
        """Whether there is more than the step and the state of the run."""
        return bool(
            self.series
            or self.points
            or self.model
            or self.documents is not None
            or self.overview is not None
        )


class RunFollower:
    """Follows a run and reports what is new. Only the thread of `follow` reads."""

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
        self._overview: OverviewReader | None = None
        self._wake = threading.Event()
        self._waiting = False
        self._stopped = False

    def want(self, series: Iterable[SeriesId]) -> None:
        wanted = frozenset(series)
        if wanted != self._wanted:
            self._wanted = wanted
            self._wake.set()

    def want_overview(self, statistic: Statistic | None = None) -> None:
        """Also read the overview from now on, with the heat map of a statistic."""
        if self._overview is None:
            self._overview = OverviewReader(self._reader)
        self._overview.statistic = statistic or self._overview.statistic
        self._wake.set()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    @property
    def idle(self) -> bool:
        """Whether everything requested was read."""
        return self._waiting and not self._wake.is_set()

    def follow(self) -> None:
        """Read whenever there may be something new, until stopped."""
        while True:
            self._wake.clear()
            # Checked after `clear`, which may have erased the signal of `stop`.
            if self._stopped:
                return
            update = self._look()
            if update.has_news or update != self._last:
                self._tell(update)
            self._last = replace(
                update, series=(), points=(), histograms=(), model=None, documents=None
            )
            # After the rest is shown: of a large run it takes seconds.
            self._tell_overview()
            # A finished run does not change, but other series of it may be requested.
            self._waiting = True
            self._wake.wait(None if update.finished else self._interval)
            self._waiting = False

    def _tell_overview(self) -> None:
        last = self._last
        if self._overview is None or last is None or last.problem:
            return
        try:
            overview = self._overview.read(last, self._revision)
        except (TorchglassError, OSError):
            # The next look at the file tells what is wrong with it.
            return
        if overview is not None and not self._stopped:
            self._tell(replace(last, overview=overview))

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
        """The model if it changed, and all records if any changed."""
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
            # The writer may have added steps since `last_step` was read.
            self._read_to[one] = max([step, *found.steps[-1:].tolist()])
        return tuple(filter(len, points)), tuple(filter(len, bins))


_CHECKED_BYTES = 1 << 29
"""Weights up to this size are checked automatically: that takes about a second."""


class BackgroundReader(RunFollower):
    """What the explorer does in threads. Its screen gets the results as messages."""

    @dataclass
    class Counted(Message):
        """The modules of a model were counted."""

        model: Model
        contents: ModelContents

    @dataclass
    class Checked(Message):
        """The weights were checked for NaN and Inf."""

        found: Sequence[Finding] | None

    @dataclass
    class Read(Message):
        """The run was read again."""

        update: RunUpdate

    def __init__(self, screen: Screen[None], state: ExplorerState, reader: Reader) -> None:
        super().__init__(
            reader,
            lambda update: screen.post_message(self.Read(update)),
            interval=_POLL_SECONDS,
            model=state.model,
        )
        self._screen = screen
        self._state = state
        self._checking = False

    @property
    def idle(self) -> bool:
        """Whether everything requested was read and checked."""
        is_checking = self._checking and self._state.values_checked is False
        return super().idle and not is_checking

    def start(self) -> None:
        self._screen.run_worker(self.follow, thread=True)

    def count(self) -> None:
        model, screen = self._state.model, self._screen
        screen.run_worker(
            lambda: screen.post_message(self.Counted(model, count_model(model))), thread=True
        )

    def check_weights(self) -> None:
        """Look for NaN and Inf in weights that are read quickly, unless the run recorded them."""
        state = self._state
        counts = state.counts(state.model.root)
        unread = state.values_checked is False and state.document(Findings) is None
        if self._checking or state.live is None or counts is None or not unread:
            return
        if 0 < counts.total.bytes <= _CHECKED_BYTES:
            self._checking = True
            check, screen = state.live.check, self._screen
            screen.run_worker(
                lambda: screen.post_message(self.Checked(check(lambda _: not self._stopped))),
                thread=True,
            )
