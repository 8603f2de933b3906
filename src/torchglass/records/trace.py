"""The record of one pass through a model: its calls, ops and tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NewType

from torchglass.records.tensors import TensorSpec

CallId = NewType("CallId", int)
OpId = NewType("OpId", int)
OpKind = Literal["input", "op", "output"]
Phase = Literal["forward", "backward", "optimizer"]

_MOST_DOUBTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """A line of the user's code."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """An input or output tensor of a call, and its position."""

    place: str
    """"0" for the first positional argument, "mask" for a keyword, "hidden.0" inside containers;
    "" for a tensor that is all that was returned."""
    spec: TensorSpec
    op: OpId | None = None
    """The op that produced it, if ops were traced."""
    output: int = 0
    """Which output of that op."""
    name: str = ""
    """The argument name, if the position does not say it: "targets" for position "1"."""
    memory: int | None = None
    """Equal for two values of a pass that share memory, such as views and in-place results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One run of one module's forward. A module run twice has two calls."""

    id: CallId
    parent: CallId | None
    path: str
    """Dotted path of the module in the model; "" is the model itself."""
    number: int
    """Counted per module from 1."""
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    start_ns: int = 0
    end_ns: int = 0

    @property
    def total_ns(self) -> int:
        """Time including inner calls."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """An input tensor of an op, and its origin."""

    place: str
    """Its position among the arguments: "0", "weight", "tensors.1"."""
    spec: TensorSpec
    op: OpId | None = None
    """The op whose output it is; None for a parameter, a buffer or a tensor from elsewhere."""
    output: int = 0
    """Which output of that op."""
    writers: tuple[OpId, ...] = ()
    """The ops that later wrote to its memory through other views, in order."""
    parameter: str = ""
    """Its dotted name, if it is a parameter of the model."""
    buffer: str = ""
    """Its dotted name, if it is a buffer of the model."""

    @property
    def parents(self) -> tuple[OpId, ...]:
        """The ops that determine its values."""
        return self.writers if self.op is None else (self.op, *self.writers)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRecord:
    """One torch operation that ran, or an input or output of the whole pass."""

    id: OpId
    """Its index in the pass."""
    kind: OpKind = "op"
    function: str
    """torch's name: "conv2d", "__add__"; for an input or output its position: "x", "b.0"."""
    call: CallId | None = None
    """The innermost module call it ran in."""
    operands: tuple[Operand, ...] = ()
    outputs: tuple[Value, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    """Its arguments that are not tensors, by position, as text."""
    start_ns: int = 0
    end_ns: int = 0
    site: int = 0
    """Equal for two ops started by the same line of code, through the same call stack."""
    source: SourceLine | None = None
    grad_fn: str = ""
    writes: bool = False
    """Whether it changed a tensor in place."""
    phase: Phase = "forward"

    @property
    def type(self) -> str:
        """The function's name in labels: "maxpool2d", "add"; or "input", "output"."""
        if self.kind != "op":
            return self.kind
        return self.function.rpartition(".")[2].replace("_", "").lower()

    @property
    def parents(self) -> tuple[OpId, ...]:
        """The ops whose outputs it used, each once, in the order of its arguments."""
        seen: dict[OpId, None] = {}
        for operand in self.operands:
            seen.update(dict.fromkeys(operand.parents))
        return tuple(seen)


@dataclass(frozen=True, kw_only=True)
class TraceRecord:
    """All calls and ops of one pass, in order of their start."""

    model: str
    """The class name of the model."""
    calls: tuple[CallRecord, ...]
    ops: tuple[OpRecord, ...]
    start_ns: int = 0
    end_ns: int = 0
    error: str = ""
    """The exception that the forward raised, if any; earlier ops are still recorded."""
    notes: tuple[str, ...] = ()
    """Notes on how it was recorded."""
    failed: OpRecord | None = None
    """The op that raised, if one did; it is not in `ops`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnconfirmedOp:
    """An op whose record a replay could not confirm, and why."""

    op: OpId
    reason: str
    label: str = ""
    """The op's label in the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The result of running a recorded pass again, op by op."""

    replayed: int
    differing: tuple[UnconfirmedOp, ...] = ()
    """Ops whose result differs from the saved one, in order."""
    unproven: tuple[UnconfirmedOp, ...] = ()
    """Arguments whose change did not change the result, so that the edge may not be real."""
    skipped: tuple[UnconfirmedOp, ...] = ()
    """Ops that cannot be run alone."""

    def __bool__(self) -> bool:
        """Whether everything that could be replayed has the saved result."""
        return not self.differing

    def __str__(self) -> str:
        """The result, then a line per op that could not be confirmed."""
        replayed = f"{self.replayed:,} op{'s' * (self.replayed != 1)}"
        if self.differing:
            first = self.differing[0]
            count = len({doubt.op for doubt in self.differing})
            verdict = (
                f"Differs: {count:,} of {replayed} gave a different result when replayed, "
                f"first {first.label or first.op}"
            )
        elif self.replayed:
            verdict = f"Valid: {replayed} replayed with the same results"
        else:
            verdict = "Not validated: no op could be replayed"
        return "\n".join([verdict, *self._lines()])

    def _lines(self) -> Iterator[str]:
        kinds = ("differs", self.differing), ("no effect", self.unproven), ("skipped", self.skipped)
        for kind, doubts in kinds:
            for doubt in doubts[:_MOST_DOUBTS]:
                yield f"  {kind:9}  {doubt.label or doubt.op}: {doubt.reason}"
            if len(doubts) > _MOST_DOUBTS:
                yield f"  {kind:9}  … and {len(doubts) - _MOST_DOUBTS:,} more"
