"""The op graph of a traced pass, for a page that opens modules on demand.

An op is inside the module call that ran it. Data that flows between two calls crosses their
borders: it leaves through an output node of the one and enters through an input node of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from torchglass.analyse.graph.call_graph import GraphBuilder
from torchglass.records.graph import Graph, NodeId
from torchglass.records.tensors import TensorSpec
from torchglass.records.trace import CallId, Operand, OpId, OpRecord, TraceRecord, Value


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
