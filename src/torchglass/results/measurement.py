"""The results of `flops` and `profile`, and what all measurements share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from torchglass.analyse.flops import FlopReport, ModuleFlops
from torchglass.analyse.latency import Latency, ModuleTime, OpTime, latency
from torchglass.analyse.module_rows import Measured, Sort
from torchglass.errors import LookupFailedError
from torchglass.export.chrome_trace import chrome_trace_json
from torchglass.export.measurements import flops_csv, flops_dict, profile_csv, profile_dict
from torchglass.records.model import Model
from torchglass.records.timing import Timing
from torchglass.records.trace import CallRecord
from torchglass.tables.column import TableOptions
from torchglass.tables.files import File, json_text, written
from torchglass.targets.names import near_or_all
from torchglass.views.text.flops import flop_op_table, flops_table
from torchglass.views.text.profile import Profiled, overlay_text, profile_op_table, profile_table

M = TypeVar("M", bound=Measured)


class Rows(dict[str, M]):
    """What was measured of each module, by its path."""

    def __missing__(self, path: str) -> M:
        raise LookupFailedError(f"no module {path!r} was measured{near_or_all(str(path), self)}")


class Measurement(ABC, Generic[M]):
    """What was measured of each module and op of a model; print it for a table."""

    @property
    @abstractmethod
    def rows(self) -> Mapping[str, M]:
        """What was measured of each module, by its path; the model itself is ""."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings and numbers."""

    @abstractmethod
    def _table(self, look: TableOptions) -> str: ...

    @abstractmethod
    def _op_table(self, count: int | None, room: int | None) -> str: ...

    def __getitem__(self, path: str) -> M:
        return self.rows[path]

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__

    def table(
        self,
        *,
        sort: Sort | None = None,
        depth: int | None = None,
        columns: Iterable[str] | None = None,
        width: int | None = None,
    ) -> str:
        """The modules as a table: as a tree, or those that take most first.

        With `sort="total"` the largest of siblings comes first, with `sort="self"` the largest of
        all. `depth` says how far below the model rows are shown. A `width` leaves out what there is
        no room for in so many terminal cells, and says what that is.
        """
        return self._table(TableOptions(sort, depth, columns, width))

    def op_table(self, count: int | None = 20, *, width: int | None = None) -> str:
        """The ops that take most as a table; a `count` of None shows all."""
        return self._op_table(count, width)

    def to_json(self, file: File | None = None) -> str:
        """JSON, also written to a file if one is named."""
        return written(json_text(self.to_dict()), file)


class Flops(FlopReport, Measurement[ModuleFlops]):
    """What each module and op of a model computes; print it, or turn it into something else."""

    @cached_property
    def rows(self) -> Mapping[str, ModuleFlops]:
        """What each module that ran computes, by its path; the model itself is ""."""
        return Rows(super().rows)

    def to_dict(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings and numbers."""
        return flops_dict(self)

    def to_csv(self, file: File | None = None) -> str:
        """A line for each module, also written to a file if one is named."""
        return written(flops_csv(self), file)

    def _table(self, look: TableOptions) -> str:
        return flops_table(self, look)

    def _op_table(self, count: int | None, room: int | None) -> str:
        return flop_op_table(self, count, room)


class Profile(Measurement[ModuleTime]):
    """What each module and op of a model took; print it, or turn it into something else.

    The numbers are those of one run, the fastest, so that they add up: the self times of all `rows`
    and of `unattributed` make the total of `root`, and so do those of all `ops`.
    """

    def __init__(self, model: Model, calls: Sequence[CallRecord], timing: Timing) -> None:
        self.model = model
        self.calls = calls
        self.timing = timing
        self.latency: Latency = latency(timing)
        self._profiled = Profiled(model, calls, timing, self.latency)

    @cached_property
    def rows(self) -> Mapping[str, ModuleTime]:
        """What each module took that ran, by its path."""
        return Rows(self.latency.modules)

    @property
    def root(self) -> ModuleTime:
        """What the whole model took."""
        return self.latency.root

    @property
    def unattributed(self) -> ModuleTime:
        """What no module owns: autograd's own work, and the backward of the loss."""
        return self.latency.unattributed

    @property
    def ops(self) -> tuple[OpTime, ...]:
        """What the ops took, all calls of one op in one module together, slowest first."""
        return self.latency.ops

    def overlay(
        self, *paths: str, memory: Mapping[str, int] | None = None, width: int | None = None
    ) -> str:
        """Each layer with its parameters, shapes, forward, backward and memory.

        `memory` gives the bytes of activations by path, where they are known. Lines are broken to
        fit into a `width`.
        """
        return overlay_text(self._profiled, paths, memory, width)

    def to_dict(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings and numbers."""
        return profile_dict(self.model, self.calls, self.timing, self.latency)

    def to_csv(self, file: File | None = None) -> str:
        """A line for each module, also written to a file if one is named."""
        return written(profile_csv(self.model, self.latency), file)

    def to_chrome_trace(self, file: File) -> Path:
        """Write the run as a trace for chrome://tracing or ui.perfetto.dev, and say where."""
        written(chrome_trace_json(self.timing, self.model.name), file)
        return Path(file)

    def _table(self, look: TableOptions) -> str:
        return profile_table(self._profiled, look)

    def _op_table(self, count: int | None, room: int | None) -> str:
        return profile_op_table(self._profiled, count, room)
