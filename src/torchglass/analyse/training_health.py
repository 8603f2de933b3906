"""What goes wrong in a training, told by the numbers that are recorded of it.

    judge = Judge()
    for step, seen in steps:
        new = judge.look(step, seen)

A number that is not finite is told at once; what may pass is told when it was there three times in
a row. Each problem of a place is told once.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from torchglass.records.finding import Finding, Severity
from torchglass.records.model import join_path
from torchglass.records.tensors import Stats
from torchglass.records.trace import Phase

IN_A_ROW = 3
MOST = 100
"""So many problems are told of a training; what follows from them would only hide them."""

_DEAD_ZEROS = 0.99
_FEWEST_NUMBERS = 32
"""Below so many numbers, that nearly all are zero may well be chance."""
_VANISHING_SHARE = 1e-6
"""A gradient is lost when it is so much smaller than the usual one of the model."""
_EXPLODING_GROWTH = 100.0
"""A gradient explodes when it is so many times as large as it used to be."""
_REMEMBERED = 16
_FEWEST_REMEMBERED = 4


class Observation(NamedTuple):
    """The numbers of one series at one step."""

    path: str
    name: str
    stats: Stats
    zeros: float | None = None
    """The share of zeros among them."""


def matters(name: str, stats: Stats, zeros: float | None) -> bool:
    """Whether a series can tell anything: few of the thousands of a large model do."""
    if stats.nan or stats.inf or (zeros is not None and zeros >= _DEAD_ZEROS):
        return True
    return name.endswith(".grad") and _is_gradient_of_parameter(name)


class _Problem(NamedTuple):
    severity: Severity
    kind: str
    message: str
    seen: Observation
    facts: dict[str, float | str]


class Judge:
    """Looks at one step after another, and tells each problem once."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str, str]] = set()
        self._in_a_row: Counter[tuple[str, str, str]] = Counter()
        self._sizes: dict[tuple[str, str], deque[float]] = {}

    def look(self, step: int, seen: Iterable[Observation]) -> list[Finding]:
        """The problems that are new at a step."""
        if len(self._told) >= MOST:
            return []
        everything = list(seen)
        gradients = [one for one in everything if _is_gradient_of_parameter(one.name)]
        at_once = [*_not_finite(everything)]
        patient = [*_dead(everything), *_vanishing(gradients), *self._exploding(gradients)]
        now = {_key(problem) for problem in patient}
        self._in_a_row = Counter({key: self._in_a_row[key] + 1 for key in now})
        lasting = [one for one in patient if self._in_a_row[_key(one)] >= IN_A_ROW]
        return [_finding(step, one) for one in (*at_once, *lasting) if self._is_news(one)]

    def _is_news(self, problem: _Problem) -> bool:
        key = _key(problem)
        if key in self._told or len(self._told) >= MOST:
            return False
        self._told.add(key)
        return True

    def _exploding(self, gradients: Sequence[Observation]) -> Iterator[_Problem]:
        for one in gradients:
            size = _size(one.stats)
            before = self._sizes.setdefault((one.path, one.name), deque(maxlen=_REMEMBERED))
            usual = math.nan
            # The median is asked for only where it can matter.
            if len(before) >= _FEWEST_REMEMBERED and size > _EXPLODING_GROWTH * min(before):
                usual = statistics.median(before)
            if 0 < usual * _EXPLODING_GROWTH < size:
                label = join_path(one.path, one.name)
                message = f"{label} is {size / usual:.0f} times as large as it was: it explodes"
                facts: dict[str, float | str] = {"size": size, "usual": usual}
                yield _Problem("warning", "exploding gradient", message, one, facts)
            elif math.isfinite(size):
                before.append(size)


def _not_finite(seen: Iterable[Observation]) -> Iterator[_Problem]:
    """Series with NaN or Inf, in the order in which they were measured."""
    for one in seen:
        count = one.stats.nan + one.stats.inf
        if count:
            kind = "nan" if one.stats.nan else "inf"
            word = "NaN" if one.stats.nan else "Inf"
            share = f"{count:,} of {one.stats.count:,} numbers"
            message = f"{join_path(one.path, one.name)} has {word}: {share}"
            yield _Problem("error", kind, message, one, {"share": count / one.stats.count})


def _dead(seen: Iterable[Observation]) -> Iterator[_Problem]:
    """Outputs that are zero all over."""
    for one in seen:
        if one.zeros is None or one.zeros < _DEAD_ZEROS or not _is_output(one):
            continue
        if one.stats.count >= _FEWEST_NUMBERS:
            message = (
                f"{join_path(one.path, one.name)} is {one.zeros:.0%} zeros: its units are dead"
            )
            yield _Problem("warning", "dead units", message, one, {"zeros": one.zeros})


def _vanishing(gradients: Sequence[Observation]) -> Iterator[_Problem]:
    """Gradients of parameters that are next to nothing beside those of the others."""
    sizes = [_size(one.stats) for one in gradients]
    usual = statistics.median(sizes) if sizes else 0.0
    largest = max(sizes, default=0.0)
    # Where most are lost, the usual one tells nothing: those at the end of the model do.
    beside = usual if usual > largest * _VANISHING_SHARE else largest
    for one, size in zip(gradients, sizes, strict=True):
        if size < beside * _VANISHING_SHARE and one.stats.count > one.stats.nan + one.stats.inf:
            label = join_path(one.path, one.name)
            message = f"{label} is {size:.1e} where others are {beside:.1e}: it vanishes"
            facts: dict[str, float | str] = {"size": size, "others": beside}
            yield _Problem("warning", "vanishing gradient", message, one, facts)


def _finding(step: int, problem: _Problem) -> Finding:
    seen = problem.seen
    phase: Phase = "backward" if ".grad" in seen.name else "forward"
    return Finding(
        severity=problem.severity,
        kind=problem.kind,
        message=problem.message,
        path=seen.path,
        phase=phase,
        facts={"series": join_path(seen.path, seen.name), **problem.facts},
        step=step,
    )


def _key(problem: _Problem) -> tuple[str, str, str]:
    return problem.kind, problem.seen.path, problem.seen.name


def _is_output(one: Observation) -> bool:
    """Whether it is what a module put out, at whichever call and in whichever mode."""
    last = one.name.rpartition(":")[2]
    return last == "output" or (last.startswith("output.") and ".grad" not in last)


@lru_cache(maxsize=1 << 12)
def _is_gradient_of_parameter(name: str) -> bool:
    last = name.rpartition(":")[2]
    is_flow = last.startswith(("input", "output"))
    return last.endswith(".grad") and not is_flow


def _size(stats: Stats) -> float:
    """The root of the mean square; NaN counts as nothing here, it is told elsewhere."""
    size = math.hypot(stats.mean, stats.std)
    return size if math.isfinite(size) else 0.0
