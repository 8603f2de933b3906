"""The JSON of the page: runs, series, points, histograms, and the records of a whole run.

Each payload has the `version` of this format, which increases when a reader of the old format would
misread the new one. Records are written by `records.json_data`: a field at its default is left out.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchglass.analyse.call_graph import op_graph
from torchglass.analyse.class_source import read_class
from torchglass.analyse.memory import MemoryReport, Moment, devices_of
from torchglass.analyse.parameters import COUNT_FIELDS, count
from torchglass.analyse.receptive_field import field_lines
from torchglass.analyse.training_overview import HeatMaps, Statistic, loss_series
from torchglass.errors import StoreError
from torchglass.records.calls import Statistics
from torchglass.records.findings import Findings
from torchglass.records.json_data import to_json_data
from torchglass.records.measures import Footprint, Measures
from torchglass.records.model import Activations, Histogram, Model, Module, TensorSpec
from torchglass.records.run import Reader, SeriesId
from torchglass.records.step_points import FIELDS
from torchglass.records.trace import CallId, Graph, Node, TraceRecord
from torchglass.views.web.decimated_steps import (
    HistogramColumns,
    StepColumn,
    decimate,
    in_order,
)

if TYPE_CHECKING:
    from torchglass.views.web.answers import OpenRuns

Numbers = npt.NDArray[np.float64]

_MOST_MOMENTS = 2000
_MOST_COMPOSED = 400
"""The most ops of a trace whose receptive fields are computed."""
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
    fields = {} if trace is None else _receptive_fields(trace)
    nodes = [_node(_with_field(node, fields), specs) for node in record.nodes]
    edges = [
        [edge.source, edge.target, specs.place(edge.spec), edge.count] for edge in record.edges
    ]
    return {
        "graph": {"passes": record.passes, "nodes": nodes, "edges": edges, "specs": specs.written}
    }


def _receptive_fields(trace: TraceRecord) -> Mapping[tuple[str, str, int], str]:
    """What the output of each op and call sees of the input, by kind, path and number."""
    if len(trace.ops) > _MOST_COMPOSED:
        return {}
    lines = field_lines(trace)
    paths: dict[CallId | None, str] = {None: "", **{call.id: call.path for call in trace.calls}}
    found = {("op", paths[trace.ops[op].call], int(op)): line for op, line in lines.items()}
    for call in trace.calls:
        last = call.outputs[0].op if call.outputs else None
        found["call", call.path, call.number] = "" if last is None else lines.get(last, "")
    return found


def _with_field(node: Node, fields: Mapping[tuple[str, str, int], str]) -> Node:
    line = fields.get((node.kind, node.path, node.number))
    return replace(node, facts={**node.facts, "receptive field": line}) if line else node


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


def _node(node: Node, specs: _SpecTable) -> Payload:
    """A node; what has its usual value is left out."""
    optional: Payload = {
        "name": node.name,
        "number": node.number if node.number != 1 else None,
        "count": node.count if node.count != 1 else None,
        "facts": dict(node.facts),
        "inputs": [specs.place(spec) for spec in node.inputs],
        "outputs": [specs.place(spec) for spec in node.outputs],
    }
    parent = {} if node.parent is None else {"parent": node.parent}
    told = {name: value for name, value in optional.items() if value not in (None, "", {}, [])}
    return {"kind": node.kind, "path": node.path, **parent, **told}


def _list_of(record_type: type[Any], field: str) -> Callable[[Reader], Payload]:
    """The payload of a record that is one list."""

    def payload(reader: Reader) -> Payload:
        record = reader.document(record_type)
        return {field: [] if record is None else to_json_data(getattr(record, field))}

    return payload


def measures(reader: Reader) -> Payload:
    """Time, FLOPs and memory per module."""
    record = reader.document(Measures)
    return {"measures": None if record is None else to_json_data(record)}


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
    """The modules inside one that ran; containers such as a ModuleList are skipped."""
    for child in model.children(module):
        if rows.get(child.path):
            yield child, rows[child.path]
        else:
            yield from _timed_below(model, child, rows)


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
                {"path": one.path or "", "kind": one.kind, "op": one.op, "bytes": one.bytes}
                for one in report.peak_holders[:_MOST_HOLDERS]
            ],
        }
    }


def _decimated_moments(timeline: Sequence[Moment], peak: Moment | None) -> list[Moment]:
    """Moments reduced for a screen: the highest of each interval, and the peak."""
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
    numbers = attrgetter(*COUNT_FIELDS)
    counts = count(record)
    return {
        "model": to_json_data(record),
        "counts": {
            "fields": list(COUNT_FIELDS),
            "own": [numbers(row.own) for row in counts],
            "total": [numbers(row.total) for row in counts],
        },
    }


DOCUMENTS: Mapping[str, Callable[[Reader], Payload]] = {
    "model": model,
    "graph": graph,
    "findings": _list_of(Findings, "findings"),
    "measures": measures,
    "statistics": _list_of(Statistics, "modules"),
    "spans": spans,
    "activations": _list_of(Activations, "maps"),
    "memory": memory,
}
"""The records of a whole run by name; they change only with the revision of the run."""


def source(model: Model | None, class_name: str) -> Payload:
    """The code of a class of the model, if its file exists. No other file is ever read."""
    place = None if model is None else model.classes.get(class_name)
    code = None if place is None else read_class(place, class_name)
    return {"source": None if code is None else to_json_data(code)}


VERSION = 1
MOST_POINTS = 2000
"""Points of one series in one payload: more than a screen has pixel columns."""
MOST_SAVED_POINTS = 500
"""The same in a saved page, which carries all series."""
MOST_SAVED_COLUMNS = 120
"""Columns of a heat map in a saved page."""
MOST_CELLS = 240_000
"""Cells of a map of modules × steps in one payload."""
MOST_SAVED_CELLS = 60_000
"""The same in a saved page, which carries the maps of all statistics."""
_LEAST_MAP_COLUMNS, _MOST_SAVED_MAP_COLUMNS = 40, 300

Payload = dict[str, Any]

_USUAL = ("running", "finished")


def run_payload(reader: Reader) -> Payload:
    """The run and its status."""
    return {"version": VERSION, "run": _run_and_file(reader), "status": status(reader)}


def runs_payload(runs: OpenRuns) -> Payload:
    """All open runs, and which of them the first one is compared with."""
    return {
        "version": VERSION,
        "runs": [_run_and_file(reader) for reader in runs.readers],
        "compare": list(runs.compared),
        "grows": runs.grows,
        **({"table": True} if runs.folder is not None else {}),
        **({"reports": list(runs.report_kinds)} if runs.report_kinds else {}),
    }


def reports_payload(runs: OpenRuns) -> Payload:
    """What verbs returned about the first run."""
    return {"version": VERSION, "kinds": list(runs.report_kinds), "reports": runs.reports()}


def curve(path: str, steps: Numbers, values: Numbers) -> Payload:
    """The loss of a run of the folder, as few bytes as a chart of many needs."""
    with np.errstate(over="ignore"):  # What is too large for float32 is not drawn.
        points = np.concatenate([steps, values]).astype("<f4")
    return {"path": path, "points": base64.b64encode(points.tobytes()).decode("ascii")}


def _run_and_file(reader: Reader) -> Payload:
    """The record of a run; for a run file also its path and the id that links use."""
    run = reader.run()
    path = getattr(reader, "path", None)
    if path is None:
        return dict(to_json_data(run))
    # The id depends neither on the file's name nor on the other runs.
    file = path.name
    with contextlib.suppress(ValueError, OSError):
        # A path that can be opened from the working directory of the program.
        file = path.resolve().relative_to(Path.cwd()).as_posix()
    return {**to_json_data(run), "file": file, "id": f"{run.created_ns:x}-{run.rank}"}


def distances_payload(runs: OpenRuns, number: int, other: int) -> Payload:
    """The distances between the weights of two runs; null if they cannot be compared."""
    found = runs.distances(number, other)
    distances = {name: _number(value) for name, value in (found or {}).items()}
    return {"version": VERSION, "distances": None if found is None else distances}


def status(reader: Reader) -> Payload:
    """The progress of a run, and how it failed if it did."""
    how = reader.status()
    wrong = {"state": how.state, "how": how.full} if how.state not in _USUAL else {}
    return {
        "last_step": reader.last_step(),
        "finished": reader.finished(),
        "series": len(reader.series()),
        "revision": reader.revision(),
        **wrong,
    }


def status_mark(statuses: Sequence[Payload]) -> str:
    """A text that changes whenever a status does: the id of an event."""
    return ";".join(
        ".".join(
            value if isinstance(value, str) else str(int(value))
            for name, value in status.items()
            if name not in ("problem", "how")
        )
        for status in statuses
    )


def series_payload(reader: Reader, layers: HeatMaps) -> Payload:
    """All series, the fields of a point of each kind, and what an overview can show."""
    known = reader.series()
    loss = loss_series(known)
    return {
        "version": VERSION,
        "fields": to_json_data(FIELDS),
        "series": [to_json_data(series) for series in known],
        "loss": None if loss is None else loss.id,
        "layers": layers.available(),
    }


def points_payload(
    reader: Reader, series: Iterable[SeriesId], *, after: int = -1, limit: int = MOST_POINTS
) -> Payload:
    """The points of some series at steps above `after`, reduced to `limit` per series."""
    sent = []
    for found in reader.points_of(list(series), after=after):
        points = decimate(in_order(found), limit)
        names = FIELDS[points.series.kind]
        columns = {name: [_number(v) for v in points.column(name).tolist()] for name in names}
        sent.append(
            {"series": points.series.id, "steps": points.steps.tolist(), "columns": columns}
        )
    return {"version": VERSION, "points": sent}


def histograms_payload(
    histograms: HistogramColumns, series: Iterable[SeriesId], *, after: int = -1
) -> Payload:
    """The columns of some series with steps above `after`.

    `width` is the number of steps per column. When it changes, earlier columns are outdated.
    """
    ids = list(series)
    sent = [
        {
            "series": asked,
            "width": found.width,
            "columns": [_column(one) for one in found.columns if one.last_step > after],
        }
        for asked, found in zip(ids, histograms.columns_of(ids), strict=True)
    ]
    return {"version": VERSION, "histograms": sent}


def latest_histograms_payload(
    histograms: HistogramColumns, series: Iterable[SeriesId], *, step: int
) -> Payload:
    """The histogram of each series at a step or the last one before it; null if there is none."""
    ids = list(series)
    columns = [found.at(step) for found in histograms.columns_of(ids)]
    sent = [
        {"series": asked, "column": None if column is None else _column(column)}
        for asked, column in zip(ids, columns, strict=True)
    ]
    return {"version": VERSION, "step": step, "glances": sent}


def _column(column: StepColumn[Histogram]) -> list[Any]:
    """First and last step, exponent, first bin, counts, and the number of NaN and Inf."""
    bins, steps = column.content, (column.first_step, column.last_step)
    broken = bins.stats.nan + bins.stats.inf
    return [*steps, bins.exponent, bins.first, list(bins.counts), broken]


def heat_maps(reader: Reader, cells: int, most_columns: int) -> HeatMaps:
    """The heat maps of a run, with fewer columns the more modules the model has."""
    model = model_of(reader)
    rows = 1 if model is None else len(model.modules)
    columns = max(_LEAST_MAP_COLUMNS, min(most_columns, cells // rows))
    return HeatMaps(reader, columns=columns)


def layers_payload(layers: HeatMaps, statistic: Statistic, *, after: int = -1) -> Payload:
    """A statistic of modules × steps: the columns that have steps above `after`.

    A cell is the largest value of its steps, "NaN" if any of them is NaN or Inf, and null if
    nothing was recorded. Without `after` the paths of the rows are sent, too.
    """
    found = layers.of(statistic)
    new = int(np.searchsorted(found.last_steps, after, side="right"))
    paths: Payload = {"paths": list(found.paths)} if after < 0 else {}
    return {
        "version": VERSION,
        "title": found.title,
        "logarithmic": found.is_logarithmic,
        "rows": len(found.paths),
        **paths,
        "starts": found.steps.tolist(),
        "ends": found.last_steps.tolist(),
        "columns": [
            [_cell(*cell) for cell in zip(values, marks, strict=True)]
            for values, marks in zip(
                found.values.T[new:].tolist(), found.nonfinite.T[new:].tolist(), strict=True
            )
        ],
    }


def _cell(value: float, is_nonfinite: bool) -> float | str | None:
    if is_nonfinite:
        return "NaN"
    # Three digits: more than a color shows, and a third of the bytes.
    return None if math.isnan(value) else float(f"{value:.3g}") or 0


def document_payload(reader: Reader, name: str) -> Payload:
    """The model, or another record of the whole run."""
    return {"version": VERSION, **DOCUMENTS[name](reader)}


def snapshot(reader: Reader) -> Payload:
    """The whole run, for a saved page."""
    known = reader.series()
    layers = heat_maps(reader, MOST_SAVED_CELLS, _MOST_SAVED_MAP_COLUMNS)
    ids = [series.id for series in known]
    spread = [series.id for series in known if series.kind == "histogram"]
    model = model_of(reader)
    classes = model.classes if model is not None else ()
    own_classes = [name for name in classes if not name.startswith("torch.")]
    return {
        "run": run_payload(reader),
        **{name: document_payload(reader, name) for name in DOCUMENTS},
        "sources": {name: source(model, name)["source"] for name in own_classes},
        "series": series_payload(reader, layers),
        "points": points_payload(reader, ids, limit=MOST_SAVED_POINTS),
        "histograms": histograms_payload(HistogramColumns(reader, MOST_SAVED_COLUMNS), spread),
        "layers": {name: layers_payload(layers, name) for name in layers.available()},
    }


def to_json(payload: Payload) -> bytes:
    """A payload as ASCII text, so that no name can break the encoding."""
    try:
        text = json.dumps(payload, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_nonfinite_as_text(payload), separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def _nonfinite_as_text(value: Any) -> Any:
    """The same with NaN and Inf as text, which JSON cannot write as numbers."""
    if isinstance(value, dict):
        return {key: _nonfinite_as_text(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_nonfinite_as_text(each) for each in value]
    return _number(value) if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float) -> float | str:
    """Seven digits, the precision of float32; NaN and Inf as text that JavaScript can read."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return int(value) if value.is_integer() else float(f"{value:.7g}")
