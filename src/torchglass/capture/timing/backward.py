"""The nodes of a backward, timed by hooks on the nodes themselves.

A node belongs to the op, or at least to the module call, in which the forward made it. Nothing is
put around modules: in-place ones, checkpoints and modules that return tuples work as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import Node

from torchglass.capture.timing.spans import Stopwatch
from torchglass.capture.trace.nodes import UNNUMBERED

_ADDS_TO_LEAF = "torch::autograd::AccumulateGrad"


class Reached(NamedTuple):
    """A node of a graph, and the one through which it was reached first."""

    node: Node
    through: Node | None


def nodes_behind(tensors: Iterable[torch.Tensor]) -> Iterator[Reached]:
    """The nodes that a backward from these tensors comes to, each once, users before makers."""
    roots = (tensor.grad_fn for tensor in tensors)
    waiting = [Reached(node, None) for node in roots if node is not None]
    seen: set[Node] = set()
    while waiting:
        reached = waiting.pop()
        if reached.node in seen:
            continue
        seen.add(reached.node)
        yield reached
        waiting.extend(
            Reached(node, reached.node)
            for node, _ in reached.node.next_functions
            if node is not None
        )


def leaves_among(nodes: Iterable[Reached]) -> list[torch.Tensor]:
    """The tensors that a backward through these nodes gives gradients to."""
    return [
        reached.node.variable  # type: ignore[attr-defined]
        for reached in nodes
        if reached.node.name() == _ADDS_TO_LEAF
    ]


class NodeTimer:
    """Has a stopwatch time nodes when autograd comes to them, until it is closed."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._owners: dict[Node, int | None] = {}
        self._handles: list[Any] = []

    def tag(self, tensors: Iterable[torch.Tensor]) -> None:
        """Time the nodes behind some tensors, and charge them to the spans that made them."""
        self.tag_nodes(nodes_behind(tensors))

    def tag_nodes(self, nodes: Iterable[Reached]) -> None:
        """Time these nodes; those that have their timers already keep them."""
        for reached in nodes:
            if reached.node not in self._owners:
                self._tag(reached)

    def close(self) -> None:
        """Take the hooks off: the node of a leaf may live on with it."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._owners.clear()

    def _tag(self, reached: Reached) -> None:
        node = reached.node
        number = node._sequence_nr()
        if number != UNNUMBERED:
            owner = self._watch.maker(number)
        else:
            owner = None if reached.through is None else self._owners[reached.through]
        self._owners[node] = owner
        timer = _Hooks(self._watch, node.name().rpartition("::")[2], owner)
        self._handles += node.register_prehook(timer.begin), node.register_hook(timer.end)


class _Hooks:
    """What autograd calls right before and right after one node."""

    __slots__ = ("_depths", "_name", "_owner", "_watch")

    def __init__(self, watch: Stopwatch, name: str, owner: int | None) -> None:
        self._watch = watch
        self._name = name
        self._owner = owner
        self._depths: list[int] = []

    def begin(self, gradients: tuple[torch.Tensor, ...]) -> None:
        self._depths.append(self._watch.begin("node", self._name, self._owner))

    def end(self, inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...]) -> None:
        self._watch.end(self._depths.pop())
