"""The columns that a summary can show, and the text that each has for a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchglass.analyse.model.summary import Row, SummaryReport
from torchglass.errors import ViewError
from torchglass.records.model import Model
from torchglass.records.tensors import TensorSpec
from torchglass.records.trace import Value
from torchglass.views.brief import kernel_size
from torchglass.views.formats import format_bytes, format_shape, format_share, harmless

NOT_RUN = "–"
SAME_AS = "↗"


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and what stands below it."""

    title: str
    text: Callable[[Row, SummaryReport], str]
    right: bool = False
    """Whether it ends at the right, as numbers do."""


def columns_named(names: Iterable[str] | None, report: SummaryReport) -> list[Column]:
    """The columns of these names, torchinfo's among them; without names the usual ones."""
    if names is None:
        names = [name for name in _USUAL if report.ran or name != "output_size"]
    found = []
    for name in names:
        column = COLUMNS.get(_TORCHINFO.get(name, name))
        if column is None:
            raise ViewError(f"there is no column {name!r}; there are {', '.join(COLUMNS)}")
        found.append(column)
    return found


def row_name(row: Row, model: Model) -> str:
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


def same_as(row: Row, model: Model) -> str:
    """Where the module of a row, or a tensor of it, stands first; "" for one that is its own."""
    if row.module.alias_of is not None:
        return harmless(model[row.module.alias_of].path) or "the model itself"
    if not row.tied_to:
        return ""
    more = f" +{len(row.tied_to) - 1}" if len(row.tied_to) > 1 else ""
    return harmless(row.tied_to[0]) + more


def shape_text(spec: TensorSpec) -> str:
    """The shape of a tensor, whatever it is."""
    if spec.shape is None:
        return "?"
    return format_shape(spec.shape) or "scalar"


def _class(row: Row, report: SummaryReport) -> str:
    other = same_as(row, report.model)
    if row.module.alias_of is not None:
        return f"{SAME_AS} {other}"
    kind = harmless(row.module.kind) + (" !" if row.module.problem else "")
    return f"{kind} {SAME_AS} {other}" if other else kind


def _inputs(row: Row, report: SummaryReport) -> str:
    return _first_shape(row.calls[0].inputs) if row.calls else _unseen(row, report)


def _outputs(row: Row, report: SummaryReport) -> str:
    if not row.calls:
        return _unseen(row, report)
    calls = f" · {len(row.calls)} calls" if len(row.calls) > 1 else ""
    return _first_shape(row.calls[0].outputs) + calls


def _unseen(row: Row, report: SummaryReport) -> str:
    return NOT_RUN if report.ran and row.module.alias_of is None else ""


def _first_shape(values: Sequence[Value]) -> str:
    if not values:
        return "no tensor"
    more = f" +{len(values) - 1}" if len(values) > 1 else ""
    return shape_text(values[0].spec) + more


def _share(row: Row, report: SummaryReport) -> str:
    part = row.total.parameters
    return format_share(part, report.counts.total.parameters) if part else ""


def _bytes(row: Row, _: SummaryReport) -> str:
    return format_bytes(row.total.bytes) if row.total.bytes else ""


def _trainable(row: Row, _: SummaryReport) -> str:
    if not row.total.parameters:
        return ""
    if row.total.frozen:
        return "partly" if row.total.trainable else "no"
    return "yes"


def _own(text: Callable[[Row, SummaryReport], str]) -> Callable[[Row, SummaryReport], str]:
    """A text that an alias leaves to the module it stands for."""
    return lambda row, report: "" if row.module.alias_of is not None else text(row, report)


COLUMNS: Mapping[str, Column] = {
    "class": Column("Class", _class),
    "input_size": Column("Input", _inputs),
    "output_size": Column("Output", _outputs),
    "kernel_size": Column(
        "Kernel", _own(lambda row, _: kernel_size(row.module.kind, row.module.extra))
    ),
    "parameters": Column("Parameters", _own(lambda row, _: f"{row.total.parameters:,}"), True),
    "share": Column("Share", _own(_share), True),
    "bytes": Column("Bytes", _own(_bytes), True),
    "trainable": Column("Trainable", _own(_trainable)),
    "buffers": Column("Buffers", _own(lambda row, _: f"{row.total.buffers:,}"), True),
    "calls": Column("Calls", _own(lambda row, _: f"{len(row.calls)}"), True),
    "dtype": Column("Dtype", _own(lambda row, _: ", ".join(row.dtypes))),
    "device": Column("Device", _own(lambda row, _: ", ".join(row.devices))),
}
_USUAL = ("class", "output_size", "parameters", "share", "bytes")
_TORCHINFO = {"num_params": "parameters", "params_percent": "share"}
