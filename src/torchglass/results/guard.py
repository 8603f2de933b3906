"""The results of `guard` and `replay`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torchglass.errors import TorchglassError, warn
from torchglass.records.findings import Finding, ReplayRecord
from torchglass.views.failure_text import finding_text, findings_text, replay_text

if TYPE_CHECKING:
    import torch

On = Literal["raise", "warn", "record"]


class NonFiniteError(TorchglassError, ArithmeticError):
    """An op produced NaN or Inf, and the guard was told to raise."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding_text(finding))
        self.finding = finding
        """Which op, where, and with which tensors."""


class Guard:
    """What a guard found; print it for the details."""

    def __init__(self, on: On) -> None:
        self._on = on
        self._findings: list[Finding] = []

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The problems, in the order in which they occurred; each line of code once."""
        return tuple(self._findings)

    @property
    def first(self) -> Finding | None:
        """The first NaN or Inf, where the problem began."""
        return next((found for found in self._findings if found.severity == "error"), None)

    @property
    def ok(self) -> bool:
        """Whether no NaN or Inf was found."""
        return self.first is None

    def check(self, tensor: torch.Tensor, name: str = "the loss") -> bool:
        """Check one more tensor, such as a loss computed from the model's outputs.

        Returns:
            Whether it is finite. If it is not, that is a finding, unless an op was already found.
        """
        from torchglass.capture.guard.guard import check

        return check(tensor, name, self.report, is_known=not self.ok)

    def report(self, finding: Finding) -> None:
        """Add a finding, and warn or raise as `on` says."""
        self._findings.append(finding)
        if self._on == "raise" and finding.severity == "error":
            raise NonFiniteError(finding)
        if self._on != "record":
            source = finding.source
            warn(finding_text(finding), at=(source.file, source.line) if source else None)

    def __str__(self) -> str:
        return findings_text(self._findings)

    def __repr__(self) -> str:
        return f"<Guard: {len(self._findings)} findings>"


class Replay:
    """The result of rerunning the op of a dump alone."""

    def __init__(self, record: ReplayRecord) -> None:
        self.record = record

    @property
    def reproduced(self) -> bool:
        """Whether it produced NaN or Inf again."""
        return self.record.reproduced

    @property
    def finding(self) -> Finding:
        """What the guard found."""
        return self.record.finding

    def __str__(self) -> str:
        return replay_text(self.record)

    __repr__ = __str__
