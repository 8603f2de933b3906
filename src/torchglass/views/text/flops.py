"""What a model computes as text: a table of modules, a table of ops, and what is to be said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchglass.analyse.flops.adding import Amount, ModuleFlops, OpFlops
from torchglass.analyse.flops.report import FlopReport
from torchglass.analyse.flops.rows import Sort, rows
from torchglass.records.timing import Stage
from torchglass.views.columns import NOT_RUN
from torchglass.views.formats import format_bytes, format_share, format_time, harmless, shorten
from torchglass.views.formats import width as cells
from torchglass.views.text.guides import guides
from torchglass.views.text.table import align

_GAP = "  "
_LONGEST_NAME = 60
_MOST_NAMED = 5
_CONVENTION = (
    "products alone, each multiplication with its addition as two; masked attention in full"
)


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    text: Callable[[ModuleFlops, FlopReport], str]
    right: bool = True


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


def flops_table(report: FlopReport, *, sort: Sort | None = None, depth: int | None = None) -> str:
    """The modules below their headings, then what is to be said of the whole."""
    shown = rows(report, depth=depth, sort=sort)
    names = [
        guide + shorten(harmless(row.name), _LONGEST_NAME)
        for row, guide in zip(shown, guides(shown, "─"), strict=True)
    ]
    chosen = _columns(report)
    table = [["Module", *names]]
    table += [[one.title, *(one.text(row.flops, report) for row in shown)] for one in chosen]
    return _framed(table, [False, *(one.right for one in chosen)], _facts(report))


def op_table(report: FlopReport, count: int | None = 20) -> str:
    """The ops over the whole model, the largest first."""
    ops = report.ops if count is None else report.ops[:count]
    table = [
        ["Op", *(harmless(op.op) for op in ops)],
        ["Calls", *(f"{op.calls:,}" for op in ops)],
        ["Forward", *(_op_flops(op, op.forward_flops) for op in ops)],
    ]
    if report.work.backward:
        table += [["Backward", *(_op_flops(op, op.backward_flops) for op in ops)]]
    table += [
        ["Share", *(_share(op.total_flops, report.total_flops) for op in ops)],
        ["Moved", *(format_bytes(op.bytes) for op in ops)],
        ["FLOPs/byte", *(_ratio(op.intensity) for op in ops)],
    ]
    if report.work.total_ns:
        table += [
            ["Time", *(_share(op.time_ns or 0, report.work.total_ns) for op in ops)],
            ["FLOP/s", *(_speed(op.flops_per_second) for op in ops)],
        ]
    left_out = len(report.ops) - len(ops)
    more = [f"… and {left_out:,} more"] if left_out else []
    return _framed(table, [False, *[True] * (len(table) - 1)], more)


def _framed(table: Sequence[Sequence[str]], right: Sequence[bool], below: Sequence[str]) -> str:
    columns = [align(texts, right=end) for texts, end in zip(table, right, strict=True)]
    heading, *lines = (_GAP.join(line).rstrip() for line in zip(*columns, strict=True))
    rule = "─" * max(cells(line) for line in (heading, *lines, *below))
    return "\n".join([rule, heading, rule, *lines, rule, *below, *([rule] if below else [])])


def _columns(report: FlopReport) -> list[_Column]:
    columns = [_Column("Class", _class, right=False), _Column("Calls", _calls)]
    columns += _stage_columns("forward", "Forward" if report.work.backward else "FLOPs")
    if report.work.backward:
        columns += _stage_columns("backward", "Backward")
    columns.append(_Column("FLOPs/byte", lambda module, _: _ratio(module.intensity)))
    if report.latency is not None:
        columns += [
            _Column("Time", lambda module, of: _time(of.time_ns(module))),
            _Column("FLOP/s", lambda module, of: _speed(of.speed(module))),
        ]
    return columns


def _stage_columns(stage: Stage, title: str) -> list[_Column]:
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

    return [_Column(title, total), _Column("self", own), _Column("share", share)]


def _class(module: ModuleFlops, report: FlopReport) -> str:
    found = None if module.path is None else report.model.find(module.path)
    return "" if found is None else harmless(found.kind)


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


def _facts(report: FlopReport) -> list[str]:
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
        facts.append(("Free", f"{share} of the time: ops without products, which count as nothing"))
    if report.recomputed_flops:
        again = f"{report.recomputed_flops:,} of the backward is forward run again by checkpoints"
        facts.append(("Recomputed", again))
    if report.is_lower_bound:
        facts += [("Lower bound", _missing(report)), ("", _named(report.uncounted))]
    labels = align([label for label, _ in facts], right=False)
    return [
        *(f"{label}{_GAP}{text}" for label, (_, text) in zip(labels, facts, strict=True)),
        *(f"Note: {note}." for note in report.work.notes),
    ]


def _total(report: FlopReport) -> str:
    bound = "at least " if report.is_lower_bound else ""
    text = f"{bound}{report.total_flops:,} FLOPs = {report.total_macs:,} MACs"
    if not report.work.backward:
        return text
    return f"{text}: forward {report.forward_flops:,}, backward {report.backward_flops:,}"


def _missing(report: FlopReport) -> str:
    share, count = report.uncounted_share, len(report.uncounted)
    time = "" if share is None else f", which take {format_share(share, 1)} of the time"
    return f"no formula for {count} op{'s' * (count != 1)}{time}; tg.register_flops gives one"


def _named(ops: Sequence[OpFlops]) -> str:
    named = [f"{harmless(op.op)} ×{op.calls:,}" for op in ops[:_MOST_NAMED]]
    left_out = len(ops) - len(named)
    return ", ".join(named) + (f" and {left_out:,} more" if left_out else "")
