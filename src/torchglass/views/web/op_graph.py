"""The flow of one traced pass down to its ops, for a page that opens modules on demand.

An op stands in the module call that ran it. Data that goes from one call to another crosses their
borders: it leaves through an output of the one and enters through an input of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from torchglass.analyse.graph.call_graph import in_order
from torchglass.records.graph import Edge, Graph, Node, NodeId, NodeKind
from torchglass.records.tensors import TensorSpec
from torchglass.records.trace import CallId, CallRecord, Operand, OpId, OpRecord, TraceRecord, Value


def op_graph(trace: TraceRecord) -> Graph:
    """All calls and ops of a pass, and what flows between them."""
    drawing = _Drawing(trace)
    for op in trace.ops:
        for operand in op.operands:
            for parent in operand.parents:
                drawing.connect(parent, op, operand)
    return drawing.graph()


class _Drawing:
    """A graph on its way."""

    def __init__(self, trace: TraceRecord) -> None:
        self._calls = {call.id: call for call in trace.calls}
        self._ops = {op.id: op for op in trace.ops}
        self._nodes: list[Node] = []
        self._edges: dict[tuple[NodeId, NodeId], Edge] = {}
        self._of_call: dict[CallId | None, NodeId | None] = {None: None}
        self._of_op: dict[OpId, NodeId] = {}
        self._inputs: dict[CallId, list[NodeId]] = {}
        self._outputs: dict[CallId, list[NodeId]] = {}
        self._starts: dict[NodeId, int] = {}
        self._lines: dict[CallId | None, tuple[CallId, ...]] = {None: ()}
        for call in trace.calls:
            self._add_call(call)
        for op in trace.ops:
            if op.kind == "op":
                self._add_op(op)

    def graph(self) -> Graph:
        """What was drawn."""
        return in_order(self._nodes, self._edges.values(), self._starts)

    def connect(self, parent: OpId, op: OpRecord, operand: Operand) -> None:
        """Draw what an op made to an op that used it, through all borders between them."""
        if parent not in self._ops:
            return
        source = self._lines[self._ops[parent].call]
        target = self._lines[op.call]
        common = _alike(source, target)
        start = self._of_op.get(parent)
        for call in reversed(source[common:]):
            self._draw(start, self._border(self._outputs, call, parent, operand), operand.spec)
            start = self._call_node(call)
        for call in target[common:]:
            self._draw(start, self._call_node(call), operand.spec)
            start = self._border(self._inputs, call, parent, operand)
        self._draw(start, self._of_op.get(op.id), operand.spec)

    def _draw(self, source: NodeId | None, target: NodeId | None, spec: TensorSpec) -> None:
        # None is an input or output of the whole pass, which the outermost call has of its own.
        if source is not None and target is not None and source != target:
            edge = Edge(source=source, target=target, spec=spec)
            self._edges.setdefault((source, target), edge)

    def _call_node(self, call: CallId) -> NodeId:
        node = self._of_call[call]
        assert node is not None
        return node

    def _border(
        self, borders: dict[CallId, list[NodeId]], call: CallId, op: OpId, operand: Operand
    ) -> NodeId:
        """The input or output of a call through which the result of an op goes."""
        values = self._calls[call].inputs if borders is self._inputs else self._calls[call].outputs
        places = [at for at, value in enumerate(values) if value.op == op]
        if op == operand.op:
            # Of an op with several outputs, as `chunk`, the one that is meant comes first.
            places.sort(key=lambda at: values[at].output != operand.output)
        places += [at for at, value in enumerate(values) if value.spec == operand.spec]
        if not borders[call]:
            kind: NodeKind = "input" if borders is self._inputs else "output"
            borders[call].append(self._add(kind, call, Value(place="", spec=operand.spec)))
        return borders[call][places[0] if places else 0]

    def _add_call(self, call: CallRecord) -> None:
        self._lines[call.id] = (*self._lines[call.parent], call.id)
        node = NodeId(len(self._nodes))
        self._of_call[call.id] = node
        self._starts[node] = call.start_ns
        self._nodes.append(
            Node(
                id=node,
                kind="call",
                parent=self._of_call[call.parent],
                path=call.path,
                name=call.path.rpartition(".")[2],
                number=call.number,
                inputs=_specs(call.inputs),
                outputs=_specs(call.outputs),
            )
        )
        self._inputs[call.id] = [self._add("input", call.id, value) for value in call.inputs]
        self._outputs[call.id] = [self._add("output", call.id, value) for value in call.outputs]

    def _add(self, kind: NodeKind, call: CallId, value: Value) -> NodeId:
        node = NodeId(len(self._nodes))
        self._nodes.append(
            Node(
                id=node,
                kind=kind,
                parent=self._of_call[call],
                path=self._calls[call].path,
                name=value.place,
                inputs=(value.spec,) if kind == "output" else (),
                outputs=(value.spec,) if kind == "input" else (),
                facts={"argument": value.name} if value.name else {},
            )
        )
        return node

    def _add_op(self, op: OpRecord) -> None:
        node = NodeId(len(self._nodes))
        self._of_op[op.id] = node
        self._starts[node] = op.start_ns
        self._nodes.append(
            Node(
                id=node,
                kind="op",
                parent=self._of_call.get(op.call),
                path="" if op.call is None else self._calls[op.call].path,
                name=op.function,
                number=op.id,
                inputs=tuple(operand.spec for operand in op.operands),
                outputs=_specs(op.outputs),
                facts=_facts(op),
            )
        )


def _facts(op: OpRecord) -> dict[str, str]:
    """The settings of an op, and where in the user's code it stands."""
    source = op.source
    if source is None:
        return dict(op.settings)
    return {**dict(op.settings), "source": f"{PurePath(source.file).name}:{source.line}"}


def _specs(values: Sequence[Value]) -> tuple[TensorSpec, ...]:
    return tuple(value.spec for value in values)


def _alike(left: Sequence[CallId], right: Sequence[CallId]) -> int:
    """With how many calls two lines begin alike."""
    common = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        common += 1
    return common
