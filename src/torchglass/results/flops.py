"""What a model computes: what `flops` gives back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from torchglass.analyse.flops.adding import ModuleFlops
from torchglass.analyse.flops.report import FlopReport
from torchglass.export.flops import flops_csv, flops_dict
from torchglass.results.files import File, written
from torchglass.results.measurement import Measurement, Rows
from torchglass.views.tables import Look
from torchglass.views.text.flops import flops_table, op_table


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

    def _table(self, look: Look) -> str:
        return flops_table(self, look)

    def _op_table(self, count: int | None, room: int | None) -> str:
        return op_table(self, count, room)
