"""Reading a run in a thread of its own, so that the screen never waits for a disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from torchglass.errors import TorchglassError
from torchglass.records.flow import Reader
from torchglass.records.series import Points, Series, SeriesId


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What was read since the last time."""

    step: int
    finished: bool
    series: tuple[Series, ...] = ()
    """Those that were not there before."""
    points: tuple[Points, ...] = ()
    problem: str = ""
    """Why nothing could be read."""


class Follower:
    """Follows a run and tells what is new. Only the thread that calls `follow` reads."""

    def __init__(self, reader: Reader, tell: Callable[[News], object], *, interval: float) -> None:
        self._reader = reader
        self._tell = tell
        self._interval = interval
        self._wanted: frozenset[SeriesId] = frozenset()
        self._known = 0
        self._read_to: dict[SeriesId, int] = {}
        self._last: News | None = None
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
            if news.series or news.points or news != self._last:
                self._tell(news)
            self._last = replace(news, series=(), points=())
            # A finished run changes no more, but other series of it may still be wanted.
            self._waiting = True
            self._wake.wait(None if news.finished else self._interval)
            self._waiting = False

    def _look(self) -> News:
        try:
            finished, step = self._reader.finished(), self._reader.last_step()
            series = tuple(self._reader.series()[self._known :])
            points = tuple(self._new_points(step))
        except (TorchglassError, OSError) as error:
            last = self._last or News(step=-1, finished=False)
            return replace(last, problem=str(error))
        self._known += len(series)
        return News(step=step, finished=finished, series=series, points=points)

    def _new_points(self, step: int) -> Iterable[Points]:
        behind = [one for one in self._wanted if self._read_to.get(one, -1) < step]
        found = [self._reader.points(one, after=self._read_to.get(one, -1)) for one in behind]
        for one, points in zip(behind, found, strict=True):
            # The writer may have gone on since it said which step is its last.
            self._read_to[one] = max([step, *points.steps[-1:].tolist()])
        return [points for points in found if len(points)]
