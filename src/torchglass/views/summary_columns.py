"""The columns of a summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from torchglass.analyse.summary import SummaryReport, SummaryRow
from torchglass.records.model import Model
from torchglass.tables import column
from torchglass.views.formats import (
    NOT_RUN,
    SAME_AS,
    first_shape,
    format_bytes,
    format_share,
    format_time,
    harmless,
    shape_text,
)
from torchglass.views.module_signature import kernel_size

_NO_TENSOR = "no tensor"


Column = column.Column[SummaryRow, SummaryReport]


def columns_named(names: Iterable[str] | None, report: SummaryReport) -> list[Column]:
    """The columns of these names, torchinfo's among them; without names the usual ones."""
    if names is None:
        total = report.counts.total
        # A column that says the same in each row says nothing.
        wanted = {"output_size": report.ran, "trainable": bool(total.frozen and total.trainable)}
        names = [name for name in _USUAL if wanted.get(name, True)]
    return column.find_columns((_TORCHINFO.get(name, name) for name in names), COLUMNS)


def row_name(row: SummaryRow, model: Model) -> str:
    """What a row is called: its name, or "12 × Block (0–11)" for neighbours that are alike."""
    module = row.module
    if row.depth == 0:
        return harmless(model.name)
    if len(row.members) == 1:
        return harmless(module.name)
    last = model[row.members[-1]]
    return (
        f"{len(row.members)} × {harmless(module.kind)} ({harmless(f'{module.name}–{last.name}')})"
    )


def same_as(row: SummaryRow, model: Model) -> str:
    """Where the module of a row, or a tensor of it, stands first; "" for one that is its own."""
    if row.module.alias_of is not None:
        return harmless(model[row.module.alias_of].path) or "the model itself"
    if not row.tied_to:
        return ""
    more = f" +{len(row.tied_to) - 1}" if len(row.tied_to) > 1 else ""
    return harmless(row.tied_to[0]) + more


def _class(row: SummaryRow, report: SummaryReport) -> str:
    other = same_as(row, report.model)
    if row.module.alias_of is not None:
        return f"{SAME_AS} {other}"
    kind = harmless(row.module.kind) + (" !" if row.module.problem else "")
    return f"{kind} {SAME_AS} {other}" if other else kind


def _inputs(row: SummaryRow, report: SummaryReport) -> str:
    return (first_shape(row.calls[0].inputs) or _NO_TENSOR) if row.calls else _unseen(row, report)


def output_text(row: SummaryRow, report: SummaryReport) -> str:
    """The shape that comes out of a module, "–" where it did not run; "" without a forward."""
    if not row.calls:
        return _unseen(row, report)
    calls = f" · {len(row.calls)} calls" if len(row.calls) > 1 else ""
    return (first_shape(row.calls[0].outputs) or _NO_TENSOR) + calls


def _unseen(row: SummaryRow, report: SummaryReport) -> str:
    return NOT_RUN if report.ran and row.module.alias_of is None else ""


def _slot_shapes(row: SummaryRow, _: SummaryReport) -> str:
    return ", ".join(f"{harmless(slot.name)} {shape_text(slot.spec)}" for slot in row.module.slots)


def _time(row: SummaryRow, report: SummaryReport) -> str:
    """What the calls of a module took together."""
    if not row.calls:
        return _unseen(row, report)
    return format_time(sum(call.total_ns for call in row.calls) / 1e9)


def _share(row: SummaryRow, report: SummaryReport) -> str:
    part = row.total.parameters
    return format_share(part, report.counts.total.parameters) if part else ""


def _bytes(row: SummaryRow, _: SummaryReport) -> str:
    return format_bytes(row.total.bytes) if row.total.bytes else ""


def _trainable(row: SummaryRow, _: SummaryReport) -> str:
    if not row.total.parameters:
        return ""
    if row.total.frozen:
        return "partly" if row.total.trainable else "no"
    return "yes"


def _own(
    text: Callable[[SummaryRow, SummaryReport], str],
) -> Callable[[SummaryRow, SummaryReport], str]:
    """A text that an alias leaves to the module it stands for."""
    return lambda row, report: "" if row.module.alias_of is not None else text(row, report)


COLUMNS: Mapping[str, Column] = {
    "class": Column("Class", _class, right=False),
    "input_size": Column("Input", _inputs, right=False, spare=3),
    "output_size": Column("Output", output_text, right=False, spare=1),
    "kernel_size": Column(
        "Kernel",
        _own(lambda row, _: kernel_size(row.module.kind, row.module.extra)),
        right=False,
        spare=6,
    ),
    "parameters": Column("Parameters", _own(lambda row, _: f"{row.total.parameters:,}")),
    "share": Column("Share", _own(_share), spare=4),
    "bytes": Column("Bytes", _own(_bytes), spare=2),
    "trainable": Column("Trainable", _own(_trainable), right=False, spare=5),
    "buffers": Column("Buffers", _own(lambda row, _: f"{row.total.buffers:,}"), spare=7),
    "calls": Column("Calls", _own(lambda row, _: f"{len(row.calls)}"), spare=8),
    "dtype": Column("Dtype", _own(lambda row, _: ", ".join(row.dtypes)), right=False, spare=9),
    "shapes": Column("Shapes", _own(_slot_shapes), right=False, spare=11),
    "time": Column("Time", _own(_time), spare=12),
    "device": Column("Device", _own(lambda row, _: ", ".join(row.devices)), right=False, spare=10),
}
_USUAL = ("class", "output_size", "parameters", "share", "trainable", "bytes")
_TORCHINFO = {"num_params": "parameters", "params_percent": "share"}
