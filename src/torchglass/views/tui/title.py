"""The first line of the explorer: what is looked at, and how far its run is."""

from __future__ import annotations

import time
from collections.abc import Callable

from torchglass.analyse.training_health import nan_since
from torchglass.records.finding import Findings
from torchglass.records.run import RunStatus
from torchglass.views.tui.bars import TwoEnds
from torchglass.views.tui.following import News
from torchglass.views.tui.subject import Subject

_LIVE_SECONDS = 10.0
"""How long a run that made a step is taken to go on."""


class RunTitle(TwoEnds):
    """The names of run and model at the left, the state of the run at the right."""

    def __init__(self, subject: Subject, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(id="title")
        self.subject = subject
        self.news: News | None = None
        """The last that was heard of the run."""
        self._clock = clock
        self._advanced: float | None = None
        self._nan_since: int | None = None

    def on_mount(self) -> None:
        """Look at the clock now and then: a run that makes no more steps waits."""
        self.set_interval(1.0, self.tell)
        self.tell()

    def take(self, news: News) -> None:
        """Tell how far the run is now."""
        if self.news is not None and news.step > self.news.step:
            self._advanced = self._clock()
        found = (news.documents or {}).get(Findings)
        if isinstance(found, Findings):
            self._nan_since = nan_since(found.findings)
        self.news = news
        self.tell()

    def tell(self) -> None:
        """Draw both ends anew."""
        run, model = self.subject.run.name, self.subject.model.name
        names = [run] if run == model else [run, model]
        if self.subject.comparison is not None:
            changed = len(self.subject.comparison.changes)
            words = f"{changed:,} modules differ" if changed != 1 else "1 module differs"
            names.append(words if changed else "no differences")
        self.say(" " + " · ".join(filter(None, names)), self._state())

    def _state(self) -> str:
        """How far the run is, nothing for a model that is not run."""
        if self.subject.holdings is None:
            return "counting… "
        if self.news is None or self.news.step < 0:
            return ""
        step = f"step {self.news.step:,} "
        if self.news.problem:
            return step + "✗ lost "
        return f"{step}{self._ending(self.news)} "

    def _ending(self, news: News) -> str:
        """How the run is doing, its worst first."""
        status = news.status or RunStatus("finished" if news.finished else "running")
        if status.has_failed:
            # The step that is shown may be an earlier one, where not each was looked at.
            return f"✗ {status}"
        if self._nan_since is not None:
            return f"✗ NaN since step {self._nan_since:,}"
        if status.state == "finished":
            return "✓ finished"
        if status.state == "stalled":
            return f"○ {status}"
        live = self._advanced is not None and self._clock() - self._advanced < _LIVE_SECONDS
        return "● live" if live else "○ waiting"
