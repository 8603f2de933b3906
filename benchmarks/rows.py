"""What a benchmark says: rows of readings, each beside its goal."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

OURS = "Torchglass"
TORCHINFO = "torchinfo"
TORCHLENS = "TorchLens"
PEERS = (TORCHINFO, TORCHLENS)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one contender was measured to need: a number a round, or why there is none."""

    unit: str
    samples: tuple[float, ...] = ()
    why_not: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """Between which values the middle half of the rounds lies."""
        if len(self.samples) == 1:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, high


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that was measured, by contender."""

    name: str
    readings: Mapping[str, Reading]
    goal: float | None = None
    """The most that we may need, in the unit of our own reading."""

    @property
    def is_met(self) -> bool | None:
        """Whether our median keeps the goal; None where there is no goal or no reading."""
        ours = self.readings.get(OURS)
        if self.goal is None or ours is None or not ours.samples:
            return None
        return ours.median <= self.goal

    def times_ours(self, contender: str) -> float | None:
        """How many times as much as we a peer needs; None where the two are not to be compared."""
        ours, theirs = self.readings.get(OURS), self.readings[contender]
        if contender not in PEERS or ours is None or ours.unit != theirs.unit:
            return None
        if not ours.samples or not theirs.samples or ours.median <= 0:
            return None
        return theirs.median / ours.median


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is done to find out."""

    rounds: int = 25
    quick: bool = False
    """Whether small sizes will do: the numbers then only show that everything runs."""


class Case(NamedTuple):
    """A row that has yet to be measured."""

    name: str
    measure: Callable[[Effort], Mapping[str, Reading]]
    goal: float | None = None

    def row(self, effort: Effort) -> Row:
        """Measure it. Small sizes keep any goal, so with them there is none."""
        goal = None if effort.quick else self.goal
        return Row(name=self.name, readings=self.measure(effort), goal=goal)


@dataclass(frozen=True, kw_only=True)
class Topic:
    """Rows that belong together and become one table."""

    name: str
    title: str
    about: str
    """What was done, what stands in the columns, and what was left out."""
    cases: Sequence[Case]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A topic that was measured."""

    topic: Topic
    rows: Sequence[Row]

    @property
    def contenders(self) -> list[str]:
        """All that have a reading in it, in the order in which they first come."""
        return list(dict.fromkeys(name for row in self.rows for name in row.readings))
