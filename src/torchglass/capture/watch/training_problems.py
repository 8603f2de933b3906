"""What is wrong with a training, found while it runs.

`TrainingProblems` runs the rules. `NonFiniteOrigin` finds the operation behind the first NaN or
Inf: the inputs, the buffers and the random state of each forward are kept until the next one.
Before each update two small gradients are checked, one of the first and one of the last modules.
If one is not finite, the weights are still as they were: the forward and its backward run again
under a guard, which names the operation. That happens once, at any `log_freq`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchglass.analyse.diagnosis.conclude import conclude
from torchglass.analyse.diagnosis.training_view import SeriesHistory, TrainingView
from torchglass.analyse.nonfinite_cause import cause, cause_remedy
from torchglass.analyse.training_health import TrainingHealth
from torchglass.capture.guard.device_check import HealthReads
from torchglass.capture.guard.finding_report import FindingReport
from torchglass.capture.guard.guard import (
    ForwardBatch,
    OutputCheck,
    ask_for_gradients,
    keep_batch,
)
from torchglass.capture.tensor.description import Args, Kwargs, named_tensors
from torchglass.capture.tensor.device_reads import is_remote
from torchglass.capture.torch_modes import quietly
from torchglass.capture.watch.facts_recorder import FactsRecorder
from torchglass.capture.watch.parameter_facts import LookSchedule
from torchglass.capture.watch.step_values import SeriesName, StepValues
from torchglass.records.findings import Finding, Findings
from torchglass.records.model import Model
from torchglass.records.run import RunStatus
from torchglass.records.step_points import FIELDS, PointTable
from torchglass.records.training import TrainingFacts

_CHECK_OPERANDS = "Check the ranges of its operands, which `torchglass explore` lists"
_FIRST_LOOKS, _GROWTH = 2, 1.7
"""All rules run at the first recorded steps, this many, then after 1.7 times as many, and so on."""


class TrainingProblems:
    """Looks for problems during a training, and keeps the conclusion.

    Each recorded step is checked for what one step can show. All rules run on the whole training
    at the first steps, then less and less often, and at the end.
    """

    def __init__(self, facts: FactsRecorder, model: Callable[[], Model | None]) -> None:
        self.findings: tuple[Finding, ...] = ()
        """The problems that were found, causes first."""
        self.facts: TrainingFacts | None = None
        """The facts behind them; None once they were taken."""
        self._facts = facts
        self._model = model
        self._health = TrainingHealth()
        self._history = SeriesHistory()
        record = model()
        modules = len(record.modules) if record is not None else 0
        self._schedule = LookSchedule(modules, _FIRST_LOOKS, _GROWTH)
        self._at_steps: list[Finding] = []
        self._told_compiled = 0
        self._status: RunStatus | None = None

    def look(
        self,
        step: int,
        values: StepValues,
        points: PointTable[SeriesName],
        compiled: Collection[str],
    ) -> bool:
        """Check a step; returns whether the conclusion changed.

        `compiled` are paths that are not visible.
        """
        self._history.add(step, points)
        is_still = bool(values.is_still)
        is_needed = self._health.is_close(is_still=is_still) or has_bad_values(points)
        seen = values.observations() if is_needed else ()
        new = self._health.check(step, seen, values.measured, is_still=is_still)
        new += [_compiled(path, step) for path in list(compiled)[self._told_compiled :]]
        self._told_compiled = len(compiled)
        self._at_steps += new
        is_due = bool(points.histogram_keys) and self._schedule.is_due()
        return self.conclude() if new or is_due else False

    def add(self, finding: Finding, step: int) -> None:
        """Record the operation that a guard found in a step, with its line, cause and remedy."""
        message, source, why = finding.message, finding.source, cause(finding)
        if source is not None and (place := f"{PurePath(source.file).name}:{source.line}"):
            message = message if place in message else f"{message}, {place}"
        self._at_steps.append(
            replace(
                finding,
                message=f"{message}: {why}" if why else message,
                step=step,
                first_step=step,
                last_step=step,
                remedy=finding.remedy or cause_remedy(finding) or _CHECK_OPERANDS,
            )
        )

    def take_facts(self) -> TrainingFacts | None:
        """The facts of a new conclusion, once."""
        facts, self.facts = self.facts, None
        return facts

    def record(self) -> Findings:
        """What was found, as it is stored."""
        return Findings(findings=self.findings, at_steps=tuple(self._at_steps))

    def conclude(self, status: RunStatus | None = None) -> bool:
        """Run all rules on what is known now; returns whether the conclusion changed.

        How the training ended is kept for later conclusions.
        """
        self._status = status or self._status
        self.facts = self._facts.record()
        view = TrainingView(
            self._history.tracks(),
            facts=self.facts,
            model=self._model(),
            status=self._status,
            findings=self._at_steps,
        )
        before, self.findings = self.findings, conclude(view)
        return _summary(before) != _summary(self.findings)


def has_bad_values(points: PointTable[SeriesName]) -> bool:
    """Whether any value may be NaN or Inf."""
    if not all(map(math.isfinite, points.numbers.values())):
        return True
    bad = [FIELDS["histogram"].index(field) for field in ("nan", "inf")]
    return bool(points.histograms.stats[:, bad].any())


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

    An exception it raises is kept until the training can be stopped safely, in one of its own calls
    to us.
    """

    def __init__(self, call: Callable[[Finding], object] | None) -> None:
        self._call = call
        self._told: set[tuple[str, str]] = set()
        self.pending: BaseException | None = None
        """The exception that the function raised."""

    def tell(self, findings: Iterable[Finding]) -> None:
        """Call the function with new findings above "info"."""
        if self._call is None:
            return
        new = [one for one in findings if (one.kind, one.path) not in self._told]
        for one in new:
            if one.severity != "info":
                self._told.add((one.kind, one.path))
                self._call_with(one)

    def _call_with(self, finding: Finding) -> None:
        try:
            if self._call is not None:
                self._call(finding)
        except BaseException as error:  # noqa: BLE001 - it is raised where the training runs
            self.pending = error


_MOST_BUFFER_BYTES = 64 << 20
"""Models with larger buffers are skipped: copying them would take time at each step."""


class NonFiniteOrigin:
    """Keeps what is needed to run the latest forward again; it keeps no model alive."""

    def __init__(self, model: nn.Module, found: Callable[[Finding], None]) -> None:
        self.is_rerunning = False
        """Whether a forward is being rerun, which is not a pass of the training."""
        self._model = weakref.ref(model)
        self._found = found
        buffers = list(model.buffers())
        size = sum(buffer.nbytes for buffer in buffers if not buffer.is_meta)
        self._is_on = size <= _MOST_BUFFER_BYTES
        # On a device an answer is waited for, and only recorded steps may wait.
        self._is_remote = any(is_remote(parameter) for parameter in model.parameters())
        # Listed once: finding them takes time at each step.
        self._buffers = [weakref.ref(buffer) for buffer in buffers]
        self._batch: ForwardBatch | None = None
        self._sentinels: list[weakref.ref[torch.Tensor]] = []

    def begin_pass(self, args: Args, kwargs: Kwargs, *, is_recorded: bool) -> None:
        """A forward of the training begins."""
        self._batch = None
        is_looked_at = is_recorded or not self._is_remote
        if self._is_on and is_looked_at and torch.is_grad_enabled():
            with quietly():
                buffers = [buffer for one in self._buffers if (buffer := one()) is not None]
                self._batch = keep_batch(args, kwargs, buffers)

    def end_pass(self, output: Any) -> None:
        """The forward has returned: keep what its backward needs to run again."""
        if self._batch is not None:
            with quietly():
                outputs = [tensor for _, tensor in named_tensors(output)]
                ask_for_gradients(outputs, self._batch.gradients)

    def before_update(self, optimizer: Optimizer, *, is_recorded: bool) -> None:
        """An optimizer is about to step: run its forward again if a gradient is not finite."""
        batch, model = self._batch, self._model()
        if batch is None or model is None or self.is_rerunning:
            return
        with quietly():
            is_bad = self._is_bad(optimizer, is_recorded)
        if is_bad:
            self.close()
            self.is_rerunning = True
            try:
                check = OutputCheck(FindingReport(model, self._take), backward=True)
                check.look_at_gradients(optimizer, batch)
            finally:
                self.is_rerunning = False

    def close(self) -> None:
        """Release everything of the training."""
        self._is_on = False
        self._batch = None

    def _is_bad(self, optimizer: Optimizer, is_recorded: bool) -> bool:
        gradients = self._gradients()
        if not gradients:
            self._sentinels = [weakref.ref(one) for one in _sentinels(optimizer)]
            gradients = self._gradients()
        remote = [gradient for gradient in gradients if is_remote(gradient)]
        if is_recorded and remote:
            # The one wait of a step: after the update it would be too late to run it again.
            reads = HealthReads()
            reads.add_all(remote, None)
            if reads.read():
                return True
        near = [gradient for gradient in gradients if not is_remote(gradient)]
        return any(not torch.isfinite(gradient).all() for gradient in near)

    def _gradients(self) -> list[torch.Tensor]:
        parameters = (one() for one in self._sentinels)
        gradients = (one.grad for one in parameters if one is not None)
        return [gradient for gradient in gradients if gradient is not None]

    def _take(self, finding: Finding) -> None:
        if finding.severity == "error":
            self._found(replace(finding, series=finding.series or finding.path))


def _sentinels(optimizer: Optimizer) -> list[torch.Tensor]:
    """A small parameter of the first and of the last modules with a gradient."""
    trained = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None and not parameter.grad.is_sparse
    ]
    return [min(end, key=torch.Tensor.numel) for end in (trained[:2], trained[-2:]) if end]
