"""A graph: module calls, ops and tensors as nodes, and the data that flows between them.

The graph of a training in a run file, the op graph of the page and the drawn picture of a trace
all consist of these nodes and edges. A node that others name as their parent is a box around them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NewType

from torchglass.records.tensors import TensorSpec
from torchglass.records.trace import OpRecord

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
    """Of the output tensors."""
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
    """Of the whole pass."""
    parameters: int = 0
    """Of the model, used in the pass or not."""
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
