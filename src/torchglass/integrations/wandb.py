"""A watched training in Weights & Biases: `wandb.init()`, then `tg.watch(model, backend="wandb")`.

wandb keeps one row of numbers for each step of its own, and refuses a step lower than the last. So
that steps stay those of the program, what was measured waits in the open row for the program's next
`wandb.log` to take it along; `torchglass/step` in it is the step of the training, over which charts
are drawn. Of a program that logs nothing itself, the steps become rows when the training ends.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import wandb
from wandb.sdk.wandb_run import TeardownHook, TeardownStage

from torchglass.errors import ViewError, warn
from torchglass.integrations.frames import Measured, Thinned, bins_of, numbers_of
from torchglass.records.flow import Reader
from torchglass.records.histogram import Histogram
from torchglass.records.series import Frame, Series, SeriesId
from torchglass.views.web.offline import render_page

FIRST_PAGE_SECONDS = 60.0
"""When the page is put into the run first; then after twice as long, and so on, and at the end."""

MOST_POINTS = 20_000
"""So many points are kept, evenly over the training, for a program that logs nothing itself."""

_backends: Counter[str] = Counter()
"""How many there have been in each wandb run: models that are watched side by side."""

_rows: Counter[str] = Counter()
"""How many rows of each wandb run were made by us."""


def make_backend() -> WandbBackend:
    """A backend for `torchglass.watch`."""
    return WandbBackend()


class WandbBackend:
    """Puts frames and, now and then, the page into the wandb run that is active."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._kept: Thinned | None = Thinned(MOST_POINTS)
        """None once the program is known to log by itself."""
        self._names: set[str] = set()
        self._is_open = False
        self._page: threading.Thread | None = None

    def begin(self, reader: Reader) -> None:
        """The run begins; so must have one of wandb's."""
        if wandb.run is None:
            raise ViewError(
                "backend='wandb' shows the training in a run of wandb, and there is none: "
                "call wandb.init() before torchglass.watch()"
            )
        if wandb.run.disabled:
            return
        self._run = wandb.run
        self._reader = reader
        self._first_row = _rows_of_others(self._run)
        _backends[self._run.id] += 1
        number = _backends[self._run.id]
        self._prefix = "torchglass" if number == 1 else f"torchglass-{number}"
        self._run.define_metric(f"{self._prefix}/step", hidden=True)
        self._run.define_metric(f"{self._prefix}/*", step_metric=f"{self._prefix}/step")
        # A run that is finished before the watcher is closed takes nothing any more.
        self._run._teardown_hooks.append(TeardownHook(self._end_with_run, TeardownStage.EARLY))
        self._seconds = FIRST_PAGE_SECONDS
        self._next_page = self._now() + self._seconds
        self._is_open = True

    def frame(self, frame: Frame, series: Mapping[SeriesId, Series]) -> None:
        """A step was measured."""
        if not self._is_open:
            return
        self._put(Measured.of(frame, series))
        if self._now() >= self._next_page:
            self._seconds *= 2
            self._next_page = self._now() + self._seconds
            self._page = threading.Thread(target=self._try_page, daemon=True)
            self._page.start()

    def close(self) -> None:
        """Put in what is left, and the page with all of it."""
        if not self._is_open:
            return
        self._is_open = False
        if self._page is not None:
            self._page.join()
        self._forget_if_logged()
        if self._kept is not None:
            self._put_rows(self._kept)
        self._put_page()

    def _put(self, measured: Measured) -> None:
        row = self._row(measured)
        self._names.update(row)
        self._run.log(row, commit=False)
        if self._kept is not None:
            self._kept.add(measured)
            # Ever more rarely, as wandb is asked and waited for.
            if self._kept.seen.bit_count() == 1:
                self._forget_if_logged()

    def _forget_if_logged(self) -> None:
        if self._kept is not None and _rows_of_others(self._run) != self._first_row:
            self._kept = None

    def _put_rows(self, kept: Thinned) -> None:
        """A row for each step that was kept: nobody but us has made any."""
        # The row that is open has the latest of everything, and becomes that of the first step.
        row: dict[str, Any] = dict.fromkeys(self._names)
        for measured in kept:
            row.update(self._row(measured))
            self._run.log(row, commit=True)
            _rows[self._run.id] += 1
            row = {}

    def _row(self, measured: Measured) -> dict[str, Any]:
        row: dict[str, Any] = {f"{self._prefix}/step": measured.step}
        for series, point in measured.points:
            name = f"{self._prefix}/{series.label}"
            row.update(numbers_of(name, point))
            if isinstance(point, Histogram) and point.counts:
                bins = bins_of(point, wandb.Histogram.MAX_LENGTH)
                row[name] = wandb.Histogram(np_histogram=bins)
        return row

    def _put_page(self) -> None:
        page = wandb.Html(render_page(self._reader), inject=False)
        self._run.log({f"{self._prefix}/page": page}, commit=False)

    def _try_page(self) -> None:
        try:
            self._put_page()
        except Exception as error:  # noqa: BLE001 - in a thread beside someone's training
            self._next_page = float("inf")
            warn(f"wandb is shown no page: {type(error).__name__}: {error}")

    def _end_with_run(self) -> None:
        try:
            self.close()
        except Exception as error:  # noqa: BLE001 - while someone's run of wandb is finished
            warn(f"wandb lacks the end of the training: {type(error).__name__}: {error}")


def _rows_of_others(run: wandb.Run) -> float:
    """How many rows the program has made by itself.

    Where several processes write to one run, nobody knows: NaN, which is like nothing else.
    """
    try:
        return run.step - _rows[run.id]
    except wandb.Error:
        return math.nan
