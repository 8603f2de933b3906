"""What a model computes: what `flops` gives back."""

from __future__ import annotations

from typing import Any

from torchglass.analyse.flops.adding import ModuleFlops
from torchglass.analyse.flops.report import FlopReport
from torchglass.analyse.rows import Sort
from torchglass.errors import LookupFailedError
from torchglass.export.flops import flops_csv, flops_dict, flops_json
from torchglass.results.files import File, written
from torchglass.views.text.flops import flops_table, op_table


class Flops(FlopReport):
    """What each module and op of a model computes; print it, or turn it into something else."""

    def __getitem__(self, path: str) -> ModuleFlops:
        if path not in self.rows:
            raise LookupFailedError(f"no module {path!r} ran; .rows lists those that did")
        return self.rows[path]

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__

    def table(self, *, sort: Sort | None = None, depth: int | None = None) -> str:
        """The modules as a table: as a tree, or the largest first.

        With `sort="total"` the largest of siblings comes first, with `sort="self"` the largest of
        all. `depth` says how far below the model rows are shown.
        """
        return flops_table(self, sort=sort, depth=depth)

    def op_table(self, count: int | None = 20) -> str:
        """The ops as a table, the largest first; None shows all."""
        return op_table(self, count)

    def to_dict(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings and numbers."""
        return flops_dict(self)

    def to_json(self, file: File | None = None) -> str:
        """JSON, also written to a file if one is named."""
        return written(flops_json(self), file)

    def to_csv(self, file: File | None = None) -> str:
        """A line for each module, also written to a file if one is named."""
        return written(flops_csv(self), file)
