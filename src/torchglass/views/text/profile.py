"""A profile as text: tables of modules and ops, and the performance overlay.

layer1.0.conv1  36.9K params   Shape: 64×64×3×3   Time: 1.23ms   Mem: 144.0 KB
├─ forward()    ⚡ 850.00μs     Input: 1×64×56×56   Output: 1×64×56×56
├─ backward()   ⚡ 380.00μs     Gradient: computed
└─ memory       📊 144.0 KB     Parameters: 36,864 × 4 bytes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torchglass.analyse.latency import Latency, ModuleTime, OpTime, Times, latency_rows
from torchglass.analyse.module_rows import full_name
from torchglass.analyse.parameters import Counts, ModuleCounts, count
from torchglass.errors import ViewError
from torchglass.records.model import Model, Module
from torchglass.records.timing import Stage, Timing
from torchglass.records.trace import CallRecord, Value
from torchglass.tables.column import Column, TableOptions, find_columns
from torchglass.tables.text import (
    Cells,
    class_text,
    fact_lines,
    framed,
    left_out,
    module_table,
    note_lines,
    path_text,
    shortened,
    wrapped,
)
from torchglass.views.formats import (
    NOT_RUN,
    first_shape,
    format_bytes,
    format_count,
    format_share,
    format_time,
    harmless,
    pad,
    shape_text,
    shorten,
    width,
)

_MUCH = 1.25
_DISTURBED = "measuring each op takes much of the time; ops=False has less overhead"
_SLOWEST = 5
_MOST_NAME = 40


@dataclass(frozen=True)
class Profiled:
    """All that the views of a profile show."""

    model: Model
    calls: Sequence[CallRecord]
    """Of one forward, for the shapes."""
    timing: Timing
    latency: Latency

    @cached_property
    def first_calls(self) -> Mapping[str, CallRecord]:
        """The first call of each module."""
        return {call.path: call for call in reversed(self.calls)}

    @cached_property
    def _counts(self) -> Sequence[ModuleCounts]:
        return count(self.model)

    def module(self, time: ModuleTime) -> Module | None:
        """The module of a row; None for one made as the model ran, and for what no module owns."""
        return None if time.path is None else self.model.find(time.path)

    def counts(self, module: Module) -> ModuleCounts:
        """What a module holds."""
        return self._counts[module.id]

    def share(self, time: ModuleTime, stage: Stage) -> str:
        """A row's part of the whole model's time in a stage, in percent."""
        own, whole = times_of(time, stage), times_of(self.latency.root, stage)
        return format_share(own.total_ns, whole.total_ns) if own and whole else ""


_Column = Column[ModuleTime, Profiled]


def profile_table(profiled: Profiled, look: TableOptions) -> str:
    """The modules below their headings, then what is to be said of the whole."""
    went_back = profiled.latency.root.backward is not None
    usual = (name for name in _USUAL if went_back or not name.startswith("backward"))
    chosen = find_columns(usual if look.columns is None else look.columns, COLUMNS)
    shown = latency_rows(profiled.latency, profiled.model, depth=look.depth, sort=look.sort)
    return module_table(shown, chosen, profiled, _facts(profiled, look.room), look)


def profile_op_table(profiled: Profiled, count: int | None = 20, room: int | None = None) -> str:
    """The slowest ops, all calls of one op in one module together."""
    ops = profiled.latency.ops
    shown = ops[:count]
    whole = profiled.latency.root.total_ns
    paths = (path_text(op.path, profiled.model) for op in shown)
    columns = [
        Cells(["Op", *(harmless(op.op) or _rest(op) for op in shown)], right=False),
        Cells(["Module", *paths], right=False),
        Cells(["Calls", *(str(op.calls or "") for op in shown)], spare=1),
        Cells(["Forward", *(_time(op.forward) for op in shown)]),
        Cells(["Backward", *(_time(op.backward) for op in shown)]),
        Cells(["Share", *(format_share(op.self_ns, whole) for op in shown)], spare=-1),
    ]
    return framed(columns, left_out(ops, shown), room=room)


def times_of(time: ModuleTime, stage: Stage) -> Times | None:
    """What a row took in a stage."""
    return time.forward if stage == "forward" else time.backward


def _rest(op: OpTime) -> str:
    return "autograd" if op.path is None else "between ops"


def _class(time: ModuleTime, profiled: Profiled) -> str:
    return class_text(time, profiled.model)


def _output(time: ModuleTime, profiled: Profiled) -> str:
    call = profiled.first_calls.get(time.path) if time.path is not None else None
    return first_shape(call.outputs) if call else ""


def _parameters(time: ModuleTime, profiled: Profiled) -> str:
    module = profiled.module(time)
    return "" if module is None else format_count(profiled.counts(module).total.parameters)


def _calls(time: ModuleTime, profiled: Profiled) -> str:
    if time.path is None:
        return ""
    return str(time.calls or "") if time.stages else NOT_RUN


def _spread(time: ModuleTime, profiled: Profiled) -> str:
    return "" if time.spread is None else f"±{100 * time.spread / 2:.0f}%"


def _time(times: Times | None) -> str:
    return "" if times is None else _ns(times.total_ns)


def _of_stage(stage: Stage, text: Callable[[Times], str]) -> Callable[[ModuleTime, Profiled], str]:
    def column(time: ModuleTime, profiled: Profiled) -> str:
        times = times_of(time, stage)
        return "" if times is None else text(times)

    return column


def _stage_columns(stage: Stage, title: str) -> dict[str, _Column]:
    def median(times: Times) -> str:
        low, high = times.spread_ns
        return f"{_ns(times.median_ns)} ({_ns(low)}–{_ns(high)})"

    return {
        stage: _Column(title, _of_stage(stage, _time)),
        f"{stage}_self": _Column(
            "self", _of_stage(stage, lambda times: _ns(times.self_ns)), spare=5
        ),
        f"{stage}_share": _Column("share", lambda time, of: of.share(time, stage), spare=1),
        f"{stage}_cpu": _Column(
            f"{title} CPU", _of_stage(stage, lambda times: _ns(times.cost.total_cpu_ns))
        ),
        f"{stage}_median": _Column(f"{title} median", _of_stage(stage, median)),
    }


def _ns(nanoseconds: float) -> str:
    return format_time(nanoseconds / 1e9) if nanoseconds else "0"


COLUMNS: Mapping[str, _Column] = {
    "class": _Column("Class", _class, right=False, spare=2),
    "output": _Column("Output", _output, right=False, spare=3),
    "parameters": _Column("Params", _parameters, spare=6),
    "calls": _Column("Calls", _calls, spare=4),
    **_stage_columns("forward", "Forward"),
    **_stage_columns("backward", "Backward"),
    "spread": _Column("Spread", _spread, spare=7),
}
_USUAL = (
    *("class", "output", "parameters", "calls", "forward", "forward_self", "forward_share"),
    *("backward", "backward_self", "backward_share", "spread"),
)


def _facts(profiled: Profiled, room: int | None) -> list[str]:
    """What is said of the whole: both stages over all runs, how it was measured, what to doubt."""
    found, timing = profiled.latency, profiled.timing
    facts = [
        (title, _stage_fact(times))
        for title, times in (("Forward", found.root.forward), ("Backward", found.root.backward))
        if times is not None
    ]
    facts.append(("Runs", _runs_fact(timing)))
    notes = [*timing.notes]
    if found.overhead is not None:
        facts.append(
            ("Measuring", f"≈ {max(found.overhead, 1):.2f}× the CPU time of an unmeasured run")
        )
        has_ops = any(op.op and op.forward for op in found.ops)
        if found.overhead > _MUCH and has_ops:
            notes.append(_DISTURBED)
    if found.busy is not None:
        notes.append(
            f"wall time is {found.busy:.1f}× CPU time: the machine is busy or the model waits, "
            "so trust the CPU times"
        )
    facts += _unattributed_fact(found)
    notes += _shared_note(profiled)
    slowest = [line for text in _slowest(profiled) for line in wrapped(text, room)]
    return [*fact_lines(facts, room), *note_lines(notes, room), *slowest]


def _shared_note(profiled: Profiled) -> Iterator[str]:
    """Which rows may be larger than the row above them, and why."""
    callers: dict[str, set[str]] = {}
    for call in profiled.calls:
        if call.parent is not None:
            callers.setdefault(call.path, set()).add(profiled.calls[call.parent].path)
    shared = [harmless(path) for path, paths in callers.items() if len(paths) > 1]
    if shared:
        more = f" and {len(shared) - _SLOWEST} more" if len(shared) > _SLOWEST else ""
        named = f"{', '.join(shared[:_SLOWEST])}{more}"
        yield f"called from several modules: {named}; the row counts all calls"


def _unattributed_fact(found: Latency) -> Iterator[tuple[str, str]]:
    """What the row means that is no module's."""
    times, whole = found.unattributed.backward, found.root.backward
    if times is not None and whole is not None and times.total_ns:
        share = format_share(times.total_ns, whole.total_ns)
        what = "the loss, autograd itself and the timers"
        yield "Unattributed", f"{share} of backward belongs to no module: {what}"


def _slowest(profiled: Profiled) -> Iterator[str]:
    """The modules that took most themselves, with their share of forward and backward."""
    found = profiled.latency
    times = sorted(found.modules.values(), key=lambda time: -time.self_ns)[:_SLOWEST]
    told = [
        f"{shorten(harmless(full_name(time.path, profiled.model)), _MOST_NAME)} "
        f"{format_share(time.self_ns, found.root.total_ns)}"
        for time in times
        if time.self_ns
    ]
    if len(found.modules) > 1 and told:
        yield f"Slowest: {', '.join(told)} (share of the total time, without children)"


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
    threads = f"{timing.threads} thread{'s' * (timing.threads != 1)}"
    where = threads if timing.clock == "host" else f"on {timing.clock}"
    return f"{runs} after {timing.warmup} warm-up runs, {where}{which}"


_GAP = "   "
_ARMS = ("├─ forward()", "├─ backward()", "└─ memory")


def overlay_text(
    profiled: Profiled,
    paths: Iterable[str] = (),
    memory: Mapping[str, int] | None = None,
    room: int | None = None,
) -> str:
    """The layers of these paths, or else all that ran and have parameters or no children.

    `memory` gives the bytes of activations by path, where they are known.
    """
    chosen = list(paths) or list(_layers(profiled))
    blocks = [_block(profiled, path, (memory or {}).get(path)) for path in chosen]
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


def _layers(profiled: Profiled) -> Iterator[str]:
    for path, time in profiled.latency.modules.items():
        module = profiled.module(time)
        if module is not None and time.calls and (module.slots or not module.children):
            yield path


def _block(profiled: Profiled, path: str, activations: int | None) -> list[Sequence[str]]:
    time, module = profiled.latency.modules.get(path), profiled.model.find(path)
    if time is None or module is None:
        raise ViewError(f"no module {path!r} ran; profile.rows lists those that did")
    own = profiled.counts(module).total
    held = format_bytes(own.bytes + (activations or 0))
    forward, backward, memory = _ARMS
    call = profiled.first_calls.get(path)
    return [
        (
            harmless(path) or harmless(profiled.model.name),
            f"{format_count(own.parameters)} params",
            *_weight(module),
            f"Time: {format_time(time.total_ns / 1e9)}",
            f"Mem: {held}",
        ),
        (
            forward,
            _flash(time.forward),
            f"Input: {_shapes(call.inputs if call else ())}",
            f"Output: {_shapes(call.outputs if call else ())}",
        ),
        (backward, _flash(time.backward), f"Gradient: {_gradient(time)}"),
        (memory, f"📊 {held}", *_memory(module, own, activations)),
    ]


def _weight(module: Module) -> list[str]:
    shapes = [shape_text(slot.spec) for slot in module.slots if slot.role != "buffer"]
    return [f"Shape: {shapes[0]}"] if shapes else []


def _flash(times: Times | None) -> str:
    return "⚡ –" if times is None else f"⚡ {format_time(times.total_ns / 1e9)}"


def _gradient(time: ModuleTime) -> str:
    return "computed" if time.backward is not None else "none"


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
