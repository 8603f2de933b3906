"""Collects findings: each position once, allowed ones left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchglass.capture.guard.evidence import Held, Spot, held_by
from torchglass.capture.guard.op_dump import Dumper
from torchglass.capture.guard.tensor_health import Health
from torchglass.capture.torch_internals import current_backward, current_scale
from torchglass.capture.watch.optimizers import find_living
from torchglass.errors import Fence, TorchglassError
from torchglass.records.findings import Finding

Report = Callable[[Finding], None]
"""Is told of each finding, and may raise to stop the run."""
News = tuple[Health, Spot]
"""What is told once."""


class Desk:
    """What those who look forward and those who look back have in common."""

    def __init__(
        self,
        model: nn.Module,
        report: Report,
        *,
        allow: Iterable[str] = (),
        dumper: Dumper | None = None,
        repeat: bool = False,
    ) -> None:
        """`allow` names ops and modules that are never to blame.

        Each place is reported once, or with `repeat` whenever it is met.
        """
        self.model = model
        self._report = report
        self.dumper = dumper
        self._allow = frozenset(allow)
        self._repeat = repeat
        self.met = 0
        """How often something was found that is not finite, told before or not."""
        self._told: set[News] = set()
        self._latest: News | None = None
        self._raised: int | None = None
        self._fence = Fence("the guard could not check everything")
        self.has_waiting = False
        """Whether something was found in a forward that is told only if it reaches an output."""
        self.factors: list[torch.Tensor] = []
        """The single numbers that something was multiplied by since the last forward began."""
        self._scalers: list[Any] = []
        self._unchecked: Finding | None = None
        self._unchecked_task = -1

    @property
    def held(self) -> Held:
        """The names of the model's parameters and buffers."""
        return held_by(self.model)

    def report(self, finding: Finding) -> None:
        """Hand on a finding, which may raise."""
        try:
            self._report(finding)
        except TorchglassError as error:
            # Not the error itself, which holds the frames of the user that it came through.
            self._raised = id(error)
            raise

    def report_gradient(self, finding: Finding) -> None:
        """Hand on a finding of a backward, unless a `GradScaler` is there to check gradients.

        Scaled gradients overflow by design: the scaler then skips the step of the optimizer. Where
        an optimizer steps all the same, `gradients_used` reports what was kept back here.
        """
        if not self.scalers():
            self.report(finding)
            return
        self.take_back()
        task = current_backward()
        if finding.severity == "error" and task != self._unchecked_task:
            self._unchecked, self._unchecked_task = finding, task

    @property
    def has_unchecked(self) -> bool:
        """Whether gradients overflowed that a scaler has yet to check."""
        return self._unchecked is not None

    def gradients_used(self, *, are_finite: bool) -> None:
        """An optimizer is about to step with these gradients, so no scaler has held it back."""
        finding, self._unchecked = self._unchecked, None
        if finding is not None and not are_finite:
            self.report(finding)
        elif finding is not None:
            discard(finding)

    def scalers(self) -> list[Any]:
        """The gradient scalers of this process that have scaled the loss, as one of its factors."""
        if not self.factors:
            return []
        found = [scaler for scaler in self._scalers if self._has_scaled(scaler)]
        if not found:
            self._scalers = find_living(lambda _: False).scalers
            found = [scaler for scaler in self._scalers if self._has_scaled(scaler)]
        return found

    def _has_scaled(self, scaler: Any) -> bool:
        scale = current_scale(scaler)
        # Several losses are multiplied by copies of the scale.
        return scale is not None and any(
            factor is scale or float(factor) == float(scale) for factor in self.factors
        )

    def take_back(self) -> News | None:
        """What was news just now is not told yet, and may never be; None if it is told again."""
        if self._latest is not None:
            self._told.discard(self._latest)
        return self._latest

    def tell(self, news: News | None) -> None:
        """What was taken back is told after all."""
        if news is not None:
            self._told.add(news)

    def is_news(self, health: Health, spot: Spot) -> bool:
        """Whether something is to be reported, which from then on it has been."""
        if spot.op in self._allow or (spot.path and spot.path in self._allow):
            return False
        self.met += health is not Health.NEAR
        key = health, spot._replace(call=0)
        is_new = key not in self._told
        self._told.add(key)
        self._latest = key if is_new else None
        return is_new or (self._repeat and health is not Health.NEAR)

    def miss(self, problem: Exception) -> None:
        """Go on without what could not be looked at: no error of ours stops the user's run.

        What a report has raised is raised again.
        """
        if id(problem) == self._raised and isinstance(problem, TorchglassError):
            raise problem
        self._fence.caught(problem)


def discard(finding: Finding) -> None:
    """Delete what was written of a finding that is not told."""
    if "dump" in finding.facts:
        Path(finding.facts["dump"]).unlink(missing_ok=True)
