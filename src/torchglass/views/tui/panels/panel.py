"""What all panels share: following the tree, keys, missing data and background jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

from textual import on
from textual.message import Message

from torchglass.errors import TorchglassError
from torchglass.records.attributes import Progress
from torchglass.records.model import Module
from torchglass.records.series import SeriesId
from torchglass.records.trace import OpId
from torchglass.views.formats import harmless
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.keys import panel_bindings
from torchglass.views.tui.panels.row_list import RowList
from torchglass.views.tui.text_rows import TextRow, meter, paragraph


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The result of a job, or its error."""

    result: Any = None
    problem: str = ""
    """What was raised."""


class BackgroundJob:
    """Work in a thread, which can be cancelled."""

    def __init__(self, says: str, work: Callable[[Progress], T], then: Callable[[T], None]) -> None:
        self.says = says
        """What the job does, in a few words."""
        self.share = 0.0
        self.stopped = False
        self._work = work
        self._then = then

    def run(self) -> JobOutcome:
        try:
            return JobOutcome(self._work(self._progress))
        except TorchglassError as error:
            return JobOutcome(problem=str(error))
        except Exception as error:  # noqa: BLE001 - what is looked at is foreign code, one panel of many
            return JobOutcome(problem=f"{type(error).__name__}: {error}")

    def finish(self, outcome: JobOutcome) -> None:
        self._then(outcome.result)

    def _progress(self, share: float) -> bool:
        self.share = share
        return not self.stopped


T = TypeVar("T")

_PATIENCE_SECONDS = 0.25
"""How long a job runs before its progress is shown: a flicker would be worse than a wait."""
_METER = 12


class Panel(RowList):
    """A view of the module under the tree's cursor.

    A subclass has a `key`, a `title` and `follow`, which calls `put` or `say`.
    """

    key: ClassVar[str] = ""
    """The key that shows and hides it."""
    title: ClassVar[str] = ""
    missing: ClassVar[str] = ""
    """Why there is nothing to show and what to do about it, in one sentence."""
    BINDINGS: ClassVar = panel_bindings("panel")

    class Jump(Message):
        """The user wants to go to another module."""

        def __init__(self, path: str) -> None:
            super().__init__()
            self.path = path

    class Picked(Message):
        """The user selected an op of the trace."""

        def __init__(self, op: OpId) -> None:
            super().__init__()
            self.op = op

    class Leave(Message):
        """The user wants to go back to the tree."""

    class Retitled(Message):
        """The text beside the title changed."""

    class _Done(Message):
        def __init__(self, job: BackgroundJob, outcome: JobOutcome) -> None:
            super().__init__()
            self.job = job
            self.outcome = outcome

    def __init__(self, state: ExplorerState) -> None:
        super().__init__()
        self.state = state
        self.module = state.model.root
        self._subtitle = self._position = ""
        self._places: tuple[str, ...] = ()
        self._is_empty = True
        self._job: BackgroundJob | None = None
        self._waited = False

    @classmethod
    def available(cls, state: ExplorerState) -> bool:
        """Whether it has anything to show."""
        return True

    @property
    def places(self) -> tuple[str, ...]:
        """The places of the key table whose keys act now."""
        own = () if self._is_empty else (f"panel:{self.title.lower()}",)
        return ("panel", *own, *self.extra_places())

    def extra_places(self) -> Iterable[str]:
        """The places of keys that act only sometimes."""
        return ()

    def wanted(self) -> Iterable[SeriesId]:
        """The series that it shows, which have to be read."""
        return ()

    def show(self, module: Module) -> None:
        """Show a module, or what is new about it."""
        moved = module.path != self.module.path
        self.module = module
        if moved:
            self.stop()
            self.row = 0
            self.turn_to(0, 0)
        self._follow(moved)

    def refresh_data(self) -> None:
        self._follow(False)

    def _follow(self, moved: bool) -> None:
        if self.available(self.state):
            self.follow(moved)
        else:
            self.say(f"{self.missing}.")

    def pick(self, op: OpId) -> None:
        """Show the op that was selected in another panel."""

    def follow(self, moved: bool) -> None:
        """Draw the module; `moved` if it is another one than before."""
        raise NotImplementedError

    def choose(self, row: TextRow) -> None:
        if isinstance(row.target, str):
            self.post_message(self.Jump(row.target))

    def close_inner(self) -> bool:
        """Close what was opened inside the panel; False if nothing was."""
        return False

    def placed(self) -> None:
        before = self._position, self._places
        self._position, self._places = self.position, self.places
        if before != (self._position, self._places):
            self.post_message(self.Retitled())

    @property
    def subtitle(self) -> str:
        """The text beside the title: the position, and what is shown."""
        return " · ".join(filter(None, (self._position, self._subtitle)))

    @subtitle.setter
    def subtitle(self, words: str) -> None:
        if words != self._subtitle:
            self._subtitle = words
            self.post_message(self.Retitled())

    @property
    def settled(self) -> bool:
        return self._job is None

    def put(self, rows: Sequence[TextRow], header: Sequence[TextRow] = ()) -> None:
        """Show these rows below a fixed header."""
        self._is_empty = False
        super().put(rows, header)

    def say(self, words: str) -> None:
        """Show a sentence instead of rows; the keys of the panel do not act on it."""
        self._is_empty = True
        super().put(paragraph(words, self.room, "muted"))

    def work(self, says: str, work: Callable[[Progress], T], then: Callable[[T], None]) -> None:
        """Run `work` in a thread, then `then` with its result unless it was cancelled."""
        self.stop()
        job = self._job = BackgroundJob(says, work, then)
        self._waited = False
        # A daemon thread: a property that hangs must not keep the user from quitting.
        threading.Thread(target=copy_context().run, args=(self._run, job), daemon=True).start()
        self.set_timer(_PATIENCE_SECONDS, partial(self._tell_of_work, job))

    def _run(self, job: BackgroundJob) -> None:
        outcome = job.run()
        # The screen may be gone by then.
        with suppress(RuntimeError):
            self.post_message(self._Done(job, outcome))

    def stop(self) -> None:
        if self._job is not None:
            self._job.stopped = True
            self._job = None
            self.lay_out()

    @on(_Done)
    def _take(self, message: _Done) -> None:
        """Use the result of a job, unless it was cancelled meanwhile."""
        if message.job is not self._job:
            return
        self._job = None
        if message.outcome.problem:
            self.put(paragraph(harmless(message.outcome.problem), self.room, "problem"))
        else:
            message.job.finish(message.outcome)

    def _tell_of_work(self, job: BackgroundJob) -> None:
        if self._job is job:
            self._waited = True
            self.lay_out()
            self.set_timer(_PATIENCE_SECONDS, partial(self._tell_of_work, job))

    def top(self) -> Sequence[TextRow]:
        """The header, with the progress of the job."""
        job = self._job
        if job is None or not self._waited:
            return self._header
        share = f" {job.share:4.0%}  "
        pieces = [(f"{job.says}  ", "muted"), *meter(job.share, _METER), (share, "muted")]
        return [*self._header, TextRow([*pieces, ("Esc", "key"), (" cancel", "muted")])]

    def on_resize(self) -> None:
        self._follow(False)

    def action_back(self) -> None:
        """Cancel the job, close what was opened, or go back to the tree."""
        if self._job is not None:
            self.stop()
        elif not self.close_inner():
            self.post_message(self.Leave())
