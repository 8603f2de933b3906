"""The result of `flops`: what each module and op computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from torchglass.analyse.flops import Amount, ModuleFlops, OpFlops, add_up
from torchglass.analyse.latency import Latency, ModuleTime, latency
from torchglass.records.json_data import to_json_data
from torchglass.records.measures import FlopRecord
from torchglass.records.model import Model
from torchglass.records.timing import Stage, Timing
from torchglass.results.report import ModuleReport, RowsByPath, Sort, largest
from torchglass.tables.text import Column, Fact, file_column, number_column
from torchglass.views.formats import (
    NOT_RUN,
    format_bytes,
    format_flops,
    format_share,
    format_time,
    harmless,
)

CONVENTION = "1 multiply-add = 2 FLOPs = 1 MAC"
_COUNTED = (
    "matrix products and convolutions, 1 multiply-add = 2 FLOPs; masked attention counted in full"
)
_MOST_NAMED = 5


class Flops(ModuleReport[ModuleFlops]):
    """What each module and op of a model computes in one step; print it or export it.

    A multiplication and the addition of its product are two operations, and one MAC. Matrix
    products, convolutions and attention are counted, and all that is made of them. Elementwise
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
        """The ops that compute something and have no formula, the slowest first."""
        found = (op for op in self.ops if op.nature == "uncounted")
        return tuple(sorted(found, key=lambda op: (-(op.time_ns or 0), -op.calls)))

    @property
    def is_lower_bound(self) -> bool:
        """Whether some ops have no formula, so that there is more than was counted."""
        return bool(self.uncounted)

    @property
    def total_flops(self) -> int:
        """All that the step computes."""
        return self.forward_flops + self.backward_flops

    @property
    def total_macs(self) -> int:
        """The same in multiplications, each with its addition."""
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
        """What all ops read and write, as if there were no cache."""
        return self.root.total_bytes + self.unattributed.total_bytes

    @property
    def intensity(self) -> float | None:
        """Operations per byte moved."""
        return self.total_flops / self.total_bytes if self.total_bytes else None

    @property
    def flops_per_second(self) -> float | None:
        """How fast the model computed; None where it was not timed."""
        return self.speed(self.root)

    @property
    def uncounted_share(self) -> float | None:
        """The share of the time that uncounted ops took; None where it was not measured."""
        return self.share(self.uncounted)

    def share(self, ops: Iterable[OpFlops]) -> float | None:
        """The share of the time that some ops took; None where ops were not timed."""
        if not self.work.total_ns:
            return None
        return sum(op.time_ns or 0 for op in ops) / self.work.total_ns

    def time_ns(self, module: ModuleFlops) -> int | None:
        """How long a module took with all that it called; None where it was not timed."""
        if self.latency is None:
            return None
        if module.path is None:
            return self.latency.unattributed.total_ns
        return self.latency.modules.get(module.path, ModuleTime(path="")).total_ns

    def speed(self, module: ModuleFlops) -> float | None:
        """Operations per second of a module; None where it was not timed."""
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
            "total_flops": self.total_flops,
            "total_macs": self.total_macs,
            "forward_flops": self.forward_flops,
            "backward_flops": self.backward_flops,
            "recomputed_flops": self.recomputed_flops,
            "is_lower_bound": self.is_lower_bound,
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
            "forward": dataclasses.asdict(module.forward),
            "backward": dataclasses.asdict(module.backward),
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
        went_back, timed = self.work.backward, self.latency is not None
        return [
            *self._first_columns(spare=3),
            Column(
                "calls", "Calls", self._calls, spare=5, csv="calls", value=lambda row: row.calls
            ),
            *self._stage_columns("forward", "Forward" if went_back else "FLOPs"),
            *self._stage_columns("backward", "Backward" if went_back else ""),
            file_column("recomputed_flops", lambda row: row.recomputed_flops),
            file_column("total_flops", lambda row: row.total_flops),
            file_column("total_macs", lambda row: row.total_flops // 2),
            file_column("bytes", lambda row: row.total_bytes),
            number_column(
                "intensity",
                "FLOPs/byte",
                lambda row: row.intensity,
                _ratio,
                spare=4,
                csv="flops_per_byte",
            ),
            file_column("uncounted_calls", lambda row: row.uncounted_calls),
            number_column(
                "time", "Time" if timed else "", self.time_ns, _time, spare=2, csv="time_ns"
            ),
            number_column(
                "speed", "FLOP/s" if timed else "", self.speed, format_flops, csv="flops_per_second"
            ),
            file_column("share", lambda row: _fraction(row.total_flops, self.total_flops)),
        ]

    def _stage_columns(self, stage: Stage, heading: str) -> list[Column[ModuleFlops]]:
        """Total, self and share of a stage; without a heading only in files."""

        def amount(module: ModuleFlops) -> Amount:
            return module.forward if stage == "forward" else module.backward

        def total(module: ModuleFlops) -> str:
            more = "≥ " if module.uncounted_calls else ""
            return more + format_flops(amount(module).total_flops)

        def share(module: ModuleFlops) -> str:
            whole = self.forward_flops if stage == "forward" else self.backward_flops
            return _share(amount(module).total_flops, whole)

        return [
            Column(
                stage,
                heading,
                total,
                csv=f"{stage}_flops",
                value=lambda row: amount(row).total_flops,
            ),
            number_column(
                f"{stage}_self",
                heading and "self",
                lambda row: amount(row).self_flops,
                format_flops,
                spare=6,
                csv=f"{stage}_self_flops",
            ),
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
            Column("share", "Share", lambda op: _share(op.total_flops, self.total_flops), spare=-2),
            Column("bytes", "Moved", lambda op: format_bytes(op.bytes), spare=1),
            number_column("intensity", "FLOPs/byte", lambda op: op.intensity, _ratio, spare=2),
        ]
        whole_ns = self.work.total_ns
        if whole_ns:
            columns += [
                Column("time", "Time", lambda op: _share(op.time_ns or 0, whole_ns), spare=-1),
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
            facts.append(Fact("Speed", f"{fast} FLOP/s over {_time(time_ns) if time_ns else ''}"))
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

    def _is_listed(self, row: ModuleFlops, sort: Sort | None) -> bool:
        if sort == "self":
            return bool(row.self_flops)
        return bool(row.total_flops or row.uncounted_calls)


def _named(ops: Sequence[OpFlops]) -> str:
    named = [f"{harmless(op.op)} ×{op.calls:,}" for op in ops[:_MOST_NAMED]]
    left_out = len(ops) - len(named)
    return ", ".join(named) + (f" and {left_out:,} more" if left_out else "")


def _share(part: float, whole: float) -> str:
    return format_share(part, whole) if part else ""


def _fraction(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _ratio(ratio: float) -> str:
    return f"{ratio:.1f}"


def _time(time_ns: float) -> str:
    return format_time(time_ns / 1e9)
