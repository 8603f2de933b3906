"""The result of `flops`: what each module and op computes, added up from the ops that were counted.

A module's total includes inner calls. What checkpointing recomputes counts as backward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from torchglass.analyse.latency import Latency, ModuleTime, latency
from torchglass.analyse.sibling_order import MeasureSort
from torchglass.records.json_data import to_json_data
from torchglass.records.measures import (
    FlopRecord,
    FlopStatus,
    OpFlopRecord,
    Stage,
    Timing,
)
from torchglass.records.model import Model, holders_of
from torchglass.results.report import ModuleReport, RowsByPath, fraction, largest
from torchglass.tables.text import (
    NOT_RUN,
    Column,
    Fact,
    format_bytes,
    format_flops,
    format_ns,
    format_share,
    harmless,
    number_column,
    share_text,
)

CONVENTION = "1 multiply-add = 2 FLOPs = 1 MAC"
_COUNTED = (
    "matrix products and convolutions, 1 multiply-add = 2 FLOPs; masked attention counted in full"
)
_TOTALS = (
    *("total_flops", "total_macs", "forward_flops", "backward_flops", "recomputed_flops"),
    "is_lower_bound",
)
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """FLOPs and bytes of one direction, without and with inner calls."""

    self_flops: int = 0
    total_flops: int = 0
    self_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFlops:
    """What all calls of one op computed."""

    op: str
    """torch's name with its namespace: "aten.addmm"."""
    nature: FlopStatus
    calls: int
    forward_flops: int = 0
    backward_flops: int = 0
    bytes: int = 0
    time_ns: int | None = None
    """None if ops were not timed."""

    @property
    def total_flops(self) -> int:
        """Forward and backward together."""
        return self.forward_flops + self.backward_flops

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte read and written."""
        return self.total_flops / self.bytes if self.bytes else None

    @property
    def flops_per_second(self) -> float | None:
        """Its speed; None if it was not timed."""
        return 1e9 * self.total_flops / self.time_ns if self.time_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFlops:
    """What one module computes."""

    path: str | None
    """None for what ran outside of all modules, such as a loss."""
    calls: int = 0
    forward: Amount = field(default_factory=Amount)
    backward: Amount = field(default_factory=Amount)
    recomputed_flops: int = 0
    """The part of its backward that checkpointing recomputed, inner calls included."""
    uncounted_calls: int = 0
    """Calls of ops without a formula, inner calls included."""
    ops: tuple[OpFlops, ...] = ()
    """Its own, without those of inner calls; the largest first."""

    @property
    def self_flops(self) -> int:
        """Both directions, without inner calls."""
        return self.forward.self_flops + self.backward.self_flops

    @property
    def total_flops(self) -> int:
        """Both directions, inner calls included."""
        return self.forward.total_flops + self.backward.total_flops

    @property
    def total_bytes(self) -> int:
        """What all its ops read and write."""
        return self.forward.total_bytes + self.backward.total_bytes

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte read and written."""
        return self.total_flops / self.total_bytes if self.total_bytes else None


class FlopSums(NamedTuple):
    """The FLOPs of a step for each module and each op."""

    modules: Mapping[str, ModuleFlops]
    """All modules that were called and their containers, by path; the model itself is ""."""
    unattributed: ModuleFlops
    ops: tuple[OpFlops, ...]
    """Over the whole model, the largest first."""


def add_up(work: FlopRecord) -> FlopSums:
    """The FLOPs of a step, added up for each module and each op."""
    own: dict[int | None, list[OpFlopRecord]] = defaultdict(list)
    for op in work.ops:
        own[op.place].append(op)
    calls: dict[str, int] = {"": 0}
    for place in work.places:
        calls[place.path] = calls.get(place.path, 0) + place.calls
    selves: dict[str, list[OpFlopRecord]] = defaultdict(list)
    totals: dict[str, list[OpFlopRecord]] = defaultdict(list)
    for index, place in enumerate(work.places):
        selves[place.path] += own[index]
        for path in holders_of(work.places, index, calls):
            totals[path] += own[index]
    return FlopSums(
        modules={
            path: _module(path, calls.get(path, 0), selves[path], totals[path])
            for path in dict.fromkeys([*calls, *totals])
        },
        unattributed=_module(None, 0, own[None], own[None]),
        ops=_ops(work.ops),
    )


def _module(
    path: str | None, calls: int, selves: list[OpFlopRecord], totals: list[OpFlopRecord]
) -> ModuleFlops:
    return ModuleFlops(
        path=path,
        calls=calls,
        forward=_amount(selves, totals, backward=False),
        backward=_amount(selves, totals, backward=True),
        recomputed_flops=sum(op.flops for op in totals if op.stage == "recompute"),
        uncounted_calls=sum(op.calls for op in totals if op.nature == "uncounted"),
        ops=_ops(selves),
    )


def _amount(selves: list[OpFlopRecord], totals: list[OpFlopRecord], *, backward: bool) -> Amount:
    own = [op for op in selves if (op.stage != "forward") == backward]
    every = [op for op in totals if (op.stage != "forward") == backward]
    return Amount(
        self_flops=sum(op.flops for op in own),
        total_flops=sum(op.flops for op in every),
        self_bytes=sum(op.bytes for op in own),
        total_bytes=sum(op.bytes for op in every),
    )


def _ops(work: Iterable[OpFlopRecord]) -> tuple[OpFlops, ...]:
    groups: dict[tuple[str, FlopStatus], list[OpFlopRecord]] = defaultdict(list)
    for op in work:
        groups[op.op, op.nature].append(op)
    found = [
        OpFlops(
            op=name,
            nature=nature,
            calls=sum(op.calls for op in group),
            forward_flops=sum(op.flops for op in group if op.stage == "forward"),
            backward_flops=sum(op.flops for op in group if op.stage != "forward"),
            bytes=sum(op.bytes for op in group),
            time_ns=_time(group),
        )
        for (name, nature), group in groups.items()
    ]
    return tuple(sorted(found, key=lambda op: (-op.total_flops, -op.bytes)))


def _time(group: Iterable[OpFlopRecord]) -> int | None:
    times = [op.time_ns for op in group if op.time_ns is not None]
    return sum(times) if times else None


class Flops(ModuleReport[ModuleFlops]):
    """What each module and op of a model computes in one step; print it or export it.

    A multiplication and the addition of its product are two FLOPs, and one MAC. Matrix
    products, convolutions and attention are counted, and everything built from them. Elementwise
    ops, norms, softmax and pooling are not.
    """

    _total_size, _self_size = "total_flops", "self_flops"

    def __init__(self, model: Model, work: FlopRecord, timing: Timing | None = None) -> None:
        self.model = model
        self.work = work
        self.timing = timing
        sums = add_up(work)
        self.rows = RowsByPath(sums.modules)
        self.root = sums.modules[""]
        """What the whole model computes."""
        self.unattributed = sums.unattributed
        self.ops: tuple[OpFlops, ...] = sums.ops
        """What each op computes over the whole model, the largest first."""

    @cached_property
    def latency(self) -> Latency | None:
        """How long each module took; None where it was not timed."""
        return None if self.timing is None else latency(self.timing)

    @property
    def free(self) -> tuple[OpFlops, ...]:
        """The ops without products, which count as 0."""
        return tuple(op for op in self.ops if op.nature == "free")

    @property
    def uncounted(self) -> tuple[OpFlops, ...]:
        """The ops that have no formula, the slowest first."""
        found = (op for op in self.ops if op.nature == "uncounted")
        return tuple(sorted(found, key=lambda op: (-(op.time_ns or 0), -op.calls)))

    @property
    def is_lower_bound(self) -> bool:
        """Whether some ops have no formula, so the true count is higher."""
        return bool(self.uncounted)

    @property
    def total_flops(self) -> int:
        """All that the step computes."""
        return self.forward_flops + self.backward_flops

    @property
    def total_macs(self) -> int:
        """The same in multiply-adds."""
        return self.total_flops // 2

    @property
    def forward_flops(self) -> int:
        """What the forward and the loss compute."""
        return self.root.forward.total_flops + self.unattributed.forward.total_flops

    @property
    def backward_flops(self) -> int:
        """What the backward computes, including what checkpointing recomputes."""
        return self.root.backward.total_flops + self.unattributed.backward.total_flops

    @property
    def recomputed_flops(self) -> int:
        """The part of the backward that checkpointing recomputes."""
        return self.root.recomputed_flops + self.unattributed.recomputed_flops

    @property
    def total_bytes(self) -> int:
        """The bytes that all ops read and write, assuming no cache."""
        return self.root.total_bytes + self.unattributed.total_bytes

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte read and written."""
        return self.total_flops / self.total_bytes if self.total_bytes else None

    @property
    def flops_per_second(self) -> float | None:
        """FLOPs per second of the model; None if it was not timed."""
        return self.speed(self.root)

    @property
    def uncounted_share(self) -> float | None:
        """The share of the time that uncounted ops took; None if ops were not timed."""
        return self.share(self.uncounted)

    def share(self, ops: Iterable[OpFlops]) -> float | None:
        """The share of the time that some ops took; None if ops were not timed."""
        if not self.work.total_ns:
            return None
        return sum(op.time_ns or 0 for op in ops) / self.work.total_ns

    def time_ns(self, module: ModuleFlops) -> int | None:
        """How long a module took, inner calls included; None if it was not timed."""
        if self.latency is None:
            return None
        if module.path is None:
            return self.latency.unattributed.total_ns
        return self.latency.modules.get(module.path, ModuleTime(path="")).total_ns

    def speed(self, module: ModuleFlops) -> float | None:
        """FLOPs per second of a module; None if it was not timed."""
        time_ns = self.time_ns(module)
        return 1e9 * module.total_flops / time_ns if time_ns else None

    def op_table(self, count: int | None = 20, *, width: int | None = None) -> str:
        """The largest ops as a table; a `count` of None shows all."""
        return largest(self._op_columns(), self.ops, count, width)

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers."""
        return {
            "model": self.model.name,
            "convention": CONVENTION,
            "backward": self.work.backward,
            "fake": self.work.fake,
            **{name: getattr(self, name) for name in _TOTALS},
            "uncounted": [self._op_dict(op) for op in self.uncounted],
            "uncounted_share": self.uncounted_share,
            "bytes": self.total_bytes,
            "flops_per_byte": self.intensity,
            "flops_per_second": self.flops_per_second,
            "notes": list(self.work.notes),
            "modules": [self._module_dict(module) for module in self.rows.values()],
            "unattributed": self._module_dict(self.unattributed),
            "ops": [self._op_dict(op) for op in self.ops],
        }

    def _module_dict(self, module: ModuleFlops) -> dict[str, Any]:
        return {
            "path": module.path,
            "class": self._class(module),
            "calls": module.calls,
            "forward": asdict(module.forward),
            "backward": asdict(module.backward),
            "recomputed_flops": module.recomputed_flops,
            "flops_per_byte": module.intensity,
            "uncounted_calls": module.uncounted_calls,
            "time_ns": self.time_ns(module),
            "flops_per_second": self.speed(module),
            "ops": [self._op_dict(op) for op in module.ops],
        }

    def _op_dict(self, op: OpFlops) -> dict[str, Any]:
        return {
            **to_json_data(op),
            "total_flops": op.total_flops,
            "flops_per_byte": op.intensity,
            "flops_per_second": op.flops_per_second,
            "share": self.share([op]),
        }

    def _columns(self) -> Sequence[Column[ModuleFlops]]:
        def intensity(row: ModuleFlops) -> float | None:
            return row.intensity

        went_back = self.work.backward
        time, speed = ("", "") if self.latency is None else ("Time", "FLOP/s")
        return [
            *self._first_columns(spare=3),
            Column("calls", "Calls", self._calls, spare=5, value=lambda row: row.calls),
            *self._stage_columns("forward", "Forward" if went_back else "FLOPs"),
            *self._stage_columns("backward", "Backward" if went_back else ""),
            Column("recomputed_flops", value=lambda row: row.recomputed_flops),
            Column("total_flops", value=lambda row: row.total_flops),
            Column("total_macs", value=lambda row: row.total_flops // 2),
            Column("bytes", value=lambda row: row.total_bytes),
            number_column(
                "intensity", "FLOPs/byte", intensity, _ratio, spare=4, csv="flops_per_byte"
            ),
            Column("uncounted_calls", value=lambda row: row.uncounted_calls),
            number_column("time", time, self.time_ns, format_ns, spare=2, csv="time_ns"),
            number_column("speed", speed, self.speed, format_flops, csv="flops_per_second"),
            Column("share", value=lambda row: fraction(row.total_flops, self.total_flops)),
        ]

    def _stage_columns(self, stage: Stage, heading: str) -> list[Column[ModuleFlops]]:
        """Total, self and share of a stage; without a heading only in files."""

        whole = self.forward_flops if stage == "forward" else self.backward_flops

        def total(row: ModuleFlops) -> int:
            return (row.forward if stage == "forward" else row.backward).total_flops

        def own(row: ModuleFlops) -> int:
            return (row.forward if stage == "forward" else row.backward).self_flops

        def text(row: ModuleFlops) -> str:
            return "≥ " * bool(row.uncounted_calls) + format_flops(total(row))

        def share(row: ModuleFlops) -> str:
            return share_text(total(row), whole)

        key, title, csv = f"{stage}_self", heading and "self", f"{stage}_self_flops"
        return [
            Column(stage, heading, text, csv=f"{stage}_flops", value=total),
            number_column(key, title, own, format_flops, spare=6, csv=csv),
            Column(f"{stage}_share", heading and "share", share, spare=1),
        ]

    def _op_columns(self) -> list[Column[OpFlops]]:
        def flops(count: Callable[[OpFlops], int]) -> Callable[[OpFlops], str]:
            return lambda op: "?" if op.nature == "uncounted" else format_flops(count(op))

        columns: list[Column[OpFlops]] = [
            Column("op", "Op", lambda op: harmless(op.op), right=False),
            Column("calls", "Calls", lambda op: f"{op.calls:,}", spare=3),
            Column("forward", "Forward", flops(lambda op: op.forward_flops)),
        ]
        if self.work.backward:
            columns.append(Column("backward", "Backward", flops(lambda op: op.backward_flops)))
        columns += [
            Column(
                "share", "Share", lambda op: share_text(op.total_flops, self.total_flops), spare=-2
            ),
            Column("bytes", "Moved", lambda op: format_bytes(op.bytes), spare=1),
            number_column("intensity", "FLOPs/byte", lambda op: op.intensity, _ratio, spare=2),
        ]
        whole_ns = self.work.total_ns
        if whole_ns:
            columns += [
                Column("time", "Time", lambda op: share_text(op.time_ns or 0, whole_ns), spare=-1),
                number_column("speed", "FLOP/s", lambda op: op.flops_per_second, format_flops),
            ]
        return columns

    def _calls(self, module: ModuleFlops) -> str:
        if module.path is None:
            return ""
        if module.calls:
            return f"{module.calls:,}"
        return "" if module.path in self.rows else NOT_RUN

    def _facts(self) -> list[Fact]:
        """How much, how fast, by which convention, and what is missing."""
        intensity = _ratio(self.intensity) if self.intensity else 0
        facts = [
            Fact("Total", self._total()),
            Fact("Counted", _COUNTED),
            Fact("Moved", f"{format_bytes(self.total_bytes)}, {intensity} FLOPs/byte"),
        ]
        if self.latency is not None:
            speed, time_ns = self.flops_per_second, self.time_ns(self.root)
            fast = format_flops(speed) if speed else 0
            over = format_ns(time_ns) if time_ns else ""
            facts.append(Fact("Speed", f"{fast} FLOP/s over {over}"))
        free = self.share(self.free)
        if free is not None:
            share = format_share(free, 1)
            facts.append(Fact("Free", f"{share} of the time: ops that count as 0 FLOPs"))
        if self.recomputed_flops:
            again = f"{self.recomputed_flops:,} FLOPs of backward: recomputed by checkpointing"
            facts.append(Fact("Recomputed", again))
        if self.is_lower_bound:
            facts += [Fact("Lower bound", self._missing()), Fact("", _named(self.uncounted))]
        return facts

    def _notes(self) -> list[str]:
        return list(self.work.notes)

    def _total(self) -> str:
        bound = "at least " if self.is_lower_bound else ""
        text = f"{bound}{self.total_flops:,} FLOPs = {self.total_macs:,} MACs"
        if not self.work.backward:
            return text
        return f"{text}: forward {self.forward_flops:,}, backward {self.backward_flops:,}"

    def _missing(self) -> str:
        share, count = self.uncounted_share, len(self.uncounted)
        ops, take = ("1 op", "takes") if count == 1 else (f"{count} ops", "take")
        time = "" if share is None else f", which {take} {format_share(share, 1)} of the time"
        return f"no formula for {ops}{time}; add one with tg.register_flops"

    def _is_listed(self, row: ModuleFlops, sort: MeasureSort | None) -> bool:
        if sort == "self":
            return bool(row.self_flops)
        return bool(row.total_flops or row.uncounted_calls)


def _named(ops: Sequence[OpFlops]) -> str:
    named = [f"{harmless(op.op)} ×{op.calls:,}" for op in ops[:_MOST_NAMED]]
    left_out = len(ops) - len(named)
    return ", ".join(named) + (f" and {left_out:,} more" if left_out else "")


def _ratio(ratio: float) -> str:
    return f"{ratio:.1f}"
