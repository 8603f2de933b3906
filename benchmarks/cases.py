"""Ways to measure contenders: in turns, each by itself, or each time anew."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.fresh import FreshError, fresh
from benchmarks.models import Scale
from benchmarks.rows import Case, Effort, Reading

Measure = Callable[..., Any]
"""A function of ours that a fresh interpreter calls, and that gives the numbers of its rounds."""

_MOST_STARTS = 7
"""A round that begins with importing torch takes seconds, so there are not many of them."""


def together(
    names: Iterable[str], unit: str, function: Measure, **arguments: Any
) -> dict[str, Reading]:
    """What one interpreter finds for several contenders that take turns in it."""
    try:
        found = fresh(function, **arguments)
    except FreshError as problem:
        return {name: Reading(unit=unit, why_not=f"failed: {problem}") for name in names}
    return {
        name: Reading(unit=unit, samples=tuple(found[name])) if name in found else _absent(unit)
        for name in names
    }


def beside_baseline(
    baseline: str, others: Iterable[str], function: Measure, **arguments: Any
) -> dict[str, Reading]:
    """The milliseconds of one contender, and how many times that others take in turns with it."""
    found = together((baseline, *others), "×", function, **arguments)
    return {**found, baseline: dataclasses.replace(found[baseline], unit="ms")}


def alone(contender: str, unit: str, function: Measure, **arguments: Any) -> Reading:
    """What an interpreter finds for the one contender that it is told."""
    if not installed([contender]):
        return _absent(unit)
    try:
        samples = fresh(function, contender=contender, **arguments)
    except FreshError as problem:
        return Reading(unit=unit, why_not=f"failed: {problem}")
    return Reading(unit=unit, samples=tuple(samples))


def each_alone(
    name: str,
    unit: str,
    function: Measure,
    scale: Scale,
    contenders: Iterable[str],
    goal: float | None = None,
) -> Case:
    """A row for which every contender has an interpreter to itself."""

    def measure(effort: Effort) -> dict[str, Reading]:
        spec = scale.at(effort)
        return {
            contender: alone(contender, unit, function, spec=spec, rounds=effort.rounds)
            for contender in contenders
        }

    return Case(name, measure, goal)


def at_start(
    name: str, unit: str, function: Measure, contenders: Iterable[str], goal: float | None = None
) -> Case:
    """A row for which every round is an interpreter just started."""

    def measure(effort: Effort) -> dict[str, Reading]:
        found: dict[str, list[Reading]] = {contender: [] for contender in contenders}
        for _ in range(min(effort.rounds, _MOST_STARTS)):
            for contender, of_one in found.items():
                of_one.append(alone(contender, unit, function))
        return {contender: _joined(unit, of_one) for contender, of_one in found.items()}

    return Case(name, measure, goal)


def installed(contenders: Iterable[str]) -> list[str]:
    """Those of the contenders that can be imported here."""
    return [name for name in contenders if importlib.util.find_spec(name.lower()) is not None]


def _absent(unit: str) -> Reading:
    return Reading(unit=unit, why_not="not installed")


def _joined(unit: str, rounds: Iterable[Reading]) -> Reading:
    samples = [sample for one in rounds for sample in one.samples]
    reasons = [one.why_not for one in rounds if one.why_not]
    return Reading(unit=unit, samples=tuple(samples), why_not="".join(reasons[:1]))
