"""What a model computes, as JSON and as comma-separated values: every number, none rounded."""

from __future__ import annotations

from typing import Any

from torchglass.analyse.flops.adding import Amount, ModuleFlops, OpFlops
from torchglass.analyse.flops.report import FlopReport
from torchglass.export.modules import class_of, first_cells
from torchglass.export.texts import csv_text
from torchglass.records.plain import to_plain

HEADINGS = (
    "path",
    "class",
    "calls",
    "forward_flops",
    "forward_self_flops",
    "backward_flops",
    "backward_self_flops",
    "recomputed_flops",
    "total_flops",
    "total_macs",
    "bytes",
    "flops_per_byte",
    "uncounted_calls",
    "time_ns",
    "flops_per_second",
    "share",
)
CONVENTION = "1 multiply-add = 2 FLOPs = 1 MAC"


def flops_dict(report: FlopReport) -> dict[str, Any]:
    """A report as dicts, lists, strings and numbers."""
    return {
        "model": report.model.name,
        "convention": CONVENTION,
        "backward": report.work.backward,
        "fake": report.work.fake,
        "total_flops": report.total_flops,
        "total_macs": report.total_macs,
        "forward_flops": report.forward_flops,
        "backward_flops": report.backward_flops,
        "recomputed_flops": report.recomputed_flops,
        "is_lower_bound": report.is_lower_bound,
        "uncounted": [_op(op, report) for op in report.uncounted],
        "uncounted_share": report.uncounted_share,
        "bytes": report.total_bytes,
        "flops_per_byte": report.intensity,
        "flops_per_second": report.flops_per_second,
        "notes": list(report.work.notes),
        "modules": [_module(module, report) for module in report.rows.values()],
        "unattributed": _module(report.unattributed, report),
        "ops": [_op(op, report) for op in report.ops],
    }


def flops_csv(report: FlopReport) -> str:
    """A line for each module, and a last one for what is no module's."""
    every = (*report.rows.values(), report.unattributed)
    return csv_text(HEADINGS, (_cells(module, report) for module in every))


def _cells(module: ModuleFlops, report: FlopReport) -> tuple[Any, ...]:
    return (
        *first_cells(module, report.model),
        module.calls,
        module.forward.total_flops,
        module.forward.self_flops,
        module.backward.total_flops,
        module.backward.self_flops,
        module.recomputed_flops,
        module.total_flops,
        module.total_flops // 2,
        module.total_bytes,
        module.intensity,
        module.uncounted_calls,
        report.time_ns(module),
        report.speed(module),
        module.total_flops / report.total_flops if report.total_flops else None,
    )


def _module(module: ModuleFlops, report: FlopReport) -> dict[str, Any]:
    return {
        "path": module.path,
        "class": class_of(module, report.model),
        "calls": module.calls,
        "forward": _amount(module.forward),
        "backward": _amount(module.backward),
        "recomputed_flops": module.recomputed_flops,
        "flops_per_byte": module.intensity,
        "uncounted_calls": module.uncounted_calls,
        "time_ns": report.time_ns(module),
        "flops_per_second": report.speed(module),
        "ops": [_op(op, report) for op in module.ops],
    }


def _amount(amount: Amount) -> dict[str, int]:
    return {
        "self_flops": amount.self_flops,
        "total_flops": amount.total_flops,
        "self_bytes": amount.self_bytes,
        "total_bytes": amount.total_bytes,
    }


def _op(op: OpFlops, report: FlopReport) -> dict[str, Any]:
    return {
        **to_plain(op),
        "total_flops": op.total_flops,
        "flops_per_byte": op.intensity,
        "flops_per_second": op.flops_per_second,
        "share": report.share([op]),
    }
