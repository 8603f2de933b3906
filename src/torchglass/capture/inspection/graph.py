"""The backward of module calls: gradients, time and memory, seen at the nodes of autograd.

A node belongs to the innermost watched call in which it was made. The gradient of an input is what
the nodes of the call send to where the input hangs in the graph, whatever else it is used for. What
lies between two nodes belongs to the innermost call around both, as in a forward.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd.graph import Node, get_gradient_edge

from torchglass.capture.inspection.calls import Call, Edge
from torchglass.capture.inspection.nodes import NodeHooks, ParameterHooks, Watch
from torchglass.capture.places import tensors_in
from torchglass.capture.trace.nodes import UNNUMBERED, Makers, nodes_made


class Graph:
    """Hooks the nodes that calls make, pass by pass, and holds none of them."""

    def __init__(self, watch: Watch, parameters: Iterable[torch.Tensor]) -> None:
        self._watch = watch
        self._parameters = {id(parameter) for parameter in parameters}
        self._first = 0
        self._is_open = False
        self._makers: Makers[Call | None] = Makers()
        self._hooked: dict[int, NodeHooks] = {}
        self._leaves: set[int] = set()
        self._open_edges: dict[Edge, list[Call]] = defaultdict(list)
        self._handles: list[Any] = []
        self._leaf_handles: dict[int, list[Any]] = {}

    def enter(self, call: Call, inputs: Iterable[tuple[str, torch.Tensor]]) -> None:
        """A call begins: see where its inputs hang."""
        if not self._is_open:
            self._begin()
        for place, tensor in inputs:
            edge = _edge(tensor)
            if edge is not None:
                call.edges.setdefault(edge, []).append(place)
                call.input_gradients[place] = None
        for edge in call.edges:
            self._open_edges[edge].append(call)
        call.first_node = nodes_made()
        self._makers.begin(call)

    def leave(self, call: Call, outer: Call | None, output: Any) -> None:
        """A call ends: hook the nodes that were made in it."""
        self._makers.begin(outer)
        try:
            located = [(place, t) for place, t in tensors_in(output) if t.requires_grad]
            self._claim(tensor.grad_fn for _, tensor in located)
            for place, tensor in located:
                self._expect(call, place, tensor)
        finally:
            for edge in call.edges:
                self._open_edges[edge].remove(call)
            if outer is None:
                self._end()

    def close(self) -> None:
        """Take all hooks off, those of graphs that the user still holds among them."""
        self._end()
        for handle in (*self._handles, *(h for hs in self._leaf_handles.values() for h in hs)):
            handle.remove()
        self._handles.clear()
        self._leaf_handles.clear()

    def _begin(self) -> None:
        self._is_open = True
        self._first = nodes_made()
        # A handle whose hooks went with their node is of no more use.
        self._handles = [h for h in self._handles if h.hooks_dict_ref() is not None]

    def _end(self) -> None:
        self._is_open = False
        self._makers = Makers()
        self._hooked, self._leaves = {}, set()
        self._open_edges.clear()

    def _claim(self, roots: Iterable[Node | None]) -> None:
        """Hook the nodes of this pass that some tensors come from, each once."""
        waiting = [node for node in roots if node is not None]
        while waiting:
            node = waiting.pop()
            number = node._sequence_nr()
            if not self._is_of_pass(number) or number in self._hooked:
                continue
            owner = self._makers.find(number)
            hooks = self._hook(node, number, owner)
            for index, (before, place) in enumerate(node.next_functions):
                if before is not None:
                    waiting.append(before)
                    self._feed(hooks, index, number, _edge_to(before, place))
                    self._claim_parameter(before, owner)

    def _is_of_pass(self, number: int) -> bool:
        return self._first <= number != UNNUMBERED

    def _hook(self, node: Node, number: int, owner: Call | None) -> NodeHooks:
        hooks = self._hooked[number] = NodeHooks(self._watch, owner)
        self._handles += node.register_prehook(hooks.begin), node.register_hook(hooks.end)
        return hooks

    def _feed(self, hooks: NodeHooks, index: int, number: int, edge: Edge) -> None:
        """Have a node's gradients for the inputs of calls taken there."""
        for call in self._open_edges.get(edge, ()):
            # A node from before the call may use the same tensor.
            if number >= call.first_node:
                hooks.inputs.append((index, call, edge))
                call.partials[edge] += 1

    def _claim_parameter(self, node: Node, owner: Call | None) -> None:
        """Time the node that adds a gradient to a parameter; it may outlive the graph."""
        if node._sequence_nr() != UNNUMBERED:
            return
        parameter = getattr(node, "variable", None)
        key = id(parameter)
        if parameter is None or key not in self._parameters or key in self._leaves:
            return
        self._leaves.add(key)
        for handle in self._leaf_handles.get(key, ()):
            handle.remove()
        hooks = ParameterHooks(self._watch, owner, weakref.ref(parameter))
        self._leaf_handles[key] = [
            node.register_prehook(hooks.begin),
            node.register_hook(hooks.end),
        ]

    def _expect(self, call: Call, place: str, tensor: torch.Tensor) -> None:
        """Have the gradient of a call's output taken where it arrives."""
        edge = _edge(tensor)
        if edge is None:
            return
        call.output_gradients[place] = None
        node, at = get_gradient_edge(tensor)[:2]
        number = node._sequence_nr()
        hooks = self._hooked.get(number) if number != UNNUMBERED else None
        if hooks is None:
            # It was there before the call, as what an identity returns was.
            hooks = NodeHooks(self._watch, None)
            self._handles.append(node.register_prehook(hooks.look))
            if number != UNNUMBERED:
                self._hooked[number] = hooks
        hooks.outputs.append((at, call, place))
        if edge in call.edges:
            hooks.passed.append((at, call, edge))
            call.partials[edge] += 1


def _edge(tensor: torch.Tensor) -> Edge | None:
    if not tensor.requires_grad:
        return None
    node = tensor.grad_fn
    # The numbers of nodes are not negative.
    return (-1, id(tensor)) if node is None else (node._sequence_nr(), tensor.output_nr)


def _edge_to(node: Node, place: int) -> Edge:
    number = node._sequence_nr()
    return (number, place) if number != UNNUMBERED else (-1, id(getattr(node, "variable", None)))
