"""Folds a trace into a graph of nodes, edges and nested boxes.

graph = fold(trace, model, depth=1)
[node.name for node in graph.leaves]  # keys of the trace: conv2d_3_7, encoder.0, …
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchglass.analyse.op_repeats import (
    BoxPlacement,
    BoxSource,
    Link,
    OpFlow,
    Repeat,
    RepeatFinder,
    from_input,
    links_into,
)
from torchglass.analyse.parameters import count
from torchglass.analyse.trace import OpLabels
from torchglass.errors import ViewError
from torchglass.records.model import Model, TensorSpec
from torchglass.records.trace import (
    CallId,
    Edge,
    Graph,
    Node,
    NodeCost,
    NodeDetail,
    NodeId,
    NodeKind,
    OpId,
    OpRecord,
    PassInfo,
    Repetition,
    TraceRecord,
)

Mode = Literal["rolled", "unrolled"]
Depth = int | Literal["auto"] | None

_READABLE = 300
"""A graph with more nodes is too large to read, so modules are closed."""


def fold(
    trace: TraceRecord,
    model: Model | None = None,
    *,
    mode: Mode = "unrolled",
    depth: Depth = None,
    hide_views: bool = True,
    fold_repeats: bool = True,
    focus: str | None = None,
    show_buffers: bool = False,
    flops: Mapping[OpId, int] | None = None,
) -> Graph:
    """The graph of a trace.

    Rolled, all passes of a layer are one node. Modules `depth` levels down are closed; "auto"
    closes none, or in a large graph as few as leave about 300 nodes. With `focus`, only the inside
    of one module is drawn, with its neighbors as stubs.
    """
    if mode not in ("rolled", "unrolled"):
        raise ViewError(f"mode must be 'rolled' or 'unrolled', not {mode!r}")
    if depth is not None and depth != "auto" and depth < 1:
        raise ViewError(f"depth must be 1 or more, None for all levels, or 'auto', not {depth}")
    flow = OpFlow(trace.ops, hide_views=hide_views, hide_buffers=not show_buffers)
    shown = [op for op in trace.ops if op.id not in flow.hidden]

    def at(level: int | None) -> Graph:
        places = BoxPlacement(trace.calls, trace.ops, shown=shown, depth=level, focus=focus)
        folder = _Folder(trace, model, mode, flow, places, flops or {})
        if fold_repeats:
            folder.fold_repeats(level)
        folder.add_ops()
        folder.add_links()
        if show_buffers:
            folder.add_buffers()
        if trace.error:
            folder.add_failure()
        return folder.graph()

    return _closed_to_fit(at) if depth == "auto" else at(depth)


def _closed_to_fit(at: Callable[[int | None], Graph]) -> Graph:
    """The whole graph, or the deepest one that can still be read."""
    whole = at(None)
    if len(whole.leaves) <= _READABLE:
        return whole
    level, chosen = 1, at(1)
    while len((deeper := at(level + 1)).leaves) <= _READABLE:
        level, chosen = level + 1, deeper
    if len(chosen.leaves) >= len(whole.leaves):
        return whole
    info = dataclasses.replace(chosen.pass_info, closed_at=level)
    return dataclasses.replace(chosen, pass_info=info)


@dataclass(slots=True)
class _NodeDraft:
    """A node, and the ops that it stands for so far."""

    node: Node
    number: int
    """The pass whose ops are counted."""
    ops: list[OpId] = field(default_factory=list)
    """All ops, including those of later passes and of other blocks."""
    own: list[OpId] = field(default_factory=list)
    """The ops of the first pass of the block that is drawn."""


@dataclass(slots=True)
class _EdgeDraft:
    """The tensors between two nodes."""

    tensors: set[tuple[str, int]] = field(default_factory=set)
    arguments: dict[str, None] = field(default_factory=dict)
    out_passes: set[int] = field(default_factory=set)
    in_passes: set[int] = field(default_factory=set)


class _Folder:
    """Builds the graph."""

    def __init__(
        self,
        trace: TraceRecord,
        model: Model | None,
        mode: Mode,
        flow: OpFlow,
        places: BoxPlacement,
        flops: Mapping[OpId, int],
    ) -> None:
        self._trace = trace
        self._rolled = mode == "rolled"
        self._flow = flow
        self._places = places
        self._flops = flops
        self._labels = OpLabels(trace.ops)
        self._held = count(model)[model.root.id].total.parameters if model else 0
        self._classes = {module.path: module.kind for module in model.modules} if model else {}
        self._calls_of = Counter(call.path for call in trace.calls)
        self._drawn = [op.id for op in trace.ops]
        self._from_input = from_input(trace.ops)
        self._nodes: dict[str, _NodeDraft] = {}
        self._edges: dict[tuple[str, str], _EdgeDraft] = {}
        self._boxes: dict[str, Node] = {}
        self._next_id = 0

    def fold_repeats(self, depth: int | None) -> None:
        """Draw the first of several identical blocks in place of all of them."""
        repeats = RepeatFinder(
            self._trace.ops,
            self._trace.calls,
            self._labels,
            classes=self._classes,
            hidden=self._flow.hidden,
        )
        runs: list[Repeat] = []
        for base in self._places.bases:
            # Several roots are themselves children of what is drawn, one level above the models.
            levels = depth + 1 if depth is not None and base is None else depth
            runs += repeats.below(base, depth=levels)
        self._drawn = self._places.fold(runs)

    def add_ops(self) -> None:
        """The nodes of all ops inside what is drawn."""
        for op in self._trace.ops:
            drawn = self._trace.ops[self._drawn[op.id]]
            closed = self._places.closed(drawn)
            if not self._places.has(op) or (closed is None and op.id in self._flow.hidden):
                continue
            name = self._name(drawn)
            if name not in self._nodes:
                node = self._module_node(drawn, closed) if closed is not None else self._op_node(op)
                self._nodes[name] = _NodeDraft(node, self._number(op))
            draft = self._nodes[name]
            draft.ops.append(op.id)
            if op is drawn and self._number(op) == draft.number:
                draft.own.append(op.id)

    def add_links(self) -> None:
        """The edges, and stubs for neighbors outside of what is drawn."""
        ops = self._trace.ops
        for link in self._flow.links():
            source, target = ops[link.source], ops[link.target]
            # A later block has the same inputs as the first one, but from the previous block.
            if self._drawn[target.id] != target.id:
                continue
            inside = [self._places.has(op) for op in (source, target)]
            if not any(inside) or self._instance(source) == self._instance(target):
                continue
            ends = [self._end(op) for op in (source, target)]
            draft = self._edges.setdefault((ends[0], ends[1]), _EdgeDraft())
            drawn = self._labels[self._drawn[source.id]]
            draft.tensors.add((drawn.layer if self._rolled else str(drawn), link.output))
            draft.out_passes.add(self._number(source))
            draft.in_passes.add(self._number(target))
            if link.argument and self._places.closed(target) is None:
                draft.arguments[link.argument] = None

    def add_buffers(self) -> None:
        """The buffers that drawn ops use, each a node."""
        for op in self._trace.ops:
            if not self._is_drawn_as_op(op):
                continue
            for name, spec in self._flow.taken[op.id].buffers.items():
                if name not in self._nodes:
                    node = self._node(
                        "buffer",
                        name,
                        parent=self._box_around(op),
                        outputs=(spec,),
                        detail=NodeDetail(from_input=False),
                    )
                    self._nodes[name] = _NodeDraft(node, 1)
                self._edges.setdefault((name, self._name(op)), _EdgeDraft()).tensors.add((name, 0))

    def add_failure(self) -> None:
        """A mark where the forward raised."""
        raised = self._trace.failed or OpRecord(
            id=OpId(len(self._trace.ops)), function="", call=_failing_call(self._trace)
        )
        closed = self._places.closed(raised)
        if closed is not None and self._call_name(closed) in self._nodes:
            draft = self._nodes[self._call_name(closed)]
            detail = dataclasses.replace(draft.node.detail, failed=True)
            draft.node = dataclasses.replace(draft.node, detail=detail)
        elif self._places.has(raised):
            self._add_failure_node(raised)

    def graph(self) -> Graph:
        nodes = [*self._boxes.values(), *map(self._finished, self._nodes.values())]
        return Graph(
            nodes=tuple(sorted(nodes, key=lambda node: node.id)),
            edges=tuple(self._edge(*ends, draft) for ends, draft in self._edges.items()),
            pass_info=PassInfo(
                model=self._trace.model,
                op_count=sum(op.kind == "op" for op in self._trace.ops),
                cost=self._cost(op.id for op in self._trace.ops if op.kind == "op"),
                parameters=self._held,
                focus=self._places.focus,
                error=self._trace.error,
            ),
        )

    def _node(
        self,
        kind: NodeKind,
        name: str,
        *,
        parent: NodeId | None = None,
        path: str = "",
        outputs: tuple[TensorSpec, ...] = (),
        detail: NodeDetail,
    ) -> Node:
        node = Node(
            id=NodeId(self._next_id),
            kind=kind,
            parent=parent,
            path=path,
            name=name,
            outputs=outputs,
            detail=detail,
        )
        self._next_id += 1
        return node

    def _op_node(self, op: OpRecord) -> Node:
        module = self._places.module(op)
        return self._node(
            op.kind,
            self._name(op),
            parent=self._box_around(op),
            path=module or self._path(op),
            outputs=tuple(value.spec for value in op.outputs),
            detail=NodeDetail(
                op=op,
                is_module=bool(module),
                class_name=self._classes.get(module, "") if module else "",
                from_input=self._from_input[op.id],
                repetition=Repetition(passes=self._labels[op.id].passes if self._rolled else 1),
            ),
        )

    def _module_node(self, op: OpRecord, call: CallId) -> Node:
        record = self._trace.calls[call]
        return self._node(
            "call",
            self._call_name(call),
            parent=self._box_around(op),
            path=record.path,
            outputs=tuple(value.spec for value in record.outputs),
            detail=NodeDetail(
                op=op,
                class_name=self._classes.get(record.path, ""),
                repetition=self._repetition(call, op),
            ),
        )

    def _end(self, op: OpRecord) -> str:
        """The node at the end of an edge; a stub if it is outside of what is drawn."""
        name = self._name(self._trace.ops[self._drawn[op.id]])
        if name not in self._nodes:
            specs = tuple(value.spec for value in op.outputs)
            stub = self._node("stub", name, outputs=specs, detail=NodeDetail(op=op))
            self._nodes[name] = _NodeDraft(stub, self._number(op))
        return name

    def _add_failure_node(self, raised: OpRecord) -> None:
        taken = self._flow.follow(raised.operands)
        module = self._places.module(raised)
        node = self._node(
            "failure",
            "✗ raised",
            parent=self._box_around(raised),
            path=module or self._path(raised),
            detail=NodeDetail(
                op=raised if raised.function else None,
                is_module=bool(module),
                class_name=self._classes.get(module, "") if module else "",
                parameters=taken.parameters,
                failed=True,
            ),
        )
        self._nodes[node.name] = _NodeDraft(node, 1)
        links = list(links_into(raised, taken))
        if not raised.function:
            # The operands are not known, but the last op is.
            seen = [op for op in self._trace.ops if op.id not in self._flow.hidden]
            links = [Link(op.id, 0, raised.id) for op in seen[-1:]]
        for link in links:
            source = self._end(self._trace.ops[link.source])
            draft = self._edges.setdefault((source, node.name), _EdgeDraft())
            draft.tensors.add((source, link.output))
            if link.argument:
                draft.arguments[link.argument] = None

    def _finished(self, draft: _NodeDraft) -> Node:
        if not draft.own:
            return draft.node
        parameters = {
            name: spec for op in draft.own for name, spec in self._flow.taken[op].parameters.items()
        }
        detail = dataclasses.replace(
            draft.node.detail,
            parameters=parameters,
            op_count=len(draft.own),
            from_input=any(self._from_input[op] for op in draft.own),
            cost=self._cost(draft.ops),
        )
        return dataclasses.replace(draft.node, detail=detail)

    def _edge(self, source: str, target: str, draft: _EdgeDraft) -> Edge:
        return Edge(
            source=self._nodes[source].node.id,
            target=self._nodes[target].node.id,
            tensors=max(1, len(draft.tensors)),
            arguments=tuple(draft.arguments),
            out_passes=self._partial(source, draft.out_passes),
            in_passes=self._partial(target, draft.in_passes),
        )

    def _partial(self, name: str, numbers: Iterable[int]) -> tuple[int, ...]:
        """The passes of a node; empty if these are all of them."""
        found = tuple(sorted(numbers))
        if not self._rolled or len(found) >= self._nodes[name].node.detail.repetition.passes:
            return ()
        return found

    def _cost(self, ops: Iterable[OpId]) -> NodeCost:
        time_ns = size = flops = 0
        parameters: dict[str, int] = {}
        for op in (self._trace.ops[number] for number in ops):
            time_ns += op.end_ns - op.start_ns
            flops += self._flops.get(op.id, 0)
            if op.id not in self._flow.hidden:
                size += sum(value.spec.bytes for value in op.outputs)
            for name, spec in self._flow.taken[op.id].parameters.items():
                parameters[name] = spec.elements
        return NodeCost(
            time_ns=time_ns, parameters=sum(parameters.values()), bytes=size, flops=flops
        )

    def _box_around(self, op: OpRecord) -> NodeId | None:
        """The innermost box around an op; boxes that do not exist yet are created."""
        parent: NodeId | None = None
        for source in self._places.around(op):
            name = self._box_name(source)
            if name not in self._boxes:
                self._boxes[name] = self._box(name, source, parent, op)
            parent = self._boxes[name].id
        return parent

    def _box(self, name: str, source: BoxSource, parent: NodeId | None, op: OpRecord) -> Node:
        if isinstance(source, Repeat):
            repetition = Repetition(times=source.times, until=self._op_name(source.last))
            detail = NodeDetail(repetition=repetition)
            return self._node("repeat", name, parent=parent, detail=detail)
        path = self._trace.calls[source].path
        detail = NodeDetail(
            class_name=self._classes.get(path, ""), repetition=self._repetition(source, op)
        )
        return self._node("call", name, parent=parent, path=path, detail=detail)

    def _repetition(self, call: CallId, op: OpRecord) -> Repetition:
        run = self._places.repeat_of(call, op)
        passes = self._calls_of[self._trace.calls[call].path] if self._rolled else 1
        if run is None or run.last_call is None:
            return Repetition(passes=passes)
        return Repetition(passes=passes, times=run.times, until=self._call_name(run.last_call))

    def _path(self, op: OpRecord) -> str:
        return "" if op.call is None else self._trace.calls[op.call].path

    def _is_drawn_as_op(self, op: OpRecord) -> bool:
        return (
            self._places.has(op)
            and self._drawn[op.id] == op.id
            and op.id not in self._flow.hidden
            and self._places.closed(op) is None
        )

    def _instance(self, op: OpRecord) -> tuple[str, int]:
        closed = self._places.closed(op)
        return ("op", op.id) if closed is None else ("call", closed)

    def _number(self, op: OpRecord) -> int:
        closed = self._places.closed(op)
        return self._labels[op.id].number if closed is None else self._trace.calls[closed].number

    def _name(self, op: OpRecord) -> str:
        closed = self._places.closed(op)
        return self._op_name(op.id) if closed is None else self._call_name(closed)

    def _op_name(self, op: OpId) -> str:
        label = self._labels[op]
        return label.layer if self._rolled else str(label)

    def _call_name(self, call: CallId) -> str:
        record = self._trace.calls[call]
        path = record.path or self._trace.model
        if self._rolled or self._calls_of[record.path] == 1:
            return path
        return f"{path}:{record.number}"

    def _box_name(self, source: BoxSource) -> str:
        if isinstance(source, Repeat):
            return f"{self._op_name(source.start)} … {self._op_name(source.last)}"
        return self._call_name(source)


def _failing_call(trace: TraceRecord) -> CallId | None:
    """The innermost call that was running when the forward raised."""
    last = trace.ops[-1] if trace.ops else None
    busy = set(_lines(trace, last.call)) if last is not None else set()
    for call in _lines(trace, trace.calls[-1].id if trace.calls else None):
        ended = trace.calls[call].end_ns
        over = last is not None and 0 < ended < last.start_ns
        if call in busy or not (trace.calls[call].outputs or over):
            return call
    return None


def _lines(trace: TraceRecord, call: CallId | None) -> Iterator[CallId]:
    """A call and the calls around it, innermost first."""
    while call is not None:
        yield call
        call = trace.calls[call].parent
