"""Shows a watched training in Weights & Biases: `tg.watch(model, backend="wandb")`.

wandb keeps one row of values per wandb step, and refuses a step lower than the last. To keep
the program's step numbers, our values go into the row of the program's next `wandb.log`; if the
optimizer has stepped by then, that is the row of the same step. `torchglass/step` in the row is the
step of the training, which is the x axis of the charts. If the program logs nothing itself, the
steps become rows when the training ends.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, cast

import wandb
from wandb.sdk.wandb_run import TeardownHook, TeardownStage

from torchglass.api.backends import (
    Backend,
    NamedFrame,
    Thinned,
    TrainingControl,
    bins_of,
    numbers_of,
)
from torchglass.errors import ViewError, warn
from torchglass.records.model import Histogram
from torchglass.records.run import Frame, Reader, RunStatus, Series, SeriesId
from torchglass.views.web.saved_page import render_page

FIRST_PAGE_SECONDS = 60.0
"""When the page is first uploaded; then after twice that time, and so on, and at the end."""

MOST_POINTS = 20_000
"""The number of points, evenly spaced, for a program that logs nothing itself."""

_PUBLISH = "_partial_history_callback"
_OPEN_ROW = -1
"""Stands for the row that wandb has open, with any number."""

_backends: Counter[str] = Counter()
"""The number of watched models in each wandb run."""

_rows: Counter[str] = Counter()
"""The number of our rows in each wandb run."""


class WandbBackend(Backend):
    """Logs frames and, from time to time, the page to the active wandb run."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._kept: Thinned | None = Thinned(MOST_POINTS)
        """None once the program is known to log values itself."""
        self._names: set[str] = set()
        self._training = TrainingControl()
        self._reader: Reader | None = None
        self._is_open = False
        self._is_in_step = True
        """Whether rows get the step in which they are logged; if not, the previous step."""
        self._shown_step = -1
        """The last step that was added to a row of the program."""
        self._own_calls = threading.local()
        self._undo = contextlib.ExitStack()
        self._page: threading.Thread | None = None

    def follow(self, training: TrainingControl) -> None:
        self._training = training

    def begin(self, reader: Reader) -> None:
        self._reader = reader
        if wandb.run is None:
            raise ViewError(
                "backend='wandb' needs an active wandb run: call wandb.init() before "
                "torchglass.watch()"
            )
        if wandb.run.disabled:
            return
        self._run = wandb.run
        self._first_row = _rows_of_others(self._run)
        _backends[self._run.id] += 1
        number = _backends[self._run.id]
        self._prefix = "torchglass" if number == 1 else f"torchglass-{number}"
        self._run.define_metric(f"{self._prefix}/step", hidden=True)
        # Each of our rows has its step; the row of the page has none.
        self._run.define_metric(
            f"{self._prefix}/*", step_metric=f"{self._prefix}/step", step_sync=False
        )
        # A wandb run that is finished before the watcher is closed accepts nothing more.
        hook = TeardownHook(self._end_with_run, TeardownStage.EARLY)
        self._run._teardown_hooks.append(hook)
        self._undo.callback(_remove, self._run, hook)
        self._join_rows()
        self._seconds = FIRST_PAGE_SECONDS
        self._next_page = self._now() + self._seconds
        self._is_open = True

    def frame(self, frame: Frame, series: Mapping[SeriesId, Series]) -> None:
        if not self._is_open:
            return
        self._put(NamedFrame.of(frame, series))
        if self._now() >= self._next_page:
            self._seconds *= 2
            self._next_page = self._now() + self._seconds
            self._page = threading.Thread(target=self._try_page, args=(self._reader,), daemon=True)
            self._page.start()

    def close(self) -> None:
        if self._reader is None:
            return
        reader, self._reader = self._reader, None
        try:
            if self._is_open:
                self._end(reader)
        finally:
            reader.close()

    def _end(self, reader: Reader) -> None:
        self._is_open = False
        self._undo.close()
        if self._page is not None:
            self._page.join()
        self._forget_if_logged()
        if self._kept is not None:
            self._put_rows(self._kept)
        self._put_page(reader)

    def _join_rows(self) -> None:
        """Add the current step to each row that the program logs, until the end."""
        # `run.log` and `wandb.log` both call this, however it was imported.
        publish = getattr(self._run, _PUBLISH, None)
        if publish is None:
            return

        @functools.wraps(publish)
        def publish_with_step(
            data: Any,
            step: int | None = None,
            commit: bool | None = None,
            *others: Any,
            **more: Any,
        ) -> Any:
            if self._is_open and self._is_in_step and not self._is_own_call:
                self._show_step(step, commit)
            return publish(data, step, commit, *others, **more)

        setattr(self._run, _PUBLISH, publish_with_step)
        self._undo.callback(_take_back, self._run, publish_with_step)

    @property
    def _is_own_call(self) -> bool:
        return getattr(self._own_calls, "row", None) is not None

    def _show_step(self, step: int | None, commit: bool | None) -> None:
        """Add the current step to the row that the program is about to write."""
        if step is None and commit is False:
            # The row stays open, and more of the step may come.
            return
        is_refused = step is not None and step < getattr(self._run, "_local_step", 0)
        self._own_calls.row = _OPEN_ROW if step is None or is_refused else step
        try:
            self._training.show_step()
        finally:
            self._own_calls.row = None

    def _put(self, measured: NamedFrame) -> None:
        row = self._row(measured)
        self._names.update(row)
        if measured.step <= self._shown_step and any(
            _is_logged(each) for each, _ in measured.points
        ):
            # The program logs values of a step after its row: from now on a row gets the step
            # before, of which everything is known.
            self._is_in_step = False
        asked_in = getattr(self._own_calls, "row", None)
        if asked_in is not None:
            self._shown_step = measured.step
        self._log(row, step=None if asked_in == _OPEN_ROW else asked_in)
        if self._kept is not None:
            self._kept.add(measured)
            # Less and less often, because this waits for wandb.
            if self._kept.seen.bit_count() == 1:
                self._forget_if_logged()

    def _log(self, row: dict[str, Any], *, step: int | None = None) -> None:
        """Add values to the open row of wandb."""
        before = getattr(self._own_calls, "row", None)
        self._own_calls.row = _OPEN_ROW
        try:
            self._run.log(row, step=step, commit=False)
        finally:
            self._own_calls.row = before

    def _forget_if_logged(self) -> None:
        if self._kept is not None and _rows_of_others(self._run) != self._first_row:
            self._kept = None

    def _put_rows(self, kept: Thinned) -> None:
        """Log a row per kept step, if the program logged none."""
        # The open row has the latest values, and becomes the row of the first step.
        row: dict[str, Any] = dict.fromkeys(self._names)
        for measured in kept:
            row.update(self._row(measured))
            self._run.log(row, commit=True)
            _rows[self._run.id] += 1
            row = {}

    def _row(self, measured: NamedFrame) -> dict[str, Any]:
        row: dict[str, Any] = {f"{self._prefix}/step": measured.step}
        for series, point in measured.points:
            name = f"{self._prefix}/{series.label}"
            row.update(numbers_of(name, point))
            if isinstance(point, Histogram) and point.counts:
                bins = bins_of(point, wandb.Histogram.MAX_LENGTH)
                row[name] = wandb.Histogram(np_histogram=bins)
        return row

    def _put_page(self, reader: Reader) -> None:
        page = wandb.Html(render_page(reader), inject=False)
        self._log({f"{self._prefix}/page": page})

    def _try_page(self, reader: Reader) -> None:
        try:
            self._put_page(reader)
        except Exception as error:  # noqa: BLE001 - in a thread beside someone's training
            self._next_page = float("inf")
            warn(f"the page was not uploaded to wandb: {type(error).__name__}: {error}")

    def _end_with_run(self) -> None:
        """Finish if the wandb run ends first; the watcher continues."""
        try:
            if self._is_open and self._reader is not None:
                self._training.catch_up()
                self._end(cast(Reader, _FinishedReader(self._reader)))
        except Exception as error:  # noqa: BLE001 - while someone's run of wandb is finished
            warn(f"the end of the training was not sent to wandb: {type(error).__name__}: {error}")


class _FinishedReader:
    """A reader of a run that is finished for wandb."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def finished(self) -> bool:
        return True

    def status(self) -> RunStatus:
        return RunStatus("finished")


def _is_logged(series: Series) -> bool:
    """Whether a series has values that the program logs itself, such as the loss."""
    return not series.path and series.kind == "scalar"


def _take_back(run: wandb.Run, publish: object) -> None:
    """Remove our function from a run, unless another one wraps it."""
    if vars(run).get(_PUBLISH) is publish:
        delattr(run, _PUBLISH)


def _remove(run: wandb.Run, hook: TeardownHook) -> None:
    # A new list, because wandb may be iterating over the old one.
    run._teardown_hooks = [each for each in run._teardown_hooks if each is not hook]


def _rows_of_others(run: wandb.Run) -> float:
    """The number of rows the program has logged itself.

    NaN, which equals nothing, if several processes write to the run: then it is unknown.
    """
    try:
        return run.step - _rows[run.id]
    except wandb.Error:
        return math.nan
