"""The graph of a traced pass: of module calls alone, or of all its ops.

In the call graph, a call contains its inner calls, the tensors attached in it, its inputs and
outputs, and the ops where data from several of these meets, such as a residual addition. Edges skip
all other ops, so the number of edges grows with the number of nodes and not with its square.

In the op graph, an op is inside the module call that ran it. Data between two calls leaves through
an output node of the one and enters through an input node of the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

from torchglass.records.model import TensorSpec
from torchglass.records.trace import (
    CallId,
    CallRecord,
    Edge,
    Graph,
    Node,
    NodeId,
    NodeKind,
    Operand,
    OpId,
    OpRecord,
    TraceRecord,
    Value,
)

Sources = dict[NodeId, TensorSpec]
"""The nodes of one call that data came from, and the tensor from each."""

Facts = Mapping[str, str]

_MOST_JOINS = 500
"""The most ops of one call that become nodes; an unrolled loop may have any number."""


def call_graph(
    trace: TraceRecord,
    *,
    facts: Mapping[str, Facts] | None = None,
    attached: Mapping[OpId, str] | None = None,
) -> Graph:
    """The graph of a pass. `facts` are by path; `attached` names the outputs of some ops."""
    builder = _CallGraphBuilder(trace, facts or {}, attached or {})
    builder.connect()
    return builder.graph()


def union(one: Graph | None, other: Graph, *, times: int = 1) -> Graph:
    """The union of two graphs, the second one seen `times` times; counts are added."""
    joined = _Union()
    if one is not None:
        joined.add(one, 1)
    joined.add(other, times)
    passes = (one.passes if one is not None else 0) + other.passes * times
    return Graph(nodes=tuple(joined.nodes), edges=tuple(joined.edges.values()), passes=passes)


class GraphBuilder:
    """Collects the nodes and edges of a pass, starting from its calls."""

    def __init__(self, trace: TraceRecord) -> None:
        self.trace = trace
        self.nodes: list[Node] = []
        self.edges: dict[tuple[NodeId, NodeId], Edge] = {}
        self.node_of_call: dict[CallId, NodeId] = {}
        self.starts: dict[NodeId, int] = {}

    def add_call(self, call: CallRecord, facts: Facts | None = None) -> NodeId:
        node = self.add_node(
            "call",
            call.parent,
            path=call.path,
            name=call.path.rpartition(".")[2],
            number=call.number,
            inputs=tuple(value.spec for value in call.inputs),
            outputs=tuple(value.spec for value in call.outputs),
            facts=facts,
        )
        self.node_of_call[call.id] = node
        self.starts[node] = call.start_ns
        return node

    def add_input(self, call: CallRecord, value: Value) -> NodeId:
        facts = {"argument": value.name} if value.name else {}
        return self.add_node(
            "input", call.id, path=call.path, name=value.place, outputs=(value.spec,), facts=facts
        )

    def add_output(self, call: CallRecord, value: Value) -> NodeId:
        return self.add_node(
            "output", call.id, path=call.path, name=value.place, inputs=(value.spec,)
        )

    def add_node(
        self,
        kind: NodeKind,
        call: CallId | None,
        *,
        path: str,
        name: str,
        number: int = 1,
        inputs: tuple[TensorSpec, ...] = (),
        outputs: tuple[TensorSpec, ...] = (),
        facts: Facts | None = None,
    ) -> NodeId:
        new = NodeId(len(self.nodes))
        self.nodes.append(
            Node(
                id=new,
                kind=kind,
                parent=None if call is None else self.node_of_call[call],
                path=path,
                name=name,
                number=number,
                inputs=inputs,
                outputs=outputs,
                facts=facts or {},
            )
        )
        return new

    def add_edge(self, source: NodeId, target: NodeId, spec: TensorSpec) -> None:
        """Add an edge; only the first one between two nodes counts."""
        if source != target and (source, target) not in self.edges:
            self.edges[source, target] = Edge(source=source, target=target, spec=spec)

    def ordered_graph(self, nodes: Iterable[Node]) -> Graph:
        """The graph of some nodes in the order in which they ran, and the edges between them.

        A node without a start time begins with the call that it is in, and no node before that.
        """
        begins: dict[NodeId | None, int] = {None: 0}
        kept = list(nodes)
        for node in kept:
            begins[node.id] = max(self.starts.get(node.id, 0), begins[node.parent])
        kept.sort(key=lambda node: begins[node.id])
        ids = {node.id: NodeId(index) for index, node in enumerate(kept)}
        return Graph(
            nodes=tuple(
                replace(
                    node, id=ids[node.id], parent=None if node.parent is None else ids[node.parent]
                )
                for node in kept
            ),
            edges=tuple(
                replace(edge, source=ids[edge.source], target=ids[edge.target])
                for edge in self.edges.values()
                if edge.source in ids and edge.target in ids
            ),
        )


class _Entry(NamedTuple):
    """An input of a call, and the output index of the op that produced it."""

    output: int
    node: NodeId


class _CallGraphBuilder(GraphBuilder):
    """Leaves out the ops through which data only passes."""

    def __init__(
        self, trace: TraceRecord, facts: Mapping[str, Facts], attached: Mapping[OpId, str]
    ) -> None:
        super().__init__(trace)
        self._facts = facts
        self._attached = attached
        self._made_outside: dict[CallId, dict[OpId, list[_Entry]]] = {}
        self._outputs: dict[CallId, list[NodeId]] = {}
        self._through: dict[OpId, Sources] = {}
        """For each op, the nodes of its own call that its data came from."""
        self._joins: Counter[tuple[CallId, str]] = Counter()
        self._opened = {call.parent for call in trace.calls}
        self._opened |= {trace.ops[op].call for op in self._attached if op < len(trace.ops)}

    def connect(self) -> None:
        """Create all nodes, then the edges between them, then those of inputs and outputs."""
        for call in self.trace.calls:
            self._enter_call(call)
        for op in self.trace.ops:
            self._follow(op)
        for call in self.trace.calls:
            for value in call.inputs:
                self._add_edges(self._came_from(value, call.parent), self.node_of_call[call.id])
            for node, value in zip(self._outputs[call.id], call.outputs, strict=False):
                self._add_edges(self._came_from(value, call.id), node)

    def graph(self) -> Graph:
        """The finished graph, without ops whose result nothing uses."""
        used = {node.id for node in self.nodes if node.kind != "op"}
        takers: dict[NodeId, list[NodeId]] = {}
        for source, target in self.edges:
            takers.setdefault(source, []).append(target)
        # Everything that uses an op comes after it, except outputs, which are not ops.
        for node in reversed(self.nodes):
            if any(taker in used for taker in takers.get(node.id, ())):
                used.add(node.id)
        return self.ordered_graph(node for node in self.nodes if node.id in used)

    def _enter_call(self, call: CallRecord) -> None:
        self.add_call(call, self._facts.get(call.path, {}))
        entries = self._made_outside[call.id] = {}
        self._outputs[call.id] = []
        if call.id not in self._opened:
            return
        for value in call.inputs:
            node = self.add_input(call, value)
            if value.op is not None:
                entries.setdefault(value.op, []).append(_Entry(value.output, node))
        self._outputs[call.id] = [self.add_output(call, value) for value in call.outputs]

    def _follow(self, op: OpRecord) -> None:
        """Find the nodes that the data of an op came from, within its own call."""
        taken: list[Sources] = []
        for operand in op.operands:
            found: Sources = {}
            for parent in operand.parents:
                output = operand.output if parent == operand.op else None
                found.update(self._sources(parent, output, op.call, operand.spec))
                self._cross(parent, output, op, operand.spec)
            taken.append(found)
        sources = {node: spec for found in taken for node, spec in found.items()}
        kind: NodeKind | None = None
        call = op.call
        if call is not None and op.outputs:
            kind = "attached" if op.id in self._attached else self._join(op, call, taken)
        if kind is not None and call is not None:
            sources = self._stand(kind, op, call, sources)
        self._through[op.id] = sources

    def _join(self, op: OpRecord, call: CallId, taken: Iterable[Sources]) -> NodeKind | None:
        """Returns "op" if data of several nodes meets in an op, so that it becomes a node."""
        different = {frozenset(found) for found in taken if found}
        if op.kind != "op" or call not in self._opened or len(different) < 2:
            return None
        if self._joins[call, ""] >= _MOST_JOINS:
            return None
        self._joins[call, ""] += 1
        return "op"

    def _stand(self, kind: NodeKind, op: OpRecord, call: CallId, sources: Sources) -> Sources:
        spec = op.outputs[0].spec
        name = self._attached[op.id] if kind == "attached" else op.function
        # Counted in its call, so that two passes of different lengths have the same nodes.
        self._joins[call, name] += 1
        node = self.add_node(
            kind,
            call,
            path=self.trace.calls[call].path,
            name=name,
            number=self._joins[call, name] if kind == "op" else 1,
            inputs=tuple(sources.values()) if kind == "op" else (spec,),
            outputs=(spec,),
        )
        self.starts[node] = op.start_ns
        self._add_edges(sources, node)
        return {node: spec}

    def _cross(self, parent: OpId, output: int | None, op: OpRecord, spec: TensorSpec) -> None:
        """Add the edge to a call that used data other than its arguments, such as an attribute."""
        for call in self._calls_around(op.call):
            outside = self.trace.calls[call].parent
            if self._is_in(parent, call):
                return
            if parent not in self._made_outside[call]:
                self._add_edges(
                    self._sources(parent, output, outside, spec), self.node_of_call[call]
                )
            if self._is_in(parent, outside):
                return

    def _came_from(self, value: Value, inside: CallId | None) -> Sources:
        if value.op is None:
            return {}
        return self._sources(value.op, value.output, inside, value.spec)

    def _sources(
        self, op: OpId, output: int | None, inside: CallId | None, spec: TensorSpec
    ) -> Sources:
        """The nodes directly inside a call that stand for one or all outputs of an op."""
        if op >= len(self.trace.ops):
            return {}
        call = self.trace.ops[op].call
        if call == inside:
            return dict.fromkeys(self._through.get(op, {}), spec)
        for around in self._calls_around(call):
            if self.trace.calls[around].parent == inside:
                return {self.node_of_call[around]: spec}
        entries = self._made_outside[inside].get(op, []) if inside is not None else []
        return {entry.node: spec for entry in entries if output in (None, entry.output)}

    def _calls_around(self, call: CallId | None) -> Iterator[CallId]:
        """A call and the calls around it, innermost first."""
        while call is not None:
            yield call
            call = self.trace.calls[call].parent

    def _is_in(self, op: OpId, call: CallId | None) -> bool:
        if call is None or op >= len(self.trace.ops):
            return True
        return call in self._calls_around(self.trace.ops[op].call)

    def _add_edges(self, sources: Mapping[NodeId, TensorSpec], target: NodeId) -> None:
        for source, spec in sources.items():
            self.add_edge(source, target, spec)


_Key = tuple[NodeKind, NodeId | None, str, str, int]


class _Union:
    """The union of graphs: nodes with equal kind, parent, path, name and number are one."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.edges: dict[tuple[NodeId, NodeId], Edge] = {}
        self._known: dict[_Key, NodeId] = {}

    def add(self, graph: Graph, times: int) -> None:
        """Add a graph that was seen `times` times."""
        new_id: dict[NodeId, NodeId] = {}
        for node in graph.nodes:
            parent = None if node.parent is None else new_id[node.parent]
            key = (node.kind, parent, node.path, node.name, node.number)
            count = node.count * times
            if key in self._known:
                known = self.nodes[self._known[key]]
                self.nodes[known.id] = replace(known, count=known.count + count)
            else:
                self._known[key] = NodeId(len(self.nodes))
                self.nodes.append(replace(node, id=self._known[key], parent=parent, count=count))
            new_id[node.id] = self._known[key]
        self._add_edges(graph.edges, new_id, times)

    def _add_edges(
        self, edges: Iterable[Edge], new_id: Mapping[NodeId, NodeId], times: int
    ) -> None:
        for edge in edges:
            ends = new_id[edge.source], new_id[edge.target]
            count = edge.count * times
            if ends in self.edges:
                count += self.edges[ends].count
            source, target = ends
            self.edges[ends] = replace(edge, source=source, target=target, count=count)


def op_graph(trace: TraceRecord) -> Graph:
    """All calls and ops of a pass, and what flows between them."""
    builder = _OpGraphBuilder(trace)
    for op in trace.ops:
        for operand in op.operands:
            for parent in operand.parents:
                builder.connect(parent, op, operand)
    return builder.ordered_graph(builder.nodes)


class _OpGraphBuilder(GraphBuilder):
    def __init__(self, trace: TraceRecord) -> None:
        super().__init__(trace)
        self._calls = {call.id: call for call in trace.calls}
        self._ops = {op.id: op for op in trace.ops}
        self._node_of_op: dict[OpId, NodeId] = {}
        self._inputs: dict[CallId, list[NodeId]] = {}
        self._outputs: dict[CallId, list[NodeId]] = {}
        self._stacks: dict[CallId | None, tuple[CallId, ...]] = {None: ()}
        """The calls around each call and itself, outermost first."""
        for call in trace.calls:
            self._stacks[call.id] = (*self._stacks[call.parent], call.id)
            self.add_call(call)
            self._inputs[call.id] = [self.add_input(call, value) for value in call.inputs]
            self._outputs[call.id] = [self.add_output(call, value) for value in call.outputs]
        for op in trace.ops:
            if op.kind == "op":
                self._add_op(op)

    def connect(self, parent: OpId, op: OpRecord, operand: Operand) -> None:
        """Add the edges from an op to one that uses its output, through all borders between."""
        if parent not in self._ops:
            return
        source = self._stacks[self._ops[parent].call]
        target = self._stacks[op.call]
        common = _common_length(source, target)
        start = self._node_of_op.get(parent)
        for call in reversed(source[common:]):
            self._connect(start, self._output(call, parent, operand), operand.spec)
            start = self.node_of_call[call]
        for call in target[common:]:
            self._connect(start, self.node_of_call[call], operand.spec)
            start = self._input(call, parent, operand)
        self._connect(start, self._node_of_op.get(op.id), operand.spec)

    def _connect(self, source: NodeId | None, target: NodeId | None, spec: TensorSpec) -> None:
        # None is an input or output of the whole pass, for which the outermost call has nodes.
        if source is not None and target is not None:
            self.add_edge(source, target, spec)

    def _input(self, id: CallId, op: OpId, operand: Operand) -> NodeId:
        """The input of a call through which the result of an op enters."""
        call, nodes = self._calls[id], self._inputs[id]
        if not nodes:
            nodes.append(self.add_input(call, Value(place="", spec=operand.spec)))
        return nodes[_index_of(call.inputs, op, operand)]

    def _output(self, id: CallId, op: OpId, operand: Operand) -> NodeId:
        """The output of a call through which the result of an op leaves."""
        call, nodes = self._calls[id], self._outputs[id]
        if not nodes:
            nodes.append(self.add_output(call, Value(place="", spec=operand.spec)))
        return nodes[_index_of(call.outputs, op, operand)]

    def _add_op(self, op: OpRecord) -> None:
        call = op.call if op.call in self._calls else None
        node = self.add_node(
            "op",
            call,
            path="" if call is None else self._calls[call].path,
            name=op.function,
            number=op.id,
            inputs=tuple(operand.spec for operand in op.operands),
            outputs=tuple(value.spec for value in op.outputs),
            facts=_facts(op),
        )
        self._node_of_op[op.id] = node
        self.starts[node] = op.start_ns


def _index_of(values: Sequence[Value], op: OpId, operand: Operand) -> int:
    """Which of the values of a call is the result of an op; the first one if none is."""
    found = [index for index, value in enumerate(values) if value.op == op]
    if op == operand.op:
        # For an op with several outputs, such as `chunk`, prefer the output that is used.
        found.sort(key=lambda index: values[index].output != operand.output)
    found += [index for index, value in enumerate(values) if value.spec == operand.spec]
    return found[0] if found else 0


def _facts(op: OpRecord) -> dict[str, str]:
    """The settings of an op, and its line in the user's code."""
    source = op.source
    if source is None:
        return dict(op.settings)
    return {**dict(op.settings), "source": f"{PurePath(source.file).name}:{source.line}"}


def _common_length(left: Sequence[CallId], right: Sequence[CallId]) -> int:
    """The number of calls with which both sequences start."""
    common = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        common += 1
    return common
