"""The result of `record`: statistics of what went into and came out of each module."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from torchglass.errors import LookupFailedError
from torchglass.records.calls import FLAT_NAMES, ForwardStats, Level, ModuleStatistics
from torchglass.records.json_data import nan_as_none, to_json_data
from torchglass.results.report import Report
from torchglass.tables.export import HtmlRow, tree_fragment, typed_shape
from torchglass.tables.text import (
    Column,
    TextColumn,
    column_texts,
    ends,
    first_shape,
    format_ns,
    format_share,
    framed,
    harmless,
    plural,
    shorten,
    wrapped,
)
from torchglass.targets.names import near

if TYPE_CHECKING:
    import torch

    from torchglass.capture.observe.recorder import ModuleRecorder

_LONGEST_NAME = 44
_MOST_ROWS = 80
_SHAPES = ("in_shape", "out_shape")
_UNDEFINED = "–"


class Recording(Report, Mapping[str, ModuleStatistics]):
    """The statistics of the modules that were called, by path; "" is the model itself.

    `recording["encoder.0"][-1].out_mean` is of the latest call, `recording["encoder.0"].totals` of
    all of them, and `recording.forwards[2]` has the calls of the second forward pass. It can be
    read while the with-block still runs.
    """

    def __init__(self, recorder: ModuleRecorder, model: str) -> None:
        self._recorder = recorder
        self.model = model
        """The class of the model."""

    @property
    def title(self) -> str:
        """The class of the model."""
        return self.model

    def __getitem__(self, path: str) -> ModuleStatistics:
        paths = self._recorder.paths
        if path not in paths:
            raise LookupFailedError(f"no module {path!r} was called{near(path, paths)}")
        return self._recorder.module(path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._recorder.paths)

    def __len__(self) -> int:
        return len(self._recorder.paths)

    @property
    def level(self) -> Level:
        """How much was recorded of each tensor."""
        return self._recorder.level

    @property
    def forward_count(self) -> int:
        """The number of forward passes; each outermost call begins one."""
        return self._recorder.forward_count

    @property
    def calls(self) -> tuple[ForwardStats, ...]:
        """All calls that were kept, in the order in which they began."""
        calls = (call for module in self.values() for call in module)
        return tuple(sorted(calls, key=lambda call: call.start_ns))

    @property
    def forwards(self) -> dict[int, dict[str, tuple[ForwardStats, ...]]]:
        """The calls that were kept, by forward pass (from 1) and by path."""
        passes: dict[int, dict[str, tuple[ForwardStats, ...]]] = {}
        for call in self.calls:
            of_pass = passes.setdefault(call.forward, {})
            of_pass[call.path] = (*of_pass.get(call.path, ()), call)
        return passes

    @property
    def tensors(self) -> dict[tuple[str, int, str], torch.Tensor]:
        """The tensors that `tensors=True` kept: `recording.tensors["encoder.0", 1, "out"]`.

        A key is the path, the call number, and "in" or "out" with the position: "in.0".
        """
        return {
            (path, number, place): tensor
            for path in self
            for number, place, tensor in self._recorder.tensors(path)
        }

    @property
    def tensors_left_out(self) -> int:
        """How many tensors did not fit into the budget."""
        return self._recorder.left_out

    def to_dict(self) -> dict[str, Any]:
        """Everything but the tensors as dicts, lists, strings and numbers; NaN becomes None."""
        return {
            "model": self.model,
            "level": self.level,
            "keep": self._recorder.keep,
            "forwards": self.forward_count,
            "modules": {path: nan_as_none(to_json_data(module)) for path, module in self.items()},
        }

    def table(self, *, width: int | None = None) -> str:
        """The modules as a table; columns that do not fit into a `width` are left out."""
        modules = list(self.values())
        if not modules:
            return f"{harmless(self.model)}: no module was called"
        first, left_out, last = ends(modules, _MOST_ROWS)
        names = [self._name(module) for module in (*first, *last)]
        columns = [
            TextColumn(["Module", *names], right=False),
            *column_texts(self._columns(modules), [*first, *last]),
        ]
        if left_out:
            columns = _with_gap(columns, len(first), f"… {left_out:,} more …")
        title = wrapped(self._headline(modules), width)
        notes = [line for note in self._notes(modules) for line in wrapped(note, width)]
        return "\n".join([*title, framed(columns, notes, room=width)])

    def _csv(self) -> tuple[Sequence[str], Iterable[Iterable[Any]]]:
        """A line for each call that was kept."""
        headings = ("path", "number", "forward", *FLAT_NAMES, "error")
        return headings, map(self._csv_cells, self.calls)

    def _csv_cells(self, call: ForwardStats) -> Iterator[Any]:
        yield from (call.path or self.model, call.number, call.forward)
        for name, value in call.items():
            is_shape = name in _SHAPES and value is not None
            yield typed_shape(value) if is_shape else value
        yield call.error

    def _repr_html_(self) -> str:
        modules = list(self.values())
        return tree_fragment(
            self.model,
            self._headline(modules),
            [],
            self._columns(modules),
            [HtmlRow(module, harmless(module.path or self.model), 0) for module in modules],
            self._notes(modules),
        )

    def _headline(self, modules: Sequence[ModuleStatistics]) -> str:
        calls = sum(module.totals.calls for module in modules)
        return (
            f"{harmless(self.model)}: {plural(self.forward_count, 'forward')}, "
            f"{plural(calls, 'call')} of {plural(len(modules), 'module')}, "
            f"{format_ns(_total_ns(modules))}"
        )

    def _columns(self, modules: Sequence[ModuleStatistics]) -> list[Column[ModuleStatistics]]:
        whole_ns = _total_ns(modules)
        columns: list[Column[ModuleStatistics]] = [
            Column("class", "Class", lambda row: harmless(row.class_name), right=False, spare=3),
            Column("calls", "Calls", lambda row: f"{row.totals.calls:,}", spare=4),
            Column("input", "Input", lambda row: _shape(row, "inputs"), right=False, spare=6),
            Column("output", "Output", lambda row: _shape(row, "outputs"), right=False, spare=1),
        ]
        if self.level != "shapes":
            columns += [
                *(_stat_column("min"), _stat_column("max")),
                *(_stat_column("mean", spare=-3), _stat_column("std", spare=-2)),
            ]
            outputs = [module.totals.outputs for module in modules]
            columns += [
                _stat_column(name)
                for name in ("nan", "inf")
                if any(stats and getattr(stats, name) for stats in outputs)
            ]
        return [
            *columns,
            Column("time", "Time", lambda row: format_ns(row.totals.total_ns), spare=-1),
            Column("self", "Self", lambda row: format_ns(row.totals.self_ns), spare=5),
            Column(
                "share", "Share", lambda row: format_share(row.totals.self_ns, whole_ns), spare=2
            ),
        ]

    def _notes(self, modules: Iterable[ModuleStatistics]) -> Iterator[str]:
        if self.level == "full":
            yield "min … std: of the first output, over all calls"
        if self.level == "cheap":
            yield "min … std: of the first output, over all calls, from samples of its values"
        for module in modules:
            if module.totals.failed:
                raised = ", ".join(sorted({call.error for call in module.calls if call.error}))
                times = plural(module.totals.failed, "call")
                where = shorten(harmless(module.path or "the model"), _LONGEST_NAME)
                yield f"{times} of {where} raised {raised}".rstrip()

    def _name(self, module: ModuleStatistics) -> str:
        return shorten(harmless(module.path or self.model), _LONGEST_NAME)


def _stat_column(name: str, spare: int = 0) -> Column[ModuleStatistics]:
    def text(module: ModuleStatistics) -> str:
        stats = module.totals.outputs
        value = None if stats is None else getattr(stats, name)
        return _UNDEFINED if value is None or math.isnan(value) else f"{value:.4g}"

    return Column(name, name, text, spare=spare)


def _with_gap(columns: Sequence[TextColumn], row: int, text: str) -> list[TextColumn]:
    """The columns with an extra line that has text only in its first cell."""
    above = row + 1
    return [
        replace(column, texts=[*column.texts[:above], cell, *column.texts[above:]])
        for column, cell in zip(columns, chain([text], repeat("")), strict=False)
    ]


def _shape(module: ModuleStatistics, side: str) -> str:
    """The shape of the first tensor of the latest call, and how many more there were."""
    return first_shape(getattr(module[-1], side) if module.calls else ()) or _UNDEFINED


def _total_ns(modules: Iterable[ModuleStatistics]) -> int:
    return sum(module.totals.self_ns for module in modules)
