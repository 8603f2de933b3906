"""Problems found in a model or a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torchglass.records.tensors import Stats, TensorSpec
from torchglass.records.trace import Phase, SourceLine

Severity = Literal["error", "warning", "note"]
EvidenceRole = Literal["argument", "parameter", "buffer", "result", "gradient", "saved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A tensor that a finding rests on."""

    name: str
    """What it is to the op: "input", "weight", "result"."""
    role: EvidenceRole
    spec: TensorSpec
    stats: Stats | None = None
    """Its numbers; None where they could not be seen any more, as when they were written over."""
    holder: str = ""
    """Dotted name of the parameter or buffer that it is, or whose gradient it is."""
    maker: str = ""
    """What made those of its values that are not finite, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem, and where it is."""

    severity: Severity
    kind: str
    """A word that names the problem: "nan", "inf", "near overflow"."""
    message: str
    """The problem in one sentence."""
    path: str = ""
    """Dotted path of the module; "" is the model itself, or the code around it."""
    call: int = 0
    """Which call of the module, counted from 1; 0 where it did not happen in one."""
    op: str = ""
    """torch's name of the operation: "sqrt"; "" where none is to blame."""
    phase: Phase = "forward"
    source: SourceLine | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further numbers and names, ready for JSON."""
    tensors: tuple[Evidence, ...] = ()
    step: int | None = None
    """The step of the training in which it was found."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """All problems of a run, in the order in which they were found."""

    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRecord:
    """What came of running the op of a finding again, alone, on what it was given."""

    finding: Finding
    tensors: tuple[Evidence, ...]
    """What it was given and what it made this time."""
    reproduced: bool
    """Whether it made what it was blamed for again."""
