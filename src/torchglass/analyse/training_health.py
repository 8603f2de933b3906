"""Finds problems in a training from the statistics of each step.

    health = TrainingHealth()
    for step, seen in steps:
        findings = health.check(step, seen)

The rules are in `training_rules`; this module decides when a problem is reported. NaN and Inf are
reported at once. A problem that may pass is reported once three consecutive measurements of its
series show it. Steps that did not measure the series do not count. Each problem is reported once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torchglass.analyse.training_rules import (
    RULES,
    FindingKey,
    Observation,
    Problem,
    SeriesKey,
    StepTensors,
    StepView,
    TrainingHistory,
)
from torchglass.records.findings import Finding
from torchglass.records.model import join_path
from torchglass.records.trace import Phase

MOST_FINDINGS = 100
"""Further problems follow from earlier ones and would only hide them."""
_CLOSE_CHECKS, _MANY_CHECKS = 32, 256
"""From these steps on, problems that may pass are checked every 4th, then every 16th step."""


def _check_every(checks: int) -> int:
    return 1 if checks <= _CLOSE_CHECKS else 4 if checks <= _MANY_CHECKS else 16


@dataclass
class _OpenProblem:
    """A problem that may pass, since its first step."""

    series: SeriesKey
    since: int
    step: int
    times: int = 1


class TrainingHealth:
    """Checks one step after another, and reports each problem once."""

    def __init__(self) -> None:
        self._history = TrainingHistory()
        self._reported: set[FindingKey] = set()
        self._open: dict[FindingKey, _OpenProblem] = {}
        self._checks = 0

    def check(
        self,
        step: int,
        seen: Iterable[Observation],
        measured: Callable[[], StepTensors] | None = None,
        *,
        is_still: bool = False,
    ) -> list[Finding]:
        """The problems that are new at a step.

        Args:
            step: The step.
            seen: What was measured. Series that are neither in `rows_with_problems` nor
                `is_always_checked` may be left out, and all of them if no value is NaN or Inf and
                the step is not `is_close`.
            measured: Returns everything that was measured; called only if a rule needs it.
            is_still: Whether the step moved no weight, as with a learning rate of 0. Such a step
                repeats the previous one, so it does not count for problems that may pass.
        """
        if len(self._reported) >= MOST_FINDINGS:
            return []
        view = StepView(step, seen, measured)
        new = [
            _finding(step, problem)
            for rule in RULES
            if rule.reports_at_once
            for problem in rule.check(view, self._history)
            if self._is_new(problem)
        ]
        is_close = self.is_close(is_still=is_still)
        self._checks += not is_still
        if not is_close:
            return new
        passing = [
            problem
            for rule in RULES
            if not rule.reports_at_once
            for problem in rule.check(view, self._history)
        ]
        self._close_all_but(passing, view)
        for problem in passing:
            known = self._open_problem(step, problem)
            if known.times >= problem.patience and self._is_new(problem):
                new.append(_finding(step, problem, since=known.since))
        return new

    def is_close(self, *, is_still: bool = False) -> bool:
        """Whether the next step is checked for problems that may pass.

        Later in a training each step is, only if there is such a problem.
        """
        checks = self._checks + 1
        is_waiting = any(key not in self._reported for key in self._open)
        return not is_still and (is_waiting or checks % _check_every(checks) == 0)

    def _close_all_but(self, found: Iterable[Problem], view: StepView) -> None:
        """Forget the problems that are over, of series that were measured at this step."""
        if not self._open:
            return
        now = {problem.key for problem in found}
        for key, known in list(self._open.items()):
            if key not in now and known.series in view.tensors:
                del self._open[key]

    def _open_problem(self, step: int, problem: Problem) -> _OpenProblem:
        known = self._open.setdefault(problem.key, _OpenProblem(problem.seen.key, step, step))
        if known.step != step:
            known.step, known.times = step, known.times + 1
        return known

    def _is_new(self, problem: Problem) -> bool:
        if problem.key in self._reported or len(self._reported) >= MOST_FINDINGS:
            return False
        self._reported.add(problem.key)
        return True


def _finding(step: int, problem: Problem, since: int | None = None) -> Finding:
    seen = problem.seen
    phase: Phase = "backward" if ".grad" in seen.name else "forward"
    suffix = f" since step {since}" if since is not None and problem.kind == "dead-units" else ""
    start = {} if since is None else {"since": since}
    has_shown = since if since is not None else step
    return Finding(
        severity=problem.severity,
        kind=problem.kind,
        message=f"{problem.message}{suffix}",
        path=seen.path,
        phase=phase,
        facts={"series": join_path(seen.path, seen.name), **start, **problem.facts},
        step=step,
        series=join_path(seen.path, seen.name),
        first_step=has_shown,
        last_step=step,
    )
