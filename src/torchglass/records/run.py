"""One recorded session, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["running", "finished", "stopped", "interrupted", "killed", "stalled"]
"""What can be said of a run: its process goes on, ended by itself, was ended by an exception or by
Ctrl-C, is gone without a word, or is there and makes no more steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Who recorded what, where and when."""

    name: str
    created_ns: int
    """Since the epoch."""
    host: str = ""
    command: str = ""
    """The command line of the process that was recorded."""
    torchglass_version: str = ""
    torch_version: str = ""
    rank: int = 0
    world_size: int = 1
    group: str = ""
    """What all ranks of one training have in common and no other has; "" where that is unknown."""
    sample_n: int | None = 100
    """Of how many numbers of a tensor histograms were made; None where they are of all."""
    reject_outlier_proportion: float = 0.1
    """The share of a histogram's numbers, the most extreme ones, that views leave out at first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One process that wrote to a run: the one that began it, or one that resumed it."""

    number: int
    """From 1, in the order of time."""
    run: RunRecord
    first_step: int | None = None
    """Where it took up the run; None before its first step."""
    last_step: int | None = None
    abandoned_from: int | None = None
    """From which step on a later session has begun again, so that this is a branch that ends there;
    None where the later ones just went on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended, as its process told when it closed the run."""

    state: State = "finished"
    step: int = -1
    """Which step was going on."""
    error: str = ""
    """The class of the exception that stopped it: "RuntimeError"."""
    message: str = ""
    """The first line of its message."""


class RunStatus(str):
    """How a run is doing, as a text that also has its parts.

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
        """`seconds` is how long a run that stalled has made no step."""
        status = super().__new__(cls, _in_words(state, step, error, seconds))
        status.state, status.step, status.seconds = state, step, seconds
        status.error, status.message = error, message
        return status

    @property
    def is_over(self) -> bool:
        """Whether no more steps will come, unless the run is resumed."""
        return self.state not in ("running", "stalled")

    @property
    def has_failed(self) -> bool:
        """Whether the run did not come to its own end."""
        return self.state in ("stopped", "interrupted", "killed")

    @property
    def full(self) -> str:
        """The text, with the message of the exception: "stopped by … at step 40: out of memory"."""
        return f"{self}: {self.message}" if self.message else str(self)


_WORST = ("stopped", "killed", "interrupted", "stalled", "running", "finished")


def status_of_ending(ending: Ending) -> RunStatus:
    """The status of a run that told how it ended."""
    return RunStatus(ending.state, step=ending.step, error=ending.error, message=ending.message)


def worst_status(statuses: Iterable[RunStatus]) -> RunStatus:
    """Of the ranks of one run, the status that needs attention most."""
    return min(statuses, key=lambda status: _WORST.index(status.state))


def _in_words(state: State, step: int, error: str, seconds: float) -> str:
    at_step = f" at step {step}" if step >= 0 else ""
    if state == "stopped":
        return f"stopped by {error}{at_step}"
    if state == "interrupted":
        return f"interrupted{at_step}"
    return f"stalled for {_duration(seconds)}" if state == "stalled" else state


def _duration(seconds: float) -> str:
    """How long, in the largest unit of which there is more than one: "40 s", "3 h"."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
