"""The JSON of the records that a run has one of each: model, graph, findings, memory and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from torchglass.analyse.class_source import read_class
from torchglass.analyse.graph.op_graph import op_graph
from torchglass.analyse.memory import MemoryReport, Moment, devices_of
from torchglass.analyse.parameters import Counts, count
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
"""A screen cannot show more; the innermost spans are left out first."""


def graph(reader: Reader) -> Payload:
    """The graph; a node's id is its index in the list, and equal specs are written once."""
    trace = reader.document(TraceRecord)
    record = reader.document(Graph) if trace is None else op_graph(trace)
    if record is None:
        return {"graph": None}
    specs = _SpecTable()
    nodes = [_node(node, specs) for node in record.nodes]
    edges = [
        [edge.source, edge.target, specs.place(edge.spec), edge.count] for edge in record.edges
    ]
    return {
        "graph": {"passes": record.passes, "nodes": nodes, "edges": edges, "specs": specs.written}
    }


class _SpecTable:
    """Specs by their index in one list: a large graph has few different ones."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self._places: dict[TensorSpec, int] = {}

    def place(self, spec: TensorSpec | None) -> int:
        """The index of a spec; -1 for None."""
        if spec is None:
            return -1
        if spec not in self._places:
            self._places[spec] = len(self.written)
            self.written.append(to_json_data(spec))
        return self._places[spec]

    def places(self, specs: Iterable[TensorSpec]) -> list[int]:
        return [self.place(spec) for spec in specs]


def _node(node: Node, specs: _SpecTable) -> Payload:
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
    """The findings, in the order in which they were found."""
    record = reader.document(Findings)
    return {"findings": [] if record is None else to_json_data(record.findings)}


def measures(reader: Reader) -> Payload:
    """Time, FLOPs and memory per module."""
    record = reader.document(Measures)
    return {"measures": None if record is None else to_json_data(record)}


def statistics(reader: Reader) -> Payload:
    """The last calls of each module, with their inputs and outputs."""
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
    """The measured forward times of modules as spans.

    Only durations are known, so each span starts where the previous one ends.
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
        # The medians of the parts may add up to more than the median of the whole.
        scale = min(1.0, length / (sum(taken for _, taken in inner) or 1))
        for child, taken in inner:
            waiting.append((child, depth + 1, start, round(taken * scale)))
            start += round(taken * scale)
    end = rows[model.root.path]
    return {"spans": spans, "start_ns": 0, "end_ns": end, "profiled": True}


def _timed_below(
    model: Model, module: Module, rows: Mapping[str, int]
) -> Iterator[tuple[Module, int]]:
    """The modules inside one that ran, skipping pure containers such as a ModuleList."""
    for child in model.children(module):
        if rows.get(child.path):
            yield child, rows[child.path]
        else:
            yield from _timed_below(model, child, rows)


def activations(reader: Reader) -> Payload:
    """Small pictures of module outputs."""
    record = reader.document(Activations)
    return {"maps": [] if record is None else to_json_data(record.maps)}


def memory(reader: Reader) -> Payload:
    """The memory of one step over time, and what holds it at the peak."""
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
                for one in _decimated_moments(report.timeline, report.peak)
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


def _decimated_moments(timeline: Sequence[Moment], peak: Moment | None) -> list[Moment]:
    """Few enough moments for a screen: the highest of each interval, and the peak."""
    each = -(-len(timeline) // _MOST_MOMENTS) or 1
    intervals = (timeline[at : at + each] for at in range(0, len(timeline), each))
    kept = [max(interval, key=lambda moment: moment.live_bytes) for interval in intervals]
    return kept if peak is None or peak in kept else sorted([*kept, peak])


def model_of(reader: Reader) -> Model | None:
    """The model, or None if the run has none yet."""
    try:
        return reader.model()
    except StoreError:
        return None


def model(reader: Reader) -> Payload:
    """The structure, and the counts of each module: its own, and with all modules below it."""
    record = model_of(reader)
    if record is None:
        return {"model": None}
    names = [field.name for field in fields(Counts)]
    numbers = attrgetter(*names)
    counts = count(record)
    return {
        "model": to_json_data(record),
        "counts": {
            "fields": names,
            "own": [numbers(row.own) for row in counts],
            "total": [numbers(row.total) for row in counts],
        },
    }


DOCUMENTS: Mapping[str, Callable[[Reader], Payload]] = {
    "model": model,
    "graph": graph,
    "findings": findings,
    "measures": measures,
    "statistics": statistics,
    "spans": spans,
    "activations": activations,
    "memory": memory,
}
"""The records of a whole run by name; they change only with the revision of the run."""


def source(model: Model | None, class_name: str) -> Payload:
    """The code of a class of the model, if its file exists. No other file is ever read."""
    place = None if model is None else model.classes.get(class_name)
    code = None if place is None else read_class(place, class_name)
    return {"source": None if code is None else to_json_data(code)}
