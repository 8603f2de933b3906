"""How data flows between the calls of a model's modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NewType

from torchglass.records.tensors import TensorSpec

NodeId = NewType("NodeId", int)
NodeKind = Literal["call", "op", "input", "output", "attached"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A call of a module, or what stands inside one: ops, attached tensors, its inputs, outputs."""

    id: NodeId
    """Its place among the nodes of the graph."""
    kind: NodeKind
    parent: NodeId | None = None
    """The call that it stands in; None for the calls that no module made."""
    path: str = ""
    """Of a call the module's path; of anything else that of the module it stands in."""
    name: str = ""
    """What it is called there: the place of an input or output, torch's name of an op, …"""
    number: int = 1
    """Of a call, which one of its module it is, from 1; of an op its place in the pass."""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """What a module says of itself, by name: {"kernel_size": "(3, 3)", "stride": "(2, 2)"}."""
    count: int = 1
    """In how many of the passes it was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Data that flows from one node to another of the same parent."""

    source: NodeId
    target: NodeId
    spec: TensorSpec | None = None
    count: int = 1
    """In how many of the passes it was seen."""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The flow of one or several passes; a call comes before what stands in it."""

    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    passes: int = 1
    """How many passes it is the union of."""
