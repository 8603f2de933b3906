"""How long a model takes and where: what `profile` gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torchglass.analyse.latency import Latency, ModuleTime, OpTime, latency
from torchglass.export.chrome_trace import chrome_trace_json
from torchglass.export.profile import profile_csv, profile_dict
from torchglass.records.model import Model
from torchglass.records.timing import Timing
from torchglass.records.trace import Call
from torchglass.results.files import File, written
from torchglass.results.measurement import Measurement, Rows
from torchglass.views.tables import Look
from torchglass.views.text.overlay import overlay_text
from torchglass.views.text.profile import Profiled, op_table, profile_table


class Profile(Measurement[ModuleTime]):
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

    def _table(self, look: Look) -> str:
        return profile_table(self._profiled, look)

    def _op_table(self, count: int | None, room: int | None) -> str:
        return op_table(self._profiled, count, room)
