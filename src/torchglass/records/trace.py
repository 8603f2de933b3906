"""What one pass through a model did."""

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
    """A place in the user's code."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor that went into or came out of a call, and its place there."""

    place: str
    """"0" for the first positional argument, "mask" for a keyword, "hidden.0" inside containers;
    "" for a tensor that is all that was returned."""
    spec: TensorSpec
    op: OpId | None = None
    """The op that made it, where ops were traced."""
    output: int = 0
    """Which output of that op."""
    name: str = ""
    """What `forward` calls an argument, where its place does not say it: "targets" of place "1"."""
    memory: int | None = None
    """The same in two values of a pass that lie in one memory, as views and in-place results do."""


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
        """Time spent here, inner calls included."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A tensor that an op took, and whence it came."""

    place: str
    """Its place among the arguments: "0", "weight", "tensors.1"."""
    spec: TensorSpec
    op: OpId | None = None
    """The op whose output it is; None for a parameter, a buffer or a tensor from elsewhere."""
    output: int = 0
    """Which output of that op."""
    writers: tuple[OpId, ...] = ()
    """The ops that have since written into its memory through other views, in order."""
    parameter: str = ""
    """Dotted name of the model's parameter that it is."""
    buffer: str = ""
    """Dotted name of the model's buffer that it is."""

    @property
    def parents(self) -> tuple[OpId, ...]:
        """The ops that made it what it is."""
        return self.writers if self.op is None else (self.op, *self.writers)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRecord:
    """One torch operation that ran, or an input or output of the whole pass."""

    id: OpId
    """Its place in the order of the pass."""
    kind: OpKind = "op"
    function: str
    """torch's name for it: "conv2d", "__add__"; the address of an input or output: "x", "b.0"."""
    call: CallId | None = None
    """The innermost module call it ran in."""
    operands: tuple[Operand, ...] = ()
    outputs: tuple[Value, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    """Its arguments that are no tensors, by place, as text."""
    start_ns: int = 0
    end_ns: int = 0
    site: int = 0
    """The same for two ops that one place in the code started, from the model's forward inwards."""
    source: SourceLine | None = None
    grad_fn: str = ""
    writes: bool = False
    """Whether it changed a tensor in place."""
    phase: Phase = "forward"

    @property
    def type(self) -> str:
        """The function's name as it stands in labels: "maxpool2d", "add"; or "input", "output"."""
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
    """All calls and ops of one pass, in the order in which they began."""

    model: str
    """The class name of the model."""
    calls: tuple[CallRecord, ...]
    ops: tuple[OpRecord, ...]
    start_ns: int = 0
    end_ns: int = 0
    error: str = ""
    """What the forward raised, if it did; the ops before it are still there."""
    notes: tuple[str, ...] = ()
    """What the reader should know of how it was recorded."""
    failed: OpRecord | None = None
    """The op that raised it, if it was one; it is not among the ops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnconfirmedOp:
    """An op whose record a replay could not confirm, and why."""

    op: OpId
    reason: str
    label: str = ""
    """What the trace calls the op."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What running a recorded pass again gave, op by op."""

    replayed: int
    differing: tuple[UnconfirmedOp, ...] = ()
    """Ops that made something else than what was saved, the first one first."""
    unproven: tuple[UnconfirmedOp, ...] = ()
    """Arguments whose change did not change the result, so that the edge may not be real."""
    skipped: tuple[UnconfirmedOp, ...] = ()
    """Ops that cannot be run by themselves."""

    def __bool__(self) -> bool:
        """Whether everything that could be replayed came out as it was saved."""
        return not self.differing

    def __str__(self) -> str:
        """The verdict, then a line for each op that is in doubt."""
        replayed = f"{self.replayed:,} operation{'s' * (self.replayed != 1)}"
        if self.differing:
            first = self.differing[0]
            count = len({doubt.op for doubt in self.differing})
            verdict = (
                f"Differs: {count:,} of {replayed} gave another result when replayed, "
                f"the first is {first.label or first.op}"
            )
        elif self.replayed:
            verdict = f"Valid: {replayed} replayed with the same results"
        else:
            verdict = "Not validated: no operation could be replayed"
        return "\n".join([verdict, *self._lines()])

    def _lines(self) -> Iterator[str]:
        kinds = ("differs", self.differing), ("no effect", self.unproven), ("skipped", self.skipped)
        for kind, doubts in kinds:
            for doubt in doubts[:_MOST_DOUBTS]:
                yield f"  {kind:9}  {doubt.label or doubt.op}: {doubt.reason}"
            if len(doubts) > _MOST_DOUBTS:
                yield f"  {kind:9}  … and {len(doubts) - _MOST_DOUBTS:,} more"
