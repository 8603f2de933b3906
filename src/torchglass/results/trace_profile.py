"""The result of `profile` on a file: the times in a trace that `torch.profiler` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchglass.analyse.kineto_trace import OUTSIDE, DeviceTime, TraceTimes, Work
from torchglass.results.report import ListReport, fraction, largest
from torchglass.tables.text import (
    Column,
    Fact,
    csv_rows,
    format_ns,
    format_share,
    harmless,
    number_column,
    plural,
    select_columns,
    share_text,
    shorten,
)

_LONGEST_NAME = 72
_MOST_DEVICES = 2


class TraceProfile(ListReport[Work]):
    """Kernel, idle and copy time of a trace file, by module; print it or export it.

    Without modules or `record_function` ranges in the file, `entries` are kernels. Without a
    device, the time is that of ops on the CPU.
    """

    def __init__(self, name: str, times: TraceTimes, problem: str = "") -> None:
        self.name = name
        self.times = times
        """Everything that was worked out."""
        self.problem = problem
        """Why not all of the file was read; "" if it was."""
        self.entries = times.by_module or times.by_name

    @property
    def title(self) -> str:
        """The name of the file."""
        return self.name

    @property
    def kernels(self) -> tuple[Work, ...]:
        """The kernels by name, or without a device the ops, the largest first."""
        return self.times.by_name

    @property
    def answer(self) -> str:
        """How busy the devices were, and what took longest, in one sentence."""
        times, what = self.times, self._what
        parts = [self._device_text(one) for one in times.devices[:_MOST_DEVICES]]
        if more := len(times.devices) - len(parts):
            parts.append(f"and {plural(more, 'more device')}")
        if not parts:
            parts = [f"no kernels of a GPU; {what}s took {_time(times.work_ns)} on the CPU"]
        named = [one for one in self.entries if one.name != OUTSIDE and one.self_ns]
        if named:
            slowest = max(named, key=lambda one: one.self_ns)
            group = "module or range" if times.by_module else what
            share = format_share(slowest.self_ns, times.work_ns)
            parts.append(f"the slowest {group} is {_name(slowest)} with {share} of the {what} time")
        return f"The trace covers {_time(times.span_ns)}: {'; '.join(parts)}."

    def op_table(self, count: int | None = 20, *, width: int | None = None) -> str:
        """The slowest kernels, or without a device ops, as a table; None shows all."""
        columns = select_columns(self._time_columns(self._what.capitalize()), None)
        return largest(columns, self.kernels, count, width)

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers."""
        times = self.times
        return {
            **super().to_dict(),
            "span_ns": times.span_ns,
            "events": times.events,
            "steps": times.steps,
            "complete": not self.problem,
            "work": self._what,
            "work_ns": times.work_ns,
            "by_module": bool(times.by_module),
            "unlinked": times.unlinked,
            "devices": [one._asdict() for one in times.devices],
            "threads": [one._asdict() for one in times.threads],
            "kernels": [self._row(one) for one in self.kernels],
        }

    @property
    def _what(self) -> str:
        return "kernel" if self.times.devices else "op"

    def _row(self, work: Work) -> dict[str, Any]:
        names, rows = csv_rows(self._columns(), [work])
        return dict(zip(names, rows[0], strict=True))

    def _columns(self) -> Sequence[Column[Work]]:
        what = self._what
        return self._time_columns("Module" if self.times.by_module else what.capitalize())

    def _time_columns(self, heading: str) -> list[Column[Work]]:
        whole = self.times.work_ns
        is_tree = heading == "Module"
        return [
            Column("name", heading, _name, right=False, value=lambda one: one.name),
            number_column("total", "Total" if is_tree else "", _total, _time, csv="total_ns"),
            number_column("self", "Self" if is_tree else "Time", _self, _time, csv="self_ns"),
            number_column(
                "backward",
                "of it backward",
                lambda one: one.backward_ns,
                _time,
                spare=2,
                csv="backward_ns",
            ),
            Column(
                "share",
                "Share",
                lambda one: share_text(one.self_ns, whole),
                value=lambda one: fraction(one.self_ns, whole),
            ),
            number_column(
                "count",
                f"{self._what.capitalize()}s" if is_tree else "Calls",
                lambda one: one.count,
                "{:,}".format,
                spare=1,
                csv="count",
            ),
        ]

    def _device_text(self, one: DeviceTime) -> str:
        span = self.times.span_ns
        return (
            f"device {one.device} was busy {format_share(one.busy_ns, span) or '0%'} and idle "
            f"{format_share(one.idle_ns, span) or '0%'} of it, with {_time(one.copy_ns)} of copies"
        )

    def _facts(self) -> list[Fact]:
        facts = [
            Fact(
                f"Device {one.device}",
                f"{plural(one.kernels, 'kernel')} {_time(one.kernel_ns)}, copies "
                f"{_time(one.copy_ns)}, memsets {_time(one.memset_ns)}; "
                f"idle {_time(one.between_ns)} between them, the longest gap "
                f"{_time(one.longest_gap_ns)}",
            )
            for one in self.times.devices
        ]
        facts += [
            Fact(
                f"Thread {harmless(one.thread)}",
                f"{plural(one.launches, 'runtime call')} {_time(one.call_ns)}, of it waiting for "
                f"the device {_time(one.wait_ns)}; ops {_time(one.op_ns)}",
            )
            for one in self.times.threads
        ]
        steps = f", {plural(self.times.steps, 'profiler step')}" if self.times.steps else ""
        return [*facts, Fact("Read", f"{plural(self.times.events, 'event')}{steps}")]

    def _notes(self) -> list[str]:
        times, notes = self.times, []
        if self.problem:
            notes.append(f"{self.problem}: only what was read until there is shown")
        if not times.by_module:
            notes.append(
                "no modules in the trace: profile with with_stack=True and with_modules=True, or "
                "with record_function ranges"
            )
        if times.unlinked:
            notes.append(
                f"the launch of {plural(times.unlinked, 'kernel')} is not in the trace, so their "
                "module is not known"
            )
        return notes


def _self(work: Work) -> int:
    return work.self_ns


def _total(work: Work) -> int:
    return work.total_ns


def _name(work: Work) -> str:
    return shorten(harmless(work.name), _LONGEST_NAME)


def _time(nanoseconds: float) -> str:
    return format_ns(nanoseconds) if nanoseconds else "0"
