"""Compares the ranks of a distributed training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torchglass.records.findings import Finding

SLOW = 1.3
"""A rank is slow if it takes this many times the median of the others."""

BEHIND = 10
"""A rank has stopped if it is this many steps behind the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """The values of one rank that can be compared with the others."""

    rank: int
    host: str = ""
    last_step: int = -1
    finished: bool = False
    dropped: int = 0
    step_seconds: float = math.nan
    """The median time per step; NaN before the second step."""
    own_seconds: Mapping[str, float] = field(default_factory=dict)
    """Logged times by name, which do not include waiting for other ranks."""
    first_not_finite: tuple[int, str] | None = None
    """The step and series of the first NaN or Inf."""


def compare(ranks: Sequence[RankFacts]) -> tuple[Finding, ...]:
    """Problems of some ranks, but not of all."""
    return (*_not_finite(ranks), *_stopped(ranks), *_slow(ranks), *_dropped(ranks))


def _not_finite(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    hit = {each.rank: each.first_not_finite for each in ranks if each.first_not_finite}
    for rank, (step, label) in sorted(hit.items(), key=lambda item: item[1]):
        others = len(hit) - 1
        elsewhere = f"so have {others} others" if others else "no other rank has"
        yield Finding(
            severity="error",
            kind="not finite",
            message=f"rank {rank} has NaN or Inf since step {step}, first in {label}; {elsewhere}",
            step=step,
            facts={"rank": rank, "series": label},
        )


def _stopped(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    furthest = max((each.last_step for each in ranks), default=-1)
    for each in ranks:
        if furthest - each.last_step >= BEHIND:
            how = "ended" if each.finished else "stopped"
            where = f"at step {each.last_step}" if each.last_step >= 0 else "before its first step"
            yield Finding(
                severity="error",
                kind="behind",
                message=f"rank {each.rank} {how} {where}, while others went on to {furthest}",
                step=each.last_step,
                facts={"rank": each.rank},
            )


def _slow(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    names = {name for each in ranks for name in each.own_seconds}
    for name in sorted(names):
        times = {each.rank: each.own_seconds.get(name, math.nan) for each in ranks}
        yield from _stragglers(times, f"in {name}")
    yield from _stragglers({each.rank: each.step_seconds for each in ranks}, "from step to step")


def _stragglers(seconds: Mapping[int, float], what: str) -> Iterator[Finding]:
    for rank, own in seconds.items():
        others = [each for other, each in seconds.items() if other != rank and not math.isnan(each)]
        if others and own > SLOW * statistics.median(others):
            ratio = own / statistics.median(others)
            yield Finding(
                severity="warning",
                kind="straggler",
                message=f"rank {rank} takes {ratio:.1f} times as long as the others {what}",
                facts={"rank": rank, "ratio": ratio},
            )


def _dropped(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    for each in ranks:
        if each.dropped:
            yield Finding(
                severity="note",
                kind="dropped",
                message=f"rank {each.rank} left out {each.dropped} steps: its disk was too slow",
                facts={"rank": each.rank, "steps": each.dropped},
            )
