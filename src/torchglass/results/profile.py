"""The result of `profile`: how long each module and op takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torchglass.analyse.latency import Latency, ModuleTime, OpTime, Times, latency
from torchglass.analyse.parameters import Counts, ModuleCounts, count
from torchglass.analyse.sibling_order import MeasureSort
from torchglass.errors import ViewError
from torchglass.records.measures import Span, Stage, Timing
from torchglass.records.model import Model, Module
from torchglass.records.trace import CallRecord, Value
from torchglass.results.report import ModuleReport, RowsByPath, fraction, full_name, largest
from torchglass.tables.export import File, written
from torchglass.tables.text import (
    NOT_RUN,
    Column,
    Fact,
    first_shape,
    format_bytes,
    format_count,
    format_ns,
    format_share,
    harmless,
    pad,
    plural,
    shape_text,
    shorten,
    shortened,
    width,
    wrapped,
)

_PROCESS = {"pid": 0, "tid": 0}
_NS_PER_US = 1e3


def chrome_trace(timing: Timing, model: str) -> dict[str, Any]:
    """The published run in Chrome's trace event format; arrows lead from ops to their backwards."""
    names = (("process_name", model), ("thread_name", timing.clock))
    headers = [{"ph": "M", "name": key, "args": {"name": name}, **_PROCESS} for key, name in names]
    return {
        "displayTimeUnit": "ms",
        "otherData": {"model": model, "clock": timing.clock},
        "traceEvents": [*headers, *_events(timing.spans, model)],
    }


def _events(spans: Sequence[Span], model: str) -> Iterator[dict[str, Any]]:
    origin = min((span.start_ns for span in spans), default=0)
    paths: list[str] = []
    for number, span in enumerate(spans):
        is_module = span.kind == "module"
        owner = paths[span.owner] if span.owner is not None else ""
        paths.append(span.name if is_module else owner)
        yield {
            "ph": "X",
            "cat": span.kind,
            "name": (span.name or model) if is_module else span.name,
            "ts": (span.start_ns - origin) / _NS_PER_US,
            "dur": span.total_ns / _NS_PER_US,
            "args": {"module": paths[-1], "cpu_us": span.cpu_ns / _NS_PER_US},
            **_PROCESS,
        }
        if span.kind == "node" and span.owner is not None and span.owner != span.parent:
            maker = spans[span.owner]
            arrow = {"cat": "backward", "name": "backward of", "id": number, **_PROCESS}
            yield {"ph": "s", "ts": (maker.start_ns - origin) / _NS_PER_US, **arrow}
            yield {"ph": "f", "bp": "e", "ts": (span.start_ns - origin) / _NS_PER_US, **arrow}


_MUCH = 1.25
_DISTURBED = "measuring each op takes much of the time; ops=False has less overhead"
_MOST_NAMED = 5
_LONGEST_NAME = 40


class Profile(ModuleReport[ModuleTime]):
    """How long each module and op of a model takes; print it or export it.

    The times are those of one run, the fastest, so that they add up: the self times of all `rows`
    and of `unattributed` add up to the total of `root`, and so do those of all `ops`.
    """

    _total_size, _self_size = "total_ns", "self_ns"

    def __init__(self, model: Model, calls: Sequence[CallRecord], timing: Timing) -> None:
        self.model = model
        self.calls = calls
        self.timing = timing
        self.latency: Latency = latency(timing)
        self.rows = RowsByPath(self.latency.modules)
        self.root = self.latency.root
        """How long the whole model took."""
        self.unattributed = self.latency.unattributed
        """What belongs to no module: autograd itself, and the backward of the loss."""
        self.ops: tuple[OpTime, ...] = self.latency.ops
        """How long ops took, all calls of one op in one module together, slowest first."""

    @cached_property
    def _counts(self) -> Sequence[ModuleCounts]:
        return count(self.model)

    def op_table(self, count: int | None = 20, *, width: int | None = None) -> str:
        """The slowest ops as a table; a `count` of None shows all."""
        whole = self.root.total_ns

        def op_name(op: OpTime) -> str:
            return harmless(op.op) or ("autograd" if op.path is None else "between ops")

        columns: list[Column[OpTime]] = [
            Column("op", "Op", op_name, right=False),
            Column("module", "Module", lambda op: self._path_text(op.path), right=False),
            Column("calls", "Calls", lambda op: str(op.calls or ""), spare=1),
            Column("forward", "Forward", lambda op: _total(op.forward)),
            Column("backward", "Backward", lambda op: _total(op.backward)),
            Column("share", "Share", lambda op: format_share(op.self_ns, whole), spare=-1),
        ]
        return largest(columns, self.ops, count, width)

    def overlay(
        self, *paths: str, memory: Mapping[str, int] | None = None, width: int | None = None
    ) -> str:
        """Each layer with its parameters, shapes, forward, backward and memory.

        Args:
            paths: The layers; by default all that ran and have parameters or no children.
            memory: Bytes of activations by path, where they are known.
            width: Terminal columns to wrap lines at.
        """
        return _overlay(self, paths, memory or {}, width)

    def to_chrome_trace(self, file: File) -> Path:
        """Write the run as a trace for chrome://tracing or ui.perfetto.dev; returns the path."""
        written(json.dumps(chrome_trace(self.timing, self.model.name)), file)
        return Path(file)

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers."""
        found, timing = self.latency, self.timing
        return {
            "model": self.model.name,
            "clock": timing.clock,
            "threads": timing.threads,
            "warmup": timing.warmup,
            "repeats": len(timing.runs),
            "published": timing.published,
            "total_ns": found.root.total_ns,
            "loss_ns": found.loss_ns,
            "busy": found.busy,
            "overhead": found.overhead,
            "notes": list(timing.notes),
            "modules": [self._module_dict(path, time) for path, time in self.rows.items()],
            "unattributed": self._stage_dicts(self.unattributed),
            "ops": [
                {"op": op.op, "path": op.path, "calls": op.calls, **self._stage_dicts(op)}
                for op in self.ops
            ],
        }

    def _module_dict(self, path: str, time: ModuleTime) -> dict[str, Any]:
        call = self._first_calls.get(path)
        values = call.outputs if call else ()
        return {
            "path": path,
            "class": self._class(time),
            "calls": time.calls,
            "outputs": [value.spec.shape and list(value.spec.shape) for value in values],
            **self._stage_dicts(time),
        }

    def _stage_dicts(self, time: ModuleTime) -> dict[str, Any]:
        return {
            "forward": _times_dict(time.forward, self.root.forward),
            "backward": _times_dict(time.backward, self.root.backward),
        }

    def _columns(self) -> Sequence[Column[ModuleTime]]:
        return [
            *self._first_columns(spare=2),
            Column("output", "Output", self._output, right=False, spare=3),
            Column("parameters", "Params", self._parameters, spare=6),
            Column("calls", "Calls", self._calls, spare=4, value=lambda row: row.calls),
            *self._stage_columns("forward"),
            *self._stage_columns("backward"),
            Column("spread", "Spread", _spread, spare=7),
        ]

    def _stage_columns(self, stage: Stage) -> list[Column[ModuleTime]]:
        title, whole = stage.capitalize(), _stage(self.root, stage)

        def column(
            key: str, heading: str, text: Callable[[Times], str], *, usual: bool, spare: int = 0
        ) -> Column[ModuleTime]:
            def cell(row: ModuleTime) -> str:
                times = _stage(row, stage)
                return "" if times is None else text(times)

            return Column(f"{stage}{key}", heading, cell, spare=spare, usual=usual)

        def number(key: str, value: Callable[[Times], float | None]) -> Column[ModuleTime]:
            def cell(row: ModuleTime) -> float | None:
                times = _stage(row, stage)
                return None if times is None else value(times)

            return Column(f"{stage}_{key}", value=cell)

        def share(times: Times) -> str:
            return format_share(times.total_ns, whole.total_ns) if whole else ""

        def median(times: Times) -> str:
            low, high = times.spread_ns
            return f"{_ns(times.median_ns)} ({_ns(low)}–{_ns(high)})"

        ran = whole is not None
        return [
            column("", title, _total, usual=ran),
            column("_self", "self", lambda times: _ns(times.self_ns), usual=ran, spare=5),
            column("_share", "share", share, usual=ran, spare=1),
            column("_cpu", f"{title} CPU", lambda times: _ns(times.cost.total_cpu_ns), usual=False),
            column("_median", f"{title} median", median, usual=False),
            number("self_ns", lambda times: times.self_ns),
            number("total_ns", lambda times: times.total_ns),
            number("share", lambda times: fraction(times.total_ns, whole.total_ns if whole else 0)),
            number("self_cpu_ns", lambda times: times.cost.self_cpu_ns),
            number("total_cpu_ns", lambda times: times.cost.total_cpu_ns),
            number("median_ns", lambda times: times.median_ns),
            number("lower_quartile_ns", lambda times: times.spread_ns[0]),
            number("upper_quartile_ns", lambda times: times.spread_ns[1]),
        ]

    def _output(self, time: ModuleTime) -> str:
        call = None if time.path is None else self._first_calls.get(time.path)
        return first_shape(call.outputs) if call else ""

    def _parameters(self, time: ModuleTime) -> str:
        module = None if time.path is None else self.model.find(time.path)
        return "" if module is None else format_count(self._counts[module.id].total.parameters)

    def _calls(self, time: ModuleTime) -> str:
        if time.path is None:
            return ""
        return str(time.calls or "") if time.stages else NOT_RUN

    def _facts(self) -> list[Fact]:
        """Both stages over all runs, how they were measured, and what belongs to no module."""
        root, overhead = self.root, self.latency.overhead
        facts = [
            Fact(title, _stage_fact(times))
            for title, times in (("Forward", root.forward), ("Backward", root.backward))
            if times is not None
        ]
        facts.append(Fact("Runs", _runs_fact(self.timing)))
        if overhead is not None:
            measured = f"≈ {max(overhead, 1):.2f}× the CPU time of an unmeasured run"
            facts.append(Fact("Measuring", measured))
        times = self.unattributed.backward
        if times is not None and root.backward is not None and times.total_ns:
            share = format_share(times.total_ns, root.backward.total_ns)
            what = "the loss, autograd itself and the timers"
            facts.append(Fact("Unattributed", f"{share} of backward belongs to no module: {what}"))
        return facts

    def _notes(self) -> list[str]:
        """Doubts about the measurement, and rows that may be larger than the row above them."""
        found = self.latency
        notes = list(self.timing.notes)
        has_ops = any(op.op and op.forward for op in found.ops)
        if found.overhead is not None and found.overhead > _MUCH and has_ops:
            notes.append(_DISTURBED)
        if found.busy is not None:
            notes.append(
                f"wall time is {found.busy:.1f}× CPU time: the machine is busy or the model "
                "waits, so trust the CPU times"
            )
        callers: dict[str, set[str]] = {}
        for call in self.calls:
            if call.parent is not None:
                callers.setdefault(call.path, set()).add(self.calls[call.parent].path)
        shared = [harmless(path) for path, paths in callers.items() if len(paths) > 1]
        if shared:
            more = f" and {len(shared) - _MOST_NAMED} more" if len(shared) > _MOST_NAMED else ""
            named = f"{', '.join(shared[:_MOST_NAMED])}{more}"
            notes.append(f"called from several modules: {named}; the row counts all calls")
        return notes

    def _below(self, room: int | None) -> list[str]:
        """Also the modules with the largest self times, and their share of the total time."""
        times = sorted(self.rows.values(), key=lambda time: -time.self_ns)[:_MOST_NAMED]
        named = [
            f"{shorten(harmless(full_name(time.path, self.model)), _LONGEST_NAME)} "
            f"{format_share(time.self_ns, self.root.total_ns)}"
            for time in times
            if time.self_ns
        ]
        line = f"Slowest: {', '.join(named)} (share of the total time, without children)"
        slowest = wrapped(line, room) if len(self.rows) > 1 and named else []
        return [*super()._below(room), *slowest]

    def _is_listed(self, row: ModuleTime, sort: MeasureSort | None) -> bool:
        return bool(row.stages)


def _stage(time: ModuleTime, stage: Stage) -> Times | None:
    return time.forward if stage == "forward" else time.backward


def _times_dict(times: Times | None, whole: Times | None) -> dict[str, Any] | None:
    if times is None:
        return None
    return {
        "self_ns": times.self_ns,
        "total_ns": times.total_ns,
        "self_cpu_ns": times.cost.self_cpu_ns,
        "total_cpu_ns": times.cost.total_cpu_ns,
        "share": fraction(times.total_ns, whole.total_ns if whole else 0),
        "median_ns": times.median_ns,
        "spread_ns": list(times.spread_ns),
        "median_self_ns": times.median_self_ns,
        "self_spread_ns": list(times.self_spread_ns),
        "runs_ns": [cost.total_ns for cost in times.runs],
    }


def _spread(time: ModuleTime) -> str:
    return "" if time.spread is None else f"±{100 * time.spread / 2:.0f}%"


def _total(times: Times | None) -> str:
    return "" if times is None else _ns(times.total_ns)


def _ns(nanoseconds: float) -> str:
    return format_ns(nanoseconds) if nanoseconds else "0"


def _stage_fact(times: Times) -> str:
    low, high = times.spread_ns
    cost = times.cost
    return (
        f"{_ns(cost.total_ns)}, CPU {_ns(cost.total_cpu_ns)}; "
        f"median {_ns(times.median_ns)}, middle half {_ns(low)} to {_ns(high)}"
    )


def _runs_fact(timing: Timing) -> str:
    runs = len(timing.runs)
    which = f"; showing run {timing.published + 1}, the fastest" if runs > 1 else ""
    where = plural(timing.threads, "thread") if timing.clock == "host" else f"on {timing.clock}"
    return f"{runs} after {timing.warmup} warm-up runs, {where}{which}"


_GAP = "   "
_ARMS = ("├─ forward()", "├─ backward()", "└─ memory")


def _overlay(
    profile: Profile, paths: Iterable[str], memory: Mapping[str, int], room: int | None
) -> str:
    """Four lines for each layer.

    layer1.0.conv1  36.9K params   Shape: 64×64×3×3   Time: 1.23ms   Mem: 144.0 KB
    ├─ forward()    ⚡ 850.00μs     Input: 1×64×56×56   Output: 1×64×56×56
    ├─ backward()   ⚡ 380.00μs     Gradient: computed
    └─ memory       📊 144.0 KB     Parameters: 36,864 × 4 bytes
    """
    found = ((path, time, profile.model.find(path)) for path, time in profile.rows.items())
    layers = [
        path
        for path, time, module in found
        if module is not None and time.calls and (module.slots or not module.children)
    ]
    blocks = [_block(profile, path, memory.get(path)) for path in list(paths) or layers]
    first, second = (
        max((width(line[column]) for block in blocks for line in block), default=0)
        for column in (0, 1)
    )
    if room is not None:
        first = min(first, max(room // 4, width(_ARMS[1])))

    def text(name: str, amount: str, *rest: str) -> str:
        before = _GAP.join((pad(shortened(name, first), first), pad(amount, second), ""))
        return "\n".join(wrapped(_GAP.join(rest), room, before=before))

    return "\n\n".join("\n".join(text(*line) for line in block) for block in blocks)


def _block(profile: Profile, path: str, activations: int | None) -> list[Sequence[str]]:
    time, module = profile.latency.modules.get(path), profile.model.find(path)
    if time is None or module is None:
        raise ViewError(f"no module {path!r} ran; profile.rows lists the modules that did")
    own = profile._counts[module.id].total
    held = format_bytes(own.bytes + (activations or 0))
    weights = [shape_text(slot.spec) for slot in module.slots if slot.role != "buffer"]
    forward, backward, memory = _ARMS
    call = profile._first_calls.get(path)
    return [
        (
            harmless(path) or harmless(profile.model.name),
            f"{format_count(own.parameters)} params",
            *[f"Shape: {shape}" for shape in weights[:1]],
            f"Time: {format_ns(time.total_ns)}",
            f"Mem: {held}",
        ),
        (
            forward,
            _flash(time.forward),
            f"Input: {_shapes(call.inputs if call else ())}",
            f"Output: {_shapes(call.outputs if call else ())}",
        ),
        (backward, _flash(time.backward), f"Gradient: {'computed' if time.backward else 'none'}"),
        (memory, f"📊 {held}", *_memory(module, own, activations)),
    ]


def _flash(times: Times | None) -> str:
    return "⚡ –" if times is None else f"⚡ {format_ns(times.total_ns)}"


def _shapes(values: Sequence[Value]) -> str:
    return ", ".join(shape_text(value.spec) for value in values) or "no tensor"


def _memory(module: Module, held: Counts, activations: int | None) -> Iterator[str]:
    parameters = [slot.spec for slot in module.slots if slot.role == "parameter"]
    count = sum(spec.elements for spec in parameters)
    sizes = {spec.bytes // spec.elements for spec in parameters if spec.elements}
    if len(sizes) == 1 and count * next(iter(sizes)) == held.parameter_bytes:
        yield f"Parameters: {count:,} × {sizes.pop()} bytes"
    else:
        yield f"Parameters: {format_bytes(held.parameter_bytes)}"
    if held.buffer_bytes:
        yield f"Buffers: {format_bytes(held.buffer_bytes)}"
    if activations is not None:
        yield f"Activations: {format_bytes(activations)}"
