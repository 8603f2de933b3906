"""What is wrong with a training, found while it runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from torchglass.analyse.diagnosis.conclude import conclude
from torchglass.analyse.diagnosis.training_view import SeriesHistory, TrainingView
from torchglass.analyse.training_health import TrainingHealth
from torchglass.capture.watch.facts_recorder import FactsRecorder, LookSchedule
from torchglass.capture.watch.step_values import SeriesName, StepValues
from torchglass.records.findings import Finding, Findings
from torchglass.records.model import Model
from torchglass.records.run import RunStatus
from torchglass.records.series import Point


class TrainingProblems:
    """Looks for problems as a training goes on, and keeps the conclusion.

    Each recorded step is checked for what one step can show. All rules run on the whole training
    at the first steps, then less and less often, and at the end.
    """

    def __init__(self, facts: FactsRecorder, model: Callable[[], Model | None]) -> None:
        self.findings: tuple[Finding, ...] = ()
        """The problems that were found, causes first."""
        self._facts = facts
        self._model = model
        self._health = TrainingHealth()
        self._history = SeriesHistory()
        self._schedule = LookSchedule()
        self._at_steps: list[Finding] = []
        self._told_compiled = 0

    def look(
        self,
        step: int,
        values: StepValues,
        points: Mapping[SeriesName, Point],
        compiled: Collection[str],
    ) -> bool:
        """Check a step; whether the conclusion has changed. `compiled` are paths out of sight."""
        self._history.add(step, points.items())
        new = self._health.check(
            step, values.observations(), values.measured, is_still=bool(values.is_still)
        )
        new += [_compiled(path, step) for path in list(compiled)[self._told_compiled :]]
        self._told_compiled = len(compiled)
        self._at_steps += new
        is_recorded = any(not isinstance(point, float) for point in points.values())
        is_due = is_recorded and self._schedule.is_due()
        return self.conclude() if new or is_due else False

    def add(self, finding: Finding, step: int) -> None:
        """Take down the operation that a guard has found in a step."""
        remedy = finding.remedy or "Look at the operands of that operation: they explain it"
        self._at_steps.append(
            replace(finding, step=step, first_step=step, last_step=step, remedy=remedy)
        )

    def record(self) -> Findings:
        """What was found, as it is stored."""
        return Findings(findings=self.findings, at_steps=tuple(self._at_steps))

    def conclude(self, status: RunStatus | None = None) -> bool:
        """Run all rules on what is known now; whether the conclusion has changed."""
        view = TrainingView(
            self._history.tracks(),
            facts=self._facts.record(),
            model=self._model(),
            status=status,
            findings=self._at_steps,
        )
        before, self.findings = self.findings, conclude(view)
        return _summary(before) != _summary(self.findings)


def _summary(findings: Iterable[Finding]) -> list[tuple[str, ...]]:
    return [(one.kind, one.path, one.severity, one.message) for one in findings]


def _compiled(path: str, step: int) -> Finding:
    name = f"`{path}`" if path else "The model"
    return Finding(
        severity="info",
        kind="compiled",
        message=f"{name} runs compiled: its internals are not recorded",
        path=path,
        step=step,
    )


class FindingCallback:
    """Calls the user's function with each new problem.

    What it raises is kept until the training can be stopped safely, in one of its own calls.
    """

    def __init__(self, call: Callable[[Finding], object] | None) -> None:
        self._call = call
        self._told: set[tuple[str, str]] = set()
        self._pending: BaseException | None = None

    def tell(self, findings: Iterable[Finding]) -> None:
        """Call it with what is new and more than information."""
        if self._call is None:
            return
        new = [one for one in findings if (one.kind, one.path) not in self._told]
        for one in new:
            if one.severity != "info":
                self._told.add((one.kind, one.path))
                self._call_with(one)

    def raise_pending(self) -> None:
        """Raise what the function has raised."""
        error, self._pending = self._pending, None
        if error is not None:
            raise error

    def _call_with(self, finding: Finding) -> None:
        try:
            if self._call is not None:
                self._call(finding)
        except BaseException as error:  # noqa: BLE001 - it is raised where the training runs
            self._pending = error
