"""Work that takes a while, done beside the screen, with how far it is and a way to stop it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torchglass.errors import TorchglassError
from torchglass.records.attributes import Progress

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a job."""

    result: Any = None
    problem: str = ""
    """What was raised."""


class Job:
    """One thing that is worked on in a thread. Whoever started it may stop it at any time."""

    def __init__(self, says: str, work: Callable[[Progress], T], then: Callable[[T], None]) -> None:
        self.says = says
        """What is being done, in a few words."""
        self.share = 0.0
        self.stopped = False
        self._work = work
        self._then = then

    def run(self) -> Outcome:
        """Do it, in a thread."""
        try:
            return Outcome(self._work(self._progress))
        except TorchglassError as error:
            return Outcome(problem=str(error))
        except Exception as error:  # noqa: BLE001 - what is looked at is foreign code, one panel of many
            return Outcome(problem=f"{type(error).__name__}: {error}")

    def finish(self, outcome: Outcome) -> None:
        """Hand the result to whoever asked for it."""
        self._then(outcome.result)

    def _progress(self, share: float) -> bool:
        self.share = share
        return not self.stopped
