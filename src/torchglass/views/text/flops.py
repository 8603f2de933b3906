"""What a model computes as text: a table of modules, a table of ops, and what is to be said."""

from __future__ import annotations

from collections.abc import Sequence

from torchglass.analyse.flops import Amount, FlopReport, ModuleFlops, OpFlops, flop_rows
from torchglass.records.timing import Stage
from torchglass.tables.column import Column, TableOptions, find_columns
from torchglass.tables.text import (
    Cells,
    class_text,
    fact_lines,
    framed,
    left_out,
    module_table,
    note_lines,
)
from torchglass.views.formats import NOT_RUN, format_bytes, format_share, format_time, harmless

_MOST_NAMED = 5
_CONVENTION = (
    "matrix products and convolutions, 1 multiply-add = 2 FLOPs; masked attention counted in full"
)


_Column = Column[ModuleFlops, FlopReport]


def format_flops(count: float) -> str:
    """A number of operations with three digits and a unit: 3628146688 is "3.63 G"."""
    if count < 1000:
        return f"{count:.0f}"
    for unit in "KMGTP":
        count /= 1000
        # Rounded, 999.7 would be 1000.
        if count < 999.5:
            digits = 2 if count < 9.995 else 1 if count < 99.95 else 0
            return f"{count:.{digits}f} {unit}"
    return f"{count / 1000:.2f} E"


def flops_table(report: FlopReport, look: TableOptions) -> str:
    """The modules below their headings, then what is to be said of the whole."""
    columns = _columns(report)
    chosen = find_columns(columns if look.columns is None else look.columns, columns)
    shown = flop_rows(report, depth=look.depth, sort=look.sort)
    return module_table(shown, chosen, report, _facts(report, look.room), look)


def flop_op_table(report: FlopReport, count: int | None = 20, room: int | None = None) -> str:
    """The ops over the whole model, the largest first."""
    ops = report.ops[:count]
    columns = [
        Cells(["Op", *(harmless(op.op) for op in ops)], right=False),
        Cells(["Calls", *(f"{op.calls:,}" for op in ops)], spare=3),
        Cells(["Forward", *(_op_flops(op, op.forward_flops) for op in ops)]),
    ]
    if report.work.backward:
        columns.append(Cells(["Backward", *(_op_flops(op, op.backward_flops) for op in ops)]))
    columns += [
        Cells(["Share", *(_share(op.total_flops, report.total_flops) for op in ops)], spare=-2),
        Cells(["Moved", *(format_bytes(op.bytes) for op in ops)], spare=1),
        Cells(["FLOPs/byte", *(_ratio(op.intensity) for op in ops)], spare=2),
    ]
    if report.work.total_ns:
        columns += [
            Cells(
                ["Time", *(_share(op.time_ns or 0, report.work.total_ns) for op in ops)], spare=-1
            ),
            Cells(["FLOP/s", *(_speed(op.flops_per_second) for op in ops)]),
        ]
    return framed(columns, left_out(report.ops, ops), room=room)


def _columns(report: FlopReport) -> dict[str, _Column]:
    """The columns that there is something for, by their names."""
    columns = {
        "class": _Column("Class", _class, right=False, spare=3),
        "calls": _Column("Calls", _calls, spare=5),
        **_stage_columns("forward", "Forward" if report.work.backward else "FLOPs"),
    }
    if report.work.backward:
        columns |= _stage_columns("backward", "Backward")
    columns["intensity"] = _Column(
        "FLOPs/byte", lambda module, _: _ratio(module.intensity), spare=4
    )
    if report.latency is not None:
        columns["time"] = _Column("Time", lambda module, of: _time(of.time_ns(module)), spare=2)
        columns["speed"] = _Column("FLOP/s", lambda module, of: _speed(of.speed(module)))
    return columns


def _stage_columns(stage: Stage, title: str) -> dict[str, _Column]:
    def amount(module: ModuleFlops) -> Amount:
        return module.forward if stage == "forward" else module.backward

    def total(module: ModuleFlops, report: FlopReport) -> str:
        more = "≥ " if module.uncounted_calls else ""
        return more + format_flops(amount(module).total_flops)

    def own(module: ModuleFlops, report: FlopReport) -> str:
        flops = amount(module).self_flops
        return format_flops(flops) if flops else ""

    def share(module: ModuleFlops, report: FlopReport) -> str:
        whole = report.forward_flops if stage == "forward" else report.backward_flops
        return _share(amount(module).total_flops, whole)

    return {
        stage: _Column(title, total),
        f"{stage}_self": _Column("self", own, spare=6),
        f"{stage}_share": _Column("share", share, spare=1),
    }


def _class(module: ModuleFlops, report: FlopReport) -> str:
    return class_text(module, report.model)


def _calls(module: ModuleFlops, report: FlopReport) -> str:
    if module.path is None:
        return ""
    if module.calls:
        return f"{module.calls:,}"
    return "" if module.path in report.rows else NOT_RUN


def _op_flops(op: OpFlops, flops: int) -> str:
    return "?" if op.nature == "uncounted" else format_flops(flops)


def _share(part: float, whole: float) -> str:
    return format_share(part, whole) if part else ""


def _ratio(ratio: float | None) -> str:
    return f"{ratio:.1f}" if ratio else ""


def _time(time_ns: int | None) -> str:
    return format_time(time_ns / 1e9) if time_ns else ""


def _speed(speed: float | None) -> str:
    return format_flops(speed) if speed else ""


def _facts(report: FlopReport, room: int | None) -> list[str]:
    """What is said of the whole: how much, how fast, by which convention, and what is missing."""
    facts = [
        ("Total", _total(report)),
        ("Counted", _CONVENTION),
        (
            "Moved",
            f"{format_bytes(report.total_bytes)}, {_ratio(report.intensity) or 0} FLOPs/byte",
        ),
    ]
    if report.latency is not None:
        time = _time(report.time_ns(report.root))
        facts.append(("Speed", f"{_speed(report.flops_per_second) or 0} FLOP/s over {time}"))
    free = report.share(report.free)
    if free is not None:
        share = format_share(free, 1)
        facts.append(("Free", f"{share} of the time: ops that count as 0 FLOPs"))
    if report.recomputed_flops:
        again = f"{report.recomputed_flops:,} FLOPs of backward: recomputed by checkpointing"
        facts.append(("Recomputed", again))
    if report.is_lower_bound:
        facts += [("Lower bound", _missing(report)), ("", _named(report.uncounted))]
    return [*fact_lines(facts, room), *note_lines(report.work.notes, room)]


def _total(report: FlopReport) -> str:
    bound = "at least " if report.is_lower_bound else ""
    text = f"{bound}{report.total_flops:,} FLOPs = {report.total_macs:,} MACs"
    if not report.work.backward:
        return text
    return f"{text}: forward {report.forward_flops:,}, backward {report.backward_flops:,}"


def _missing(report: FlopReport) -> str:
    share, count = report.uncounted_share, len(report.uncounted)
    ops, take = ("1 op", "takes") if count == 1 else (f"{count} ops", "take")
    time = "" if share is None else f", which {take} {format_share(share, 1)} of the time"
    return f"no formula for {ops}{time}; add one with tg.register_flops"


def _named(ops: Sequence[OpFlops]) -> str:
    named = [f"{harmless(op.op)} ×{op.calls:,}" for op in ops[:_MOST_NAMED]]
    left_out = len(ops) - len(named)
    return ", ".join(named) + (f" and {left_out:,} more" if left_out else "")
