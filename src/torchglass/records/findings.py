"""Problems found in a model or a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torchglass.records.model import Stats, TensorSpec
from torchglass.records.trace import Phase, SourceLine

if TYPE_CHECKING:
    from torchglass.records.run import RunStatus, State

Severity = Literal["error", "warning", "info"]
Verdict = Literal["healthy", "warning", "broken"]
EvidenceRole = Literal["argument", "parameter", "buffer", "result", "gradient", "saved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A tensor that is evidence for a finding."""

    name: str
    """What it is to the op: "input", "weight", "result"."""
    role: EvidenceRole
    spec: TensorSpec
    stats: Stats | None = None
    """Its statistics; None if its values were no longer available, for example overwritten."""
    holder: str = ""
    """Dotted name of the parameter or buffer, also of one whose gradient this is."""
    maker: str = ""
    """The op that produced its NaN or Inf, if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem: what it is, where, since when, and what to do.

    Args:
        severity: "error", "warning", or "info" for what may be meant.
        kind: A stable name of the problem: "vanishing-gradient".
        message: The problem in one sentence.
        path: Dotted path of the module; "" is the model.
        call: The call of the module, from 1.
        op: The operation that caused it.
        phase: "forward", "backward" or "optimizer".
        source: The line of the user's code.
        facts: The values behind it, also as `evidence`.
        tensors: Tensors that are evidence.
        step: The step in which it was found.
        series: The series that shows it.
        first_step: The step at which it began.
        last_step: The last recorded step that shows it.
        confidence: How sure it is, up to 1 for a proof.
        consequences: What followed from it, one sentence each.
        remedy: What to change.
        see: The command that shows more.
    """

    severity: Severity
    kind: str
    """A word that names the problem: "nan", "inf", "near overflow"."""
    message: str
    """The problem in one sentence."""
    path: str = ""
    """Dotted path of the module; "" is the model itself, or the code around it."""
    call: int = 0
    """The call number of the module, from 1; 0 if it happened outside of a call."""
    op: str = ""
    """torch's name of the op that caused it: "sqrt"; "" if none did."""
    phase: Phase = "forward"
    source: SourceLine | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further values and names, ready for JSON."""
    tensors: tuple[Evidence, ...] = ()
    step: int | None = None
    """The step of the training in which it was found."""
    series: str = ""
    """The series that shows it: "encoder.0.weight.grad"."""
    first_step: int | None = None
    """The step at which it began, as far as it was recorded."""
    last_step: int | None = None
    """The last recorded step that shows it."""
    confidence: float = 1.0
    """How sure it is, up to 1 for a proof."""
    consequences: tuple[str, ...] = ()
    """What followed from it, one sentence each."""
    remedy: str = ""
    """What to change, in code where possible."""
    see: str = ""
    """The command that shows more."""

    @property
    def evidence(self) -> Mapping[str, Any]:
        """The values behind it, and what was expected."""
        return self.facts


@dataclass(frozen=True, kw_only=True)
class Findings:
    """All problems of a run, causes first."""

    findings: tuple[Finding, ...] = ()
    at_steps: tuple[Finding, ...] = ()
    """What single steps showed, in order, from which `findings` were concluded."""


def verdict(findings: Iterable[Finding], status: RunStatus | None = None) -> Verdict:
    """The verdict in one word; a training that was killed or stopped by an exception is broken."""
    return verdict_of((one.severity for one in findings), None if status is None else status.state)


def verdict_of(severities: Iterable[str], state: State | None) -> Verdict:
    """The verdict on a training with findings of these severities, and how it ended."""
    worst = set(severities)
    if state in ("stopped", "killed") or "error" in worst:
        return "broken"
    return "warning" if "warning" in worst else "healthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRecord:
    """The result of running the op of a finding again, alone, on the same inputs."""

    finding: Finding
    tensors: tuple[Evidence, ...]
    """Its inputs, and its outputs this time."""
    reproduced: bool
    """Whether it produced the same problem again."""
