"""The result of `summary`: what a model is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torchglass.analyse.parameters import Counts
from torchglass.analyse.sibling_order import Sort
from torchglass.analyse.summary import SummaryReport, SummaryRow, summarize
from torchglass.records.json_data import to_json_data
from torchglass.records.model import Model
from torchglass.results.report import Report, check_order, fraction, full_name
from torchglass.tables.export import HtmlRow, tree_fragment, typed_shape
from torchglass.tables.text import (
    SAME_AS,
    Column,
    column_texts,
    csv_rows,
    fact_lines,
    first_shape,
    format_bytes,
    format_ns,
    framed,
    harmless,
    name_column,
    readable_depth,
    select_columns,
    shape_text,
    share_text,
    wrapped,
)
from torchglass.views.model_text import (
    NO_TENSOR,
    facts,
    kernel_size,
    notes,
    output_text,
    row_name,
    same_as,
    tree_text,
    unseen_text,
)

if TYPE_CHECKING:
    from torchglass.records.trace import CallRecord, Value
    from torchglass.results.run_report import RunNote

_TORCHINFO = {"num_params": "parameters", "params_percent": "share"}


class Summary(Report):
    """What a model is made of; print it or export it.

    `depth` limits how many levels are shown, `sort` orders siblings, `fold` shows identical
    siblings as one row, `col_names` selects the columns.

    >>> from torch import nn
    >>> from torchglass import summary
    >>> found = summary(nn.Linear(3, 2))
    >>> found.total_params, found.trainable_params, found.total_bytes
    (8, 8, 32)
    """

    def __init__(
        self,
        model: Model,
        calls: Sequence[CallRecord] | None = None,
        *,
        depth: int | None = None,
        col_names: Iterable[str] | None = None,
        sort: Sort | None = None,
        fold: bool = False,
        run: RunNote | None = None,
    ) -> None:
        check_order(sort, depth, Sort)
        self.model = model
        self.calls = calls
        self.run = run
        """The state of the run that the model was read from; None for any other target."""
        self.report = summarize(model, calls, depth=depth, sort=sort, fold=fold)
        keys = col_names and [_TORCHINFO.get(name, name) for name in col_names]
        self._columns = summary_columns(self.report)
        self._shown = select_columns(self._columns, keys)

    @property
    def title(self) -> str:
        """The name of the model."""
        return self.model.name

    @property
    def total_params(self) -> int:
        """Parameters of the model, shared ones counted once."""
        return self.report.counts.total.parameters

    @property
    def trainable_params(self) -> int:
        """Parameters that get gradients."""
        return self.report.counts.total.trainable

    @property
    def frozen_params(self) -> int:
        """Parameters that get no gradients."""
        return self.report.counts.total.frozen

    @property
    def total_buffers(self) -> int:
        """Elements of all buffers."""
        return self.report.counts.total.buffers

    @property
    def total_bytes(self) -> int:
        """Size of parameters and buffers."""
        return self.report.counts.total.bytes

    def table(self, *, width: int | None = None) -> str:
        """The modules as a table; `width` leaves out the columns that do not fit."""
        rows = self.report.rows
        names = name_column(rows, (row_name(row, self.model) for row in rows))
        totals = fact_lines(facts(self.report), width)
        remarks = [line for note in notes(self.report) for line in wrapped(note, width)]
        columns = [names, *column_texts(self._shown, rows)]
        table = framed(columns, totals, remarks, room=width)
        return table if self.run is None else f"{self.run}\n\n{table}"

    def _text_to_shorten(self, lines: int, width: int | None) -> str:
        text = self.table(width=width)
        if text.count("\n") < lines:
            return text
        # Repeated blocks as one row each, and no deeper than can be read.
        folded = summarize(self.model, self.calls, fold=True)
        depth = readable_depth([row.depth for row in folded.rows]) or 1
        return Summary(self.model, self.calls, depth=depth, fold=True, run=self.run).table(
            width=width
        )

    def tree(self, *, width: int | None = None) -> str:
        """The tree of modules, each with its settings and number of parameters.

        After a forward it also shows output shapes. `width` leaves out what does not fit.
        """
        return tree_text(self.report, width)

    def to_dict(self) -> dict[str, Any]:
        """The summary as dicts, lists, strings and numbers."""
        report, model = self.report, self.model
        memory = report.memory
        return {
            "model": model.name,
            "class": model.root.class_name,
            "origin": model.origin,
            "also_in_file": [dataclasses.asdict(part) for part in model.also_in_file],
            "totals": {
                "modules": len(model.modules),
                **_counts(report.counts.total),
                "parameters_per_use": report.counts.per_use.parameters,
            },
            "memory": {
                **to_json_data(memory),
                "activation_bytes": memory.activation_bytes,
                "largest_call_bytes": memory.largest_call_bytes,
                "inference_bytes": memory.inference_bytes,
                "training_bytes": memory.training_bytes,
            },
            "modules": [_module_dict(row, model) for row in report.rows],
            "tied": [list(names) for names in model.tied.values()],
            "aliases": {
                module.path: model[module.alias_of].path
                for module in model.modules
                if module.alias_of is not None
            },
            "problems": {module.path: module.problem for module in model.modules if module.problem},
            **({} if self.run is None else {"run": self.run.to_dict()}),
        }

    def _csv(self) -> tuple[Sequence[str], Iterable[Iterable[Any]]]:
        return csv_rows(self._columns, self.report.rows)

    def _repr_html_(self) -> str:
        rows = [HtmlRow(row, row_name(row, self.model), row.depth) for row in self.report.rows]
        return tree_fragment(
            self.model.name,
            self.model.origin or self.model.root.class_name,
            facts(self.report),
            self._shown,
            rows,
            notes(self.report),
        )


def summary_columns(report: SummaryReport) -> list[Column[SummaryRow]]:
    """The columns of a summary, in the order of a CSV file."""
    model, total = report.model, report.counts.total

    def column(
        key: str, heading: str, text: Callable[[SummaryRow], str], spare: int = 0, **options: Any
    ) -> Column[SummaryRow]:
        """A column that is blank for an alias: its numbers are those of another row."""

        def own(row: SummaryRow) -> str:
            return "" if row.module.alias_of is not None else text(row)

        return Column(key, heading, own, spare=spare, **options)

    def counts(
        key: str, value: Callable[[SummaryRow], int], spare: int = 0, *, usual: bool = False
    ) -> Column[SummaryRow]:
        def text(row: SummaryRow) -> str:
            return f"{value(row):,}"

        return column(key, key.capitalize(), text, spare, usual=usual, value=value)

    def words(
        key: str, csv: str, value: Callable[[SummaryRow], Sequence[str]], spare: int
    ) -> Column[SummaryRow]:
        return column(
            key,
            key.capitalize(),
            lambda row: ", ".join(value(row)),
            spare,
            right=False,
            usual=False,
            csv=csv,
            value=lambda row: " ".join(value(row)),
        )

    def outputs(row: SummaryRow) -> str:
        return _typed(row.calls[0].outputs if row.calls else ())

    def part(row: SummaryRow) -> str:
        return share_text(row.total.parameters, total.parameters)

    def share(row: SummaryRow) -> float:
        return fraction(row.total.parameters, total.parameters) or 0

    return [
        Column("path", value=lambda row: full_name(row.module.path, model)),
        Column(
            "class",
            "Class",
            lambda row: _class(row, model),
            right=False,
            value=lambda row: row.module.class_name,
        ),
        Column("output_size", "Output", lambda row: output_text(row, report), False, 1, report.ran),
        Column("depth", value=lambda row: row.depth),
        Column("repeats", value=lambda row: len(row.members)),
        counts("parameters", lambda row: row.total.parameters, usual=True),
        column("share", "Share", part, 4, bar=share),
        column(
            "trainable",
            "Trainable",
            _trainable,
            5,
            right=False,
            usual=bool(total.frozen and total.trainable),  # otherwise every row says the same
            value=lambda row: row.total.trainable,
        ),
        Column("frozen", value=lambda row: row.total.frozen),
        counts("buffers", lambda row: row.total.buffers, 7),
        column("bytes", "Bytes", _size, 2, value=lambda row: row.total.bytes),
        Column("own_parameters", value=lambda row: row.own.parameters),
        words("dtype", "dtypes", lambda row: row.dtypes, 9),
        words("device", "devices", lambda row: row.devices, 10),
        counts("calls", lambda row: len(row.calls), 8),
        Column(
            "input_size",
            "Input",
            lambda row: _input_text(row, report),
            right=False,
            spare=3,
            usual=False,
            csv="input_shapes",
            value=lambda row: _typed(row.calls[0].inputs if row.calls else ()),
        ),
        Column(
            "output_shapes", value=lambda row: _typed(row.calls[0].outputs if row.calls else ())
        ),
        Column("alias_of", value=lambda row: _first_path(row, model)),
        column("kernel_size", "Kernel", _kernel, 6, right=False, usual=False),
        column("shapes", "Shapes", _slot_shapes, 11, right=False, usual=False),
        column("time", "Time", lambda row: _time(row, report), 12, usual=False),
    ]


def _size(row: SummaryRow) -> str:
    return format_bytes(row.total.bytes) if row.total.bytes else ""


def _kernel(row: SummaryRow) -> str:
    return kernel_size(row.module.kind, row.module.extra)


def _class(row: SummaryRow, model: Model) -> str:
    other = same_as(row, model)
    if row.module.alias_of is not None:
        return f"{SAME_AS} {other}"
    kind = harmless(row.module.kind) + (" !" if row.module.problem else "")
    return f"{kind} {SAME_AS} {other}" if other else kind


def _input_text(row: SummaryRow, report: SummaryReport) -> str:
    if not row.calls:
        return unseen_text(row, report)
    return first_shape(row.calls[0].inputs) or NO_TENSOR


def _slot_shapes(row: SummaryRow) -> str:
    return ", ".join(f"{harmless(slot.name)} {shape_text(slot.spec)}" for slot in row.module.slots)


def _time(row: SummaryRow, report: SummaryReport) -> str:
    """The time of all calls of a module together."""
    if not row.calls:
        return unseen_text(row, report)
    return format_ns(sum(call.total_ns for call in row.calls))


def _trainable(row: SummaryRow) -> str:
    if not row.total.parameters:
        return ""
    if row.total.frozen:
        return "partly" if row.total.trainable else "no"
    return "yes"


def _first_path(row: SummaryRow, model: Model) -> str:
    alias = row.module.alias_of
    return "" if alias is None else full_name(model[alias].path, model)


def _typed(values: Sequence[Value]) -> str:
    return " ".join(typed_shape(value.spec.shape) for value in values)


def _module_dict(row: SummaryRow, model: Model) -> dict[str, Any]:
    module = row.module
    first = row.calls[0] if row.calls else None
    return {
        "path": module.path,
        "name": module.name,
        "class": module.class_name,
        "extra": module.extra,
        "depth": row.depth,
        "repeats": [model[member].path for member in row.members[1:]],
        "alias_of": None if module.alias_of is None else model[module.alias_of].path,
        "tied_to": list(row.tied_to),
        "training": module.training,
        "own_parameters": row.own.parameters,
        **_counts(row.total),
        "dtypes": list(row.dtypes),
        "devices": list(row.devices),
        "calls": len(row.calls),
        "inputs": _values(first.inputs) if first else [],
        "outputs": _values(first.outputs) if first else [],
    }


def _counts(counts: Counts) -> dict[str, int]:
    return {
        "parameters": counts.parameters,
        "trainable": counts.trainable,
        "frozen": counts.frozen,
        "buffers": counts.buffers,
        "bytes": counts.bytes,
    }


def _values(values: Sequence[Value]) -> list[dict[str, Any]]:
    return [
        {
            "place": value.place,
            "shape": value.spec.shape and list(value.spec.shape),
            "dtype": value.spec.dtype,
        }
        for value in values
    ]
