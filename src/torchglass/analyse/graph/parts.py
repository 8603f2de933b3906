"""The parts of a picture of a trace: nodes, edges and nested boxes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchglass.records.tensors import TensorSpec
from torchglass.records.trace import Op

NodeKind = Literal["input", "output", "op", "module", "buffer", "stub", "failure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """How often a thing that is drawn once ran."""

    passes: int = 1
    """Passes of the same layer or module, as in a recurrent net."""
    times: int = 1
    """Blocks that are built alike, of which this is the first."""
    until: str = ""
    """The name of the last of these blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What all that a node stands for took."""

    time_ns: int = 0
    parameters: int = 0
    bytes: int = 0
    """Of the tensors that it made."""
    flops: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An op, an input or output, a closed module, a buffer, or a neighbour of what is in focus."""

    name: str
    """A key of the trace."""
    kind: NodeKind
    box: str | None = None
    """The name of the innermost box that it is in."""
    op: Op | None = None
    """The op that it is, or the first of several."""
    module: str = ""
    """The path of the module that it is."""
    class_name: str = ""
    """The class of that module."""
    specs: tuple[TensorSpec, ...] = ()
    """What it makes."""
    parameters: Mapping[str, TensorSpec] = field(default_factory=dict)
    ops: int = 1
    """How many ops are in it: those of one pass, and of one block of those that are alike."""
    again: Again = Again()
    from_input: bool = True
    """Whether it depends on an input of the pass."""
    failed: bool = False
    cost: Cost = Cost()


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What flows from one node to another."""

    source: str
    target: str
    tensors: int = 1
    """How many different tensors."""
    arguments: tuple[str, ...] = ()
    """What the target calls them, where their order matters."""
    out_passes: tuple[int, ...] = ()
    """The passes of the source that it leaves, where these are not all of them."""
    in_passes: tuple[int, ...] = ()
    """The passes of the target that it enters, where these are not all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A module call, or a stretch that repeats, around what ran in it."""

    name: str
    parent: str | None = None
    """The name of the box around it."""
    module: str = ""
    """The path of the module; "" for a stretch of several ops, and for the model itself."""
    class_name: str = ""
    again: Again = Again()


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """What a picture of a trace shows."""

    model: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    boxes: tuple[Box, ...]
    """Each after the box around it."""
    ops: int = 0
    """How many ops ran, drawn or not."""
    cost: Cost = Cost()
    """Of the whole pass."""
    parameters: int = 0
    """Of the model, used in the pass or not."""
    closed_at: int | None = None
    """The depth at which modules were closed because there were too many nodes to read."""
    focus: str = ""
    """The module whose inside this is; "" for the whole model."""
    error: str = ""
