"""One recorded session, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["running", "finished", "stopped", "interrupted", "killed", "stalled"]
"""The state of a run: its process is running, finished normally, was stopped by an exception or
by Ctrl-C, was killed, or is alive but makes no steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What was recorded, where and when."""

    name: str
    created_ns: int
    """Since the epoch."""
    host: str = ""
    command: str = ""
    """The command line of the recorded process."""
    torchglass_version: str = ""
    torch_version: str = ""
    rank: int = 0
    world_size: int = 1
    group: str = ""
    """An id that all ranks of one training share; "" if unknown."""
    sample_n: int | None = 100
    """The number of values per tensor that histograms sample; None for all values."""
    reject_outlier_proportion: float = 0.1
    """The share of extreme values of a histogram that views hide by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One process that wrote to a run: the one that started it, or one that resumed it."""

    number: int
    """From 1, in the order of time."""
    run: RunRecord
    first_step: int | None = None
    """The step at which it started or resumed; None before its first step."""
    last_step: int | None = None
    abandoned_from: int | None = None
    """The step from which a later session started again, so that this branch ends there;
    None if later sessions continued it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended, as written by its process when it closed the run."""

    state: State = "finished"
    step: int = -1
    """The step that was running."""
    error: str = ""
    """The class of the exception that stopped it: "RuntimeError"."""
    message: str = ""
    """The first line of its message."""


class RunStatus(str):
    """The status of a run: a text that also has its parts as attributes.

    >>> status = RunStatus("stopped", step=40, error="RuntimeError", message="out of memory")
    >>> status, status.state, status.step, status.message
    ('stopped by RuntimeError at step 40', 'stopped', 40, 'out of memory')
    """

    state: State
    step: int
    error: str
    message: str
    seconds: float

    def __new__(  # noqa: PYI034 - Self is not in Python 3.10
        cls,
        state: State,
        *,
        step: int = -1,
        error: str = "",
        message: str = "",
        seconds: float = 0.0,
    ) -> RunStatus:
        """`seconds` is the time since the last step of a stalled run."""
        status = super().__new__(cls, _in_words(state, step, error, seconds))
        status.state, status.step, status.seconds = state, step, seconds
        status.error, status.message = error, message
        return status

    @property
    def is_over(self) -> bool:
        """Whether the run has ended; it may still be resumed."""
        return self.state not in ("running", "stalled")

    @property
    def has_failed(self) -> bool:
        """Whether the run did not end normally."""
        return self.state in ("stopped", "interrupted", "killed")

    @property
    def full(self) -> str:
        """The text, with the message of the exception: "stopped by … at step 40: out of memory"."""
        return f"{self}: {self.message}" if self.message else str(self)


_WORST = ("stopped", "killed", "interrupted", "stalled", "running", "finished")


def status_of_ending(ending: Ending) -> RunStatus:
    """The status of a run whose ending is known."""
    return RunStatus(ending.state, step=ending.step, error=ending.error, message=ending.message)


def worst_status(statuses: Iterable[RunStatus]) -> RunStatus:
    """The status that needs attention most, of the ranks of one run."""
    return min(statuses, key=lambda status: _WORST.index(status.state))


def _in_words(state: State, step: int, error: str, seconds: float) -> str:
    at_step = f" at step {step}" if step >= 0 else ""
    if state == "stopped":
        return f"stopped by {error}{at_step}"
    if state == "interrupted":
        return f"interrupted{at_step}"
    return f"stalled for {_duration(seconds)}" if state == "stalled" else state


def _duration(seconds: float) -> str:
    """A duration in the largest unit with a value of at least 2: "40 s", "3 h"."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
