"""The backward of module calls: gradients, time and memory, at autograd nodes.

A node belongs to the innermost observed call in which it was created. The gradient of an input is
what the nodes of the call pass on to the input's node, whatever else uses the input. Time between
two nodes belongs to the innermost call around both, as in a forward.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import Node, get_gradient_edge

from torchglass.capture.autograd import (
    NO_BACKWARD,
    UNNUMBERED,
    Gradients,
    HookHandles,
    NewNodes,
    NodeCreators,
    output_of_node,
)
from torchglass.capture.measure.devices import Gauge, StandingClock, Timer
from torchglass.capture.observe.observed_call import Edge, ObservedCall, nearest_around
from torchglass.capture.tensor.description import describe, named_tensors
from torchglass.capture.tensor_reader import StatisticsReader
from torchglass.capture.torch_internals import (
    current_backward,
    node_count,
    node_number,
    queue_callback,
)
from torchglass.capture.torch_modes import quietly
from torchglass.errors import Fence


@dataclass(slots=True, eq=False)
class _RunningNode:
    owner: ObservedCall | None
    start: Any = None
    """When it began, on the clock of the timer."""


@dataclass(slots=True, eq=False)
class _ThreadNodes:
    """The nodes that one thread runs in a backward, one after the other or nested."""

    task: int = NO_BACKWARD
    open: list[_RunningNode] = field(default_factory=list)
    last: ObservedCall | None = None
    """The owner of the previous node."""
    last_mark: Any = None
    """When that node was over."""
    bytes: int | None = None


class BackwardRecorder:
    """Records the time, memory and gradients of nodes for the calls that own them."""

    def __init__(
        self,
        clock: StandingClock,
        timer: Timer,
        reader: StatisticsReader | None,
        gauge: Gauge | None,
        fence: Fence,
    ) -> None:
        self.is_active = True
        self.gradient_bytes: dict[int, int] = {}
        """The size of each parameter's gradient when it arrived, by id."""
        self._clock = clock
        self.timer: Any = timer
        self._reader = reader
        self._gauge = gauge
        self.fence = fence
        self._threads: defaultdict[int, _ThreadNodes] = defaultdict(_ThreadNodes)
        self._sums: dict[tuple[ObservedCall, Edge], tuple[int, torch.Tensor | None]] = {}

    def rest(self) -> None:
        """No backward runs: the next node is unrelated to the last one."""
        with self.fence, self._clock:
            sums, self._sums = self._sums, {}
            with quietly():
                for (call, edge), (_, total) in sums.items():
                    self._take(call, edge, total)
        self._threads.clear()

    def begin(self, hooks: NodeHooks, gradients: Gradients) -> None:
        arrived = self.timer.mark()
        node = _RunningNode(hooks.owner)
        with self._clock, self.fence:
            nodes = self._nodes_here()
            self._charge_gap(nodes, hooks.owner, arrived)
            self._weigh(nodes, gradients)
            nodes.open.append(node)
            self.look(hooks, gradients)
        node.start = self.timer.mark()

    def end(self, hooks: NodeHooks, made: Gradients) -> None:
        end = self.timer.mark()
        nodes = self._threads[threading.get_ident()]
        with self.fence, self._clock:
            node = nodes.open.pop()
            around = nodes.open[-1].owner if nodes.open else None
            self.timer.between(node.start, end, partial(_charge, hooks.owner, around))
            if self._gauge is not None:
                self._gauge.meet(made)
            for index, call, edge in hooks.inputs:
                self._send(call, edge, made[index])
            nodes.last = hooks.owner
        nodes.last_mark = self.timer.mark()

    def look(self, hooks: NodeHooks, gradients: Gradients) -> None:
        """Take the gradients that arrive at a node."""
        with self.fence, self._clock:
            for index, call, place in hooks.outputs:
                self._receive(call, place, gradients[index])
            for index, call, edge in hooks.passed:
                self._send(call, edge, gradients[index])

    def running_owner(self) -> ObservedCall | None:
        """The owner of the node that this thread runs."""
        nodes = self._threads[threading.get_ident()]
        return nodes.open[-1].owner if nodes.open else None

    def _nodes_here(self) -> _ThreadNodes:
        thread, task = threading.get_ident(), current_backward()
        nodes = self._threads[thread]
        if task != nodes.task and not nodes.open:
            nodes = self._threads[thread] = _ThreadNodes(task)
            # Otherwise an unfinished sum would be kept alive, and memory freed by the last node
            # would not be attributed to any call.
            queue_callback(partial(self._ended, nodes))
        return nodes

    def _ended(self, nodes: _ThreadNodes) -> None:
        with self.fence:
            with self._clock:
                self._weigh(nodes)
            self.rest()

    def _charge_gap(self, nodes: _ThreadNodes, owner: ObservedCall | None, arrived: Any) -> None:
        """Attribute the time between two nodes to the call around both."""
        if nodes.open or nodes.last is None or owner is None:
            return
        around = nearest_around(nodes.last, owner)
        if around is not None:
            self.timer.between(nodes.last_mark, arrived, around.charge_time)

    def _weigh(self, nodes: _ThreadNodes, gradients: Gradients = ()) -> None:
        """Attribute the change of memory since the last node began to that node."""
        if self._gauge is None:
            return
        self._gauge.meet(gradients)
        now = self._gauge.total_bytes
        if nodes.last is not None and nodes.bytes is not None:
            nodes.last.charge_bytes(now - nodes.bytes)
        nodes.bytes = now

    def _receive(self, call: ObservedCall, place: str, gradient: torch.Tensor | None) -> None:
        """Take the gradient of a call's output."""
        if gradient is None:
            return
        # A module that returns its input has no nodes, and a backward that takes no time.
        backward = call.backward
        backward.total_ns = backward.total_ns or 0
        if self._gauge is not None:
            backward.added_bytes = backward.added_bytes or 0
        if self._reader is not None:
            with quietly():
                backward.output_gradients[place] = self._reader.read(gradient.detach())

    def _send(self, call: ObservedCall, edge: Edge, gradient: torch.Tensor | None) -> None:
        """Take the gradient of a call's input, or one of several that add up to it."""
        if self._reader is None:
            return
        with quietly():
            gradient = None if gradient is None else gradient.detach()
            count, total = self._sums.pop((call, edge), (0, None))
            if total is not None:
                gradient = total if gradient is None else total + gradient
            if count + 1 < call.backward.partials[edge]:
                self._sums[call, edge] = count + 1, gradient
            else:
                self._take(call, edge, gradient)

    def _take(self, call: ObservedCall, edge: Edge, gradient: torch.Tensor | None) -> None:
        if gradient is None or self._reader is None:
            return
        reading = self._reader.read(gradient)
        for place in call.backward.edges[edge]:
            call.backward.input_gradients[place] = reading


def _charge(owner: ObservedCall | None, around: ObservedCall | None, ns: int) -> None:
    """Attribute the time of a node to its owner, and not to the node that runs it."""
    if around is not None:
        around.charge_time(-ns)
    if owner is not None:
        owner.charge_time(ns)


class NodeHooks:
    """The hooks of one node, until the recorder is closed."""

    __slots__ = ("_recorder", "inputs", "outputs", "owner", "passed")

    def __init__(self, recorder: BackwardRecorder, owner: ObservedCall | None) -> None:
        self._recorder = recorder
        self.owner = owner
        self.outputs: list[tuple[int, ObservedCall, str]] = []
        """The arriving gradients that belong to outputs of calls."""
        self.passed: list[tuple[int, ObservedCall, Edge]] = []
        """The gradients that pass through a call unchanged."""
        self.inputs: list[tuple[int, ObservedCall, Edge]] = []
        """The computed gradients that belong to inputs of calls."""

    def begin(self, gradients: Gradients) -> None:
        if self._recorder.is_active:
            with self._recorder.fence:
                self._recorder.begin(self, gradients)

    def end(self, made: Gradients, given: Gradients) -> None:
        if self._recorder.is_active:
            with self._recorder.fence:
                self._recorder.end(self, made)

    def look(self, gradients: Gradients) -> None:
        """A node that is not timed is about to run."""
        if self._recorder.is_active:
            with self._recorder.fence:
                self._recorder.look(self, gradients)


class ParameterHooks(NodeHooks):
    """The same for the node that adds a gradient to a parameter."""

    __slots__ = ("_parameter",)

    def __init__(
        self,
        recorder: BackwardRecorder,
        owner: ObservedCall | None,
        parameter: weakref.ref[torch.Tensor],
    ) -> None:
        super().__init__(recorder, owner)
        self._parameter = parameter

    def end(self, made: Gradients, given: Gradients) -> None:
        parameter = self._parameter()
        if not self._recorder.is_active or parameter is None:
            return
        with self._recorder.fence:
            # An optimizer that steps in the backward may have removed the gradient.
            gradient = parameter.grad if parameter.grad is not None else given[0]
            self._recorder.end(self, (gradient,))
            if gradient is not None:
                self._recorder.gradient_bytes[id(parameter)] = describe(gradient).bytes


class GraphHooks:
    """Hooks the nodes that calls create, pass by pass, and keeps none of them alive."""

    def __init__(self, recorder: BackwardRecorder, parameters: Iterable[torch.Tensor]) -> None:
        self._recorder = recorder
        self._parameters = {id(parameter) for parameter in parameters}
        self._is_open = False
        self._nodes = NewNodes()
        self._creators: NodeCreators[ObservedCall] = NodeCreators()
        self._hooked: dict[int, NodeHooks] = {}
        self._leaves: set[int] = set()
        self._open_edges: dict[Edge, list[ObservedCall]] = defaultdict(list)
        self._handles = HookHandles()
        self._leaf_handles: dict[int, HookHandles] = {}

    def enter(self, call: ObservedCall, inputs: Iterable[tuple[str, torch.Tensor]]) -> None:
        """A call begins: note where its inputs are in the graph."""
        if not self._is_open:
            self._begin()
        for place, tensor in inputs:
            edge = _edge(tensor)
            if edge is not None:
                call.backward.edges.setdefault(edge, []).append(place)
                call.backward.input_gradients[place] = None
        for edge in call.backward.edges:
            self._open_edges[edge].append(call)
        call.backward.first_node = node_count()
        self._creators.begin(call)

    def leave(self, call: ObservedCall, outer: ObservedCall | None, output: Any) -> None:
        """A call ends: hook the nodes that it created."""
        self._creators.begin(outer)
        try:
            located = [(place, t) for place, t in named_tensors(output) if t.requires_grad]
            self._claim(tensor for _, tensor in located)
            for place, tensor in located:
                self._expect(call, place, tensor)
        finally:
            for edge in call.backward.edges:
                self._open_edges[edge].remove(call)
            if outer is None:
                self._end()

    def close(self) -> None:
        """Remove all hooks, also from graphs that the user still holds."""
        self._end()
        for handles in (self._handles, *self._leaf_handles.values()):
            handles.remove()
        self._leaf_handles.clear()

    def _begin(self) -> None:
        self._is_open = True
        # Each thread counts its own nodes, and autograd recomputes in another one.
        self._nodes, self._creators = NewNodes(), NodeCreators()
        self._handles.drop_freed()

    def _end(self) -> None:
        self._is_open = False
        self._creators = NodeCreators()
        self._hooked, self._leaves = {}, set()
        self._open_edges.clear()

    def _claim(self, tensors: Iterable[torch.Tensor]) -> None:
        """Hook the nodes of this pass behind tensors, each once."""
        for node in self._nodes.behind(tensors):
            number = node_number(node)
            owner = self._creators.find(number)
            hooks = self._hooked[number] = NodeHooks(self._recorder, owner)
            self._handles.around(node, hooks.begin, hooks.end)
            for index, (before, place) in enumerate(node.next_functions):
                if before is not None:
                    self._feed(hooks, index, number, _edge_to(before, place))
                    self._claim_parameter(before, owner)

    def _feed(self, hooks: NodeHooks, index: int, number: int, edge: Edge) -> None:
        """Take the gradients of calls' inputs at a node that computes them."""
        for call in self._open_edges.get(edge, ()):
            # A node from before the call may use the same tensor.
            if number >= call.backward.first_node:
                hooks.inputs.append((index, call, edge))
                call.backward.partials[edge] += 1

    def _claim_parameter(self, node: Node, owner: ObservedCall | None) -> None:
        """Time the node that adds a gradient to a parameter; it may outlive the graph."""
        if node_number(node) != UNNUMBERED:
            return
        parameter = getattr(node, "variable", None)
        key = id(parameter)
        if parameter is None or key not in self._parameters or key in self._leaves:
            return
        self._leaves.add(key)
        handles = self._leaf_handles.setdefault(key, HookHandles())
        handles.remove()
        hooks = ParameterHooks(self._recorder, owner, weakref.ref(parameter))
        handles.around(node, hooks.begin, hooks.end)

    def _expect(self, call: ObservedCall, place: str, tensor: torch.Tensor) -> None:
        """Record the gradient of a call's output where it arrives."""
        edge = _edge(tensor)
        if edge is None:
            return
        call.backward.output_gradients[place] = None
        node, at = get_gradient_edge(tensor)[:2]
        number = node_number(node)
        hooks = self._hooked.get(number) if number != UNNUMBERED else None
        if hooks is None:
            # It was created before the call, as for the output of an identity.
            hooks = NodeHooks(self._recorder, None)
            self._handles.add(node.register_prehook(hooks.look))
            if number != UNNUMBERED:
                self._hooked[number] = hooks
        hooks.outputs.append((at, call, place))
        if edge in call.backward.edges:
            hooks.passed.append((at, call, edge))
            call.backward.partials[edge] += 1


def _edge(tensor: torch.Tensor) -> Edge | None:
    if not tensor.requires_grad:
        return None
    # The numbers of nodes are not negative.
    return output_of_node(tensor) or (-1, id(tensor))


def _edge_to(node: Node, place: int) -> Edge:
    number = node_number(node)
    return (number, place) if number != UNNUMBERED else (-1, id(getattr(node, "variable", None)))
