"""The records that a run keeps one of each, as the page is told of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torchglass.analyse.class_source import read_class
from torchglass.analyse.graph.op_graph import op_graph
from torchglass.analyse.memory import MemoryReport, Moment, devices_of
from torchglass.errors import StoreError
from torchglass.records.calls import Statistics
from torchglass.records.findings import Findings
from torchglass.records.graph import Graph, Node
from torchglass.records.json_data import to_json_data
from torchglass.records.measures import Footprint, Measures
from torchglass.records.model import Model, Module
from torchglass.records.reader import Reader
from torchglass.records.tensors import Activations, TensorSpec
from torchglass.records.trace import TraceRecord

Payload = dict[str, Any]

_MOST_MOMENTS = 2000
_MOST_HOLDERS = 15
_MOST_SPANS = 20_000
"""More would not be told apart on a screen; the innermost ones are left out first."""


def graph(reader: Reader) -> Payload:
    """How data flows; a node's id is its place in the list, a spec is written once."""
    trace = reader.document(TraceRecord)
    record = reader.document(Graph) if trace is None else op_graph(trace)
    if record is None:
        return {"graph": None}
    specs = _Interned()
    nodes = [_node(node, specs) for node in record.nodes]
    edges = [
        [edge.source, edge.target, specs.place(edge.spec), edge.count] for edge in record.edges
    ]
    return {
        "graph": {"passes": record.passes, "nodes": nodes, "edges": edges, "specs": specs.written}
    }


class _Interned:
    """Specs by their place in one list: a large graph has few different ones."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self._places: dict[TensorSpec, int] = {}

    def place(self, spec: TensorSpec | None) -> int:
        """Where a spec stands; -1 for none."""
        if spec is None:
            return -1
        if spec not in self._places:
            self._places[spec] = len(self.written)
            self.written.append(to_json_data(spec))
        return self._places[spec]

    def places(self, specs: Iterable[TensorSpec]) -> list[int]:
        return [self.place(spec) for spec in specs]


def _node(node: Node, specs: _Interned) -> Payload:
    plain: Payload = {"kind": node.kind, "path": node.path}
    if node.parent is not None:
        plain["parent"] = node.parent
    if node.name:
        plain["name"] = node.name
    if node.number != 1:
        plain["number"] = node.number
    if node.count != 1:
        plain["count"] = node.count
    if node.facts:
        plain["facts"] = dict(node.facts)
    if node.inputs:
        plain["inputs"] = specs.places(node.inputs)
    if node.outputs:
        plain["outputs"] = specs.places(node.outputs)
    return plain


def findings(reader: Reader) -> Payload:
    """The problems that were found, in the order in which they were."""
    record = reader.document(Findings)
    return {"findings": [] if record is None else to_json_data(record.findings)}


def measures(reader: Reader) -> Payload:
    """What modules take to run, a row for each."""
    record = reader.document(Measures)
    return {"measures": None if record is None else to_json_data(record)}


def statistics(reader: Reader) -> Payload:
    """The last calls of each module, with what went in and came out."""
    record = reader.document(Statistics)
    return {"modules": [] if record is None else to_json_data(record.modules)}


def spans(reader: Reader) -> Payload:
    """When the calls and ops of the traced pass ran: `[kind, name, depth, start_ns, end_ns]`."""
    trace = reader.document(TraceRecord)
    if trace is None:
        return _profiled(reader)
    depths: dict[int | None, int] = {None: -1}
    rows: list[list[Any]] = []
    for call in trace.calls:
        depths[call.id] = depths.get(call.parent, -1) + 1
        rows.append(["call", call.path, depths[call.id], call.start_ns, call.end_ns])
    rows += [
        ["op", op.function, depths.get(op.call, -1) + 1, op.start_ns, op.end_ns]
        for op in trace.ops
        if op.end_ns > op.start_ns
    ]
    rows = sorted(rows, key=lambda row: row[2])[:_MOST_SPANS]
    return {"spans": rows, "start_ns": trace.start_ns, "end_ns": trace.end_ns}


def _profiled(reader: Reader) -> Payload:
    """The measured forward times of modules as spans: each begins where the one before it ends.

    How much of them ran is known, but not when.
    """
    record, model = reader.document(Measures), model_of(reader)
    rows = {} if record is None else {row.path: row.total_forward_ns or 0 for row in record.rows}
    if model is None or not rows.get(model.root.path):
        return {"spans": []}
    spans: list[list[Any]] = []
    waiting = [(model.root, 0, 0, rows[model.root.path])]
    while waiting and len(spans) < _MOST_SPANS:
        module, depth, start, length = waiting.pop()
        spans.append(["call", module.path, depth, start, start + length])
        inner = list(_timed_below(model, module, rows))
        # Medians of parts may be more than the median of the whole.
        scale = min(1.0, length / (sum(taken for _, taken in inner) or 1))
        for child, taken in inner:
            waiting.append((child, depth + 1, start, round(taken * scale)))
            start += round(taken * scale)
    end = rows[model.root.path]
    return {"spans": spans, "start_ns": 0, "end_ns": end, "profiled": True}


def _timed_below(
    model: Model, module: Module, rows: Mapping[str, int]
) -> Iterator[tuple[Module, int]]:
    """The modules inside one that ran, past those that only hold others, such as a ModuleList."""
    for child in model.children(module):
        if rows.get(child.path):
            yield child, rows[child.path]
        else:
            yield from _timed_below(model, child, rows)


def activations(reader: Reader) -> Payload:
    """Small pictures of what modules put out."""
    record = reader.document(Activations)
    return {"maps": [] if record is None else to_json_data(record.maps)}


def memory(reader: Reader) -> Payload:
    """What one step takes of memory, change by change, and who holds it at the peak."""
    footprint, model = reader.document(Footprint), model_of(reader)
    if footprint is None or model is None:
        return {"memory": None}
    report = MemoryReport(footprint, model, devices_of(footprint)[0])
    return {
        "memory": {
            "device": report.device,
            "before_bytes": report.before_bytes,
            "moments": [
                [one.time_ns, one.live_bytes, one.phase, one.path or "", one.op]
                for one in _thinned(report.timeline, report.peak)
            ],
            "holders": [
                {
                    "path": holder.path or "",
                    "kind": holder.kind,
                    "op": holder.op,
                    "bytes": holder.bytes,
                }
                for holder in report.peak_holders[:_MOST_HOLDERS]
            ],
        }
    }


def _thinned(timeline: Sequence[Moment], peak: Moment | None) -> list[Moment]:
    """Few enough moments for a screen, the highest of each stretch, and the peak for sure."""
    each = -(-len(timeline) // _MOST_MOMENTS) or 1
    stretches = (timeline[at : at + each] for at in range(0, len(timeline), each))
    kept = [max(stretch, key=lambda moment: moment.live_bytes) for stretch in stretches]
    return kept if peak is None or peak in kept else sorted([*kept, peak])


def model_of(reader: Reader) -> Model | None:
    """The model, or None while the run has none."""
    try:
        return reader.model()
    except StoreError:
        return None


DOCUMENTS: Mapping[str, Callable[[Reader], Payload]] = {
    "graph": graph,
    "findings": findings,
    "measures": measures,
    "statistics": statistics,
    "spans": spans,
    "activations": activations,
    "memory": memory,
}
"""What can be asked for by name, and how it is told."""


def source(model: Model | None, class_name: str) -> Payload:
    """The code of a class of the model, where its file is here. No other file is ever read."""
    place = None if model is None else model.classes.get(class_name)
    code = None if place is None else read_class(place, class_name)
    return {"source": None if code is None else to_json_data(code)}
