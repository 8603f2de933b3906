"""A summary of a model: what `summary` gives back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args

from torchglass.analyse.summary import Sort, summarize
from torchglass.errors import ViewError
from torchglass.export.summary import summary_csv, summary_dict
from torchglass.records.findings import Finding
from torchglass.records.json_data import nan_as_none, to_json_data
from torchglass.records.model import Model
from torchglass.records.run import RunStatus
from torchglass.records.trace import CallRecord
from torchglass.tables.files import File, json_text, written
from torchglass.views.formats import harmless
from torchglass.views.html.fragments import summary_fragment, summary_page
from torchglass.views.summary_columns import columns_named
from torchglass.views.text.summary import table_text, tree_text

_MOST_FINDINGS = 5


class RunNote:
    """How a run is doing, and what was found in it."""

    def __init__(self, status: RunStatus, last_step: int, findings: Sequence[Finding]) -> None:
        self.status = status
        self.last_step = last_step
        self.findings = tuple(one for one in findings if one.severity != "note")

    def __str__(self) -> str:
        count = len(self.findings)
        found = f"{count} problems" if count > 1 else "1 problem" if count else "no problems found"
        head = f"Run: {harmless(self.status.full)}, last step {self.last_step}, {found}"
        shown = [f"  {harmless(one.message)}" for one in self.findings[:_MOST_FINDINGS]]
        rest = [f"  … {count - _MOST_FINDINGS} more"] if count > _MOST_FINDINGS else []
        return "\n".join([head, *shown, *rest])

    def to_dict(self) -> dict[str, Any]:
        """The summary as dicts, lists, strings and numbers."""
        return {
            "status": str(self.status),
            "state": self.status.state,
            "step": self.status.step,
            "error": self.status.error,
            "message": self.status.message,
            "last_step": self.last_step,
            "findings": [nan_as_none(to_json_data(one)) for one in self.findings],
        }


class Summary:
    """What a model is made of; print it, or turn it into something else.

    `depth` limits how many levels are shown, `sort` orders siblings, `fold` shows neighbours that
    are built alike as one row, `col_names` selects the columns.

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
        if sort is not None and sort not in get_args(Sort):
            raise ViewError(f"sort must be one of {', '.join(get_args(Sort))}, not {sort!r}")
        if depth is not None and depth < 0:
            raise ViewError(f"depth must be 0 or more, not {depth}")
        self.model = model
        self.calls = calls
        self.run = run
        """How the run is doing that the model was read from; None for any other target."""
        self.report = summarize(model, calls, depth=depth, sort=sort, fold=fold)
        self._columns = columns_named(col_names, self.report)

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

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__

    def table(self, *, width: int | None = None) -> str:
        """The modules as a table; `width` leaves out the columns that do not fit."""
        table = table_text(self.report, self._columns, width)
        return table if self.run is None else f"{self.run}\n\n{table}"

    def tree(self, *, width: int | None = None) -> str:
        """The tree of modules, each with its settings and number of parameters.

        After a forward it also shows output shapes. `width` leaves out what does not fit.
        """
        return tree_text(self.report, width)

    def to_dict(self) -> dict[str, Any]:
        """The summary as dicts, lists, strings and numbers."""
        about = {} if self.run is None else {"run": self.run.to_dict()}
        return {**summary_dict(self.report), **about}

    def to_json(self, file: File | None = None) -> str:
        """JSON, also written to a file if one is named."""
        return written(json_text(self.to_dict()), file)

    def to_csv(self, file: File | None = None) -> str:
        """A line for each row, also written to a file if one is named."""
        return written(summary_csv(self.report), file)

    def to_html(self, file: File | None = None) -> str:
        """A self-contained page, also written to a file if one is named."""
        return written(summary_page(self.report, self._columns), file)

    def _repr_html_(self) -> str:
        return summary_fragment(self.report, self._columns)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._repr_html_()}
