"""One pass through a model: the record of its calls, ops and tensors, and graphs of them.

The graph of a training in a run file, the op graph of the page and the drawn picture of a trace
all consist of the same nodes and edges. A node that others name as their parent is a box around
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NewType

from torchglass.records.model import TensorSpec

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


NodeId = NewType("NodeId", int)
NodeKind = Literal[
    "call", "op", "input", "output", "attached", "buffer", "repeat", "stub", "failure"
]
"""A "repeat" is a box around several nodes that run again and again; a "stub" is a node next to
the module in focus; a "failure" marks where the forward raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """How often a node that is drawn once ran."""

    passes: int = 1
    """Passes of the same layer or module, as in a recurrent network."""
    times: int = 1
    """The number of identical blocks, of which the node is the first."""
    until: str = ""
    """The name of the last of these blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCost:
    """Time, parameters, bytes and FLOPs of all ops that a node stands for."""

    time_ns: int = 0
    parameters: int = 0
    bytes: int = 0
    """The size of the output tensors."""
    flops: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDetail:
    """What a picture of a trace shows of a node."""

    op: OpRecord | None = None
    """The op that the node stands for, or the first of several."""
    is_module: bool = False
    """Whether an op is the only op of its module."""
    class_name: str = ""
    """The class of the module."""
    parameters: Mapping[str, TensorSpec] = field(default_factory=dict)
    op_count: int = 1
    """The number of ops in one pass of one block."""
    repetition: Repetition = Repetition()
    from_input: bool = True
    """Whether it depends on an input of the pass."""
    failed: bool = False
    cost: NodeCost = NodeCost()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A module call, or something inside one: an op, an attached tensor, an input or output."""

    id: NodeId
    """Its index in `Graph.nodes`."""
    kind: NodeKind
    parent: NodeId | None = None
    """The box that it is in; None for the outermost nodes."""
    path: str = ""
    """The path of the module that was called; for other kinds, of the module it is in."""
    name: str = ""
    """The position of an input or output, torch's name of an op, the key of a trace …"""
    number: int = 1
    """For a call, the call number of its module, from 1; for an op its index in the pass."""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """Settings by name: {"kernel_size": "(3, 3)", "stride": "(2, 2)"}."""
    count: int = 1
    """The number of passes in which it was seen."""
    detail: NodeDetail = NodeDetail()

    @property
    def module(self) -> str:
        """The path of the module that it is, or of which it is the only op."""
        return self.path if self.kind == "call" or self.detail.is_module else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Data that flows from one node to another."""

    source: NodeId
    target: NodeId
    spec: TensorSpec | None = None
    count: int = 1
    """The number of passes in which it was seen."""
    tensors: int = 1
    """The number of different tensors."""
    arguments: tuple[str, ...] = ()
    """The argument names of the target, where their order matters."""
    out_passes: tuple[int, ...] = ()
    """The passes of the source that it leaves, where these are not all of them."""
    in_passes: tuple[int, ...] = ()
    """The passes of the target that it enters, where these are not all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassInfo:
    """The traced pass that a picture shows."""

    model: str = ""
    op_count: int = 0
    """The number of ops that ran, drawn or not."""
    cost: NodeCost = NodeCost()
    """The cost of the whole pass."""
    parameters: int = 0
    """Parameters of the model, used in the pass or not."""
    closed_at: int | None = None
    """The depth at which modules were closed because there were too many nodes to read."""
    focus: str = ""
    """The module whose inside is drawn; "" for the whole model."""
    error: str = ""
    """What the forward raised."""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The nodes and edges of one or several passes; a parent comes before its children."""

    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    passes: int = 1
    """The number of passes it is the union of."""
    pass_info: PassInfo = PassInfo()

    @cached_property
    def boxes(self) -> tuple[Node, ...]:
        """The nodes that have others inside."""
        parents = {node.parent for node in self.nodes}
        return tuple(node for node in self.nodes if node.id in parents)

    @cached_property
    def leaves(self) -> tuple[Node, ...]:
        """The nodes that have no others inside."""
        parents = {node.parent for node in self.nodes}
        return tuple(node for node in self.nodes if node.id not in parents)
