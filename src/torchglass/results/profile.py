"""How long a model takes and where: what `profile` gives back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchglass.analyse.latency import Latency, ModuleTime, OpTime, latency
from torchglass.analyse.rows import Sort
from torchglass.errors import LookupFailedError
from torchglass.export.chrome_trace import chrome_trace_json
from torchglass.export.profile import profile_dict, profile_json
from torchglass.records.model import Model
from torchglass.records.timing import Timing
from torchglass.records.trace import Call
from torchglass.results.files import File, written
from torchglass.views.text.overlay import overlay_text
from torchglass.views.text.profile import Profiled, op_table, profile_table


class Profile:
    """What each module and op of a model took; print it, or turn it into something else.

    The numbers are those of one run, the fastest, so that they add up: the self times of all `rows`
    and of `unattributed` make the total of `root`, and so do those of all `ops`.
    """

    def __init__(self, model: Model, calls: Sequence[Call], timing: Timing) -> None:
        self.model = model
        self.calls = calls
        self.timing = timing
        self.latency: Latency = latency(timing)
        self._profiled = Profiled(model, calls, timing, self.latency)

    @property
    def rows(self) -> Mapping[str, ModuleTime]:
        """What each module took that ran, by its path."""
        return self.latency.modules

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

    def __getitem__(self, path: str) -> ModuleTime:
        if path not in self.rows:
            raise LookupFailedError(f"no module {path!r} ran; .rows lists those that did")
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
    ) -> str:
        """The modules as a table: as a tree, or slowest first.

        With `sort="total"` the slowest of siblings comes first, with `sort="self"` the slowest of
        all. `depth` says how far below the model rows are shown.
        """
        return profile_table(self._profiled, sort=sort, depth=depth, columns=columns)

    def op_table(self, count: int | None = 20) -> str:
        """The slowest ops as a table; None shows all."""
        return op_table(self._profiled, count)

    def overlay(self, *paths: str, memory: Mapping[str, int] | None = None) -> str:
        """Each layer with its parameters, shapes, forward, backward and memory.

        `memory` gives the bytes of activations by path, where they are known.
        """
        return overlay_text(self._profiled, paths, memory)

    def to_dict(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings and numbers."""
        return profile_dict(self.model, self.calls, self.timing, self.latency)

    def to_json(self, file: File | None = None) -> str:
        """JSON, also written to a file if one is named."""
        return written(profile_json(self.model, self.calls, self.timing, self.latency), file)

    def to_chrome_trace(self, file: File) -> Path:
        """Write the run as a trace for chrome://tracing or ui.perfetto.dev, and say where."""
        written(chrome_trace_json(self.timing, self.model.name), file)
        return Path(file)
