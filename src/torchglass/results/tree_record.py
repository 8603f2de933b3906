"""What was measured and reported, as the explorer lays it over the tree of modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from torchglass.records.measures import (
    Measures,
    ModuleMeasure,
    ReportCell,
    ReportColumn,
    ReportEntry,
    ReportRecord,
)
from torchglass.tables.text import Column, Fact

if TYPE_CHECKING:
    from torchglass.analyse.latency import ModuleTime
    from torchglass.analyse.memory import ModuleMemory
    from torchglass.results.flops import ModuleFlops
    from torchglass.results.report import ListReport, ModuleReport

R = TypeVar("R")
Cells = tuple[ReportCell, ...]


def tree_record(
    report: ModuleReport[Any] | ListReport[Any],
    *,
    modules: Mapping[str, Cells],
    entries: Iterable[tuple[tuple[str, ...], Cells, bool]],
    module_columns: tuple[ReportColumn, ...],
    columns: tuple[ReportColumn, ...],
    facts: Iterable[Fact],
    notes: Iterable[str],
) -> ReportRecord:
    """A report beside the tree of modules.

    Args:
        report: The report; its class says what kind of report it is.
        modules: The cells beside each module, by path.
        entries: For each row the modules that it is about, its cells, and whether the report
            suggests it.
        module_columns: The headings of `modules`.
        columns: The headings of `entries`.
        facts: Facts about the whole.
        notes: Notes below the rows.
    """
    return ReportRecord(
        kind=re.sub("(?<=[a-z])(?=[A-Z])", " ", type(report).__name__).capitalize(),
        answer=report.answer,
        module_columns=module_columns,
        modules=modules,
        columns=columns,
        entries=tuple(
            ReportEntry(paths=paths, cells=row, is_suggested=is_suggested)
            for paths, row, is_suggested in entries
        ),
        facts=tuple((fact.label, fact.text) for fact in facts),
        notes=tuple(notes),
    )


def headings(columns: Iterable[Column[R]]) -> tuple[ReportColumn, ...]:
    """The headings of columns."""
    return tuple(
        ReportColumn(title=one.heading, name=one.key, right=one.right, spare=one.spare)
        for one in columns
    )


def cells(columns: Iterable[Column[R]], row: R) -> Cells:
    """One row of columns."""
    return tuple(
        ReportCell(
            text=one.text(row),
            value=one.value(row) if one.value else None,
            share=one.bar(row) if one.bar and one.text(row) else None,
        )
        for one in columns
    )


def measures(
    times: Mapping[str, ModuleTime],
    flops: Mapping[str, ModuleFlops],
    memory: Mapping[str, ModuleMemory],
    notes: tuple[str, ...] = (),
) -> Measures:
    """The measures of all modules that one of these has; what was not measured is None."""
    rows = (
        _measure(path, times.get(path), flops.get(path), memory.get(path))
        for path in dict.fromkeys([*times, *flops, *memory])
    )
    return Measures(rows=tuple(rows), notes=notes)


def _measure(
    path: str, time: ModuleTime | None, flops: ModuleFlops | None, memory: ModuleMemory | None
) -> ModuleMeasure:
    forward = time.forward if time else None
    backward = time.backward if time else None
    return ModuleMeasure(
        path=path,
        calls=time.calls if time else flops.calls if flops else 0,
        total_forward_ns=forward.total_ns if forward else None,
        self_forward_ns=forward.self_ns if forward else None,
        total_backward_ns=backward.total_ns if backward else None,
        self_backward_ns=backward.self_ns if backward else None,
        total_forward_flops=flops.forward.total_flops if flops else None,
        self_forward_flops=flops.forward.self_flops if flops else None,
        total_backward_flops=(flops.backward.total_flops if flops else 0) or None,
        self_backward_flops=(flops.backward.self_flops if flops else 0) or None,
        total_activation_bytes=memory.total.activation_bytes if memory else None,
        self_activation_bytes=memory.own.activation_bytes if memory else None,
        total_peak_bytes=memory.total.peak_bytes if memory else None,
        gradient_bytes=memory.total.gradient_bytes if memory else None,
    )
