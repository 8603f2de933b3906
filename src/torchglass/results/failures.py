"""What explain, guard and replay return: why a forward failed, and where NaN or Inf began."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from torchglass.analyse.failure.failure import ExceptionContext, Failure
from torchglass.errors import TorchglassError, warn
from torchglass.records.findings import Finding, ReplayRecord
from torchglass.records.json_data import to_json_data
from torchglass.results.result import Result
from torchglass.results.trace import Trace
from torchglass.views.failure_text import (
    digest_text,
    failure_fragment,
    failure_note,
    failure_text,
    finding_text,
    findings_text,
    replay_text,
)

if TYPE_CHECKING:
    from os import PathLike

    import torch
    from torch import nn

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


class Replay(Result):
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

    def to_dict(self) -> dict[str, Any]:
        """The op, its inputs and its outputs as dicts, lists, strings and numbers."""
        plain: dict[str, Any] = to_json_data(self.record)
        return plain

    def __str__(self) -> str:
        return replay_text(self.record)

    __repr__ = __str__


class Explanation(Result):
    """What happened in one forward; print it to read what failed, where, and what would fit."""

    def __init__(
        self,
        trace: Trace,
        context: ExceptionContext | None = None,
        error: BaseException | None = None,
    ) -> None:
        self.trace = trace
        """The trace of all ops up to the one that failed."""
        self.error = error
        """The exception itself; None where the forward completed."""
        self.failure = Failure(trace.record, trace.model, context)
        """The facts behind the explanation."""

    @property
    def ok(self) -> bool:
        """Whether the forward completed."""
        return not self.trace.error

    @property
    def note(self) -> str:
        """The note that a trace adds to the exception; "" without one."""
        if self.ok:
            return ""
        return failure_note(self.trace.record, self.trace.model, self.failure.context)

    def to_dict(self) -> dict[str, Any]:
        """What failed, where, why, and what would fit, as dicts, lists and strings."""
        failure, rule = self.failure, None if self.ok else self.failure.verdict
        call, op = (None, None) if self.ok else (failure.call, failure.op)
        source = None if self.ok else failure.source
        return {
            "model": self.trace.model.name,
            "ok": self.ok,
            "error": self.trace.error,
            "path": None if call is None else call.path,
            "op": None if op is None else op.function,
            "source": None if source is None else to_json_data(source),
            "why": None if rule is None else rule.why,
            "fits": [] if rule is None else list(rule.fits),
            "inputs": []
            if self.ok
            else [
                {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype}
                for tensor in failure.tensors
            ],
            "text": str(self),
        }

    def draw(self, path: str | PathLike[str], **options: Any) -> bytes:
        """A picture of what ran, with a mark where it failed; the options are `Trace.draw`'s."""
        # A view often created the size that did not fit.
        return self.trace.draw(path, **{"hide_views": False, **options})

    def __str__(self) -> str:
        return digest_text(self.failure) if self.ok else failure_text(self.failure)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return failure_fragment(self.failure)


def explain(model: nn.Module, /, *args: Any, **kwargs: Any) -> Explanation:
    """Run one forward and explain what happened; an exception is caught and explained.

    The model's buffers and the random state are restored.
    """
    from torchglass.capture.model.structure import read_model
    from torchglass.capture.trace.failing_forward import attempt

    captured, output, error, context = attempt(model, args, kwargs)
    returned = {"output": output} if error is None else {}
    trace = Trace(lambda: captured, lambda: read_model(model), **returned)
    return Explanation(trace, context, error)
