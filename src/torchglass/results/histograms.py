"""The histograms of one series over steps, as arrays on one grid."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from torchglass.analyse import histograms
from torchglass.export.texts import csv_text
from torchglass.records.histogram import Histogram, Histograms
from torchglass.results.files import written
from torchglass.results.tables import import_pandas

if TYPE_CHECKING:
    import pandas as pd

Numbers = npt.NDArray[np.float64]


class SavedHistograms:
    """A histogram for each step: at `steps[i]` `counts[i, j]` are from `edges[j]` to the next edge.

    That grid is as fine as that of the coarsest step, and no number is lost on it; each single
    histogram, at its index, has its own grid and the exact statistics.
    """

    def __init__(self, record: Histograms) -> None:
        self._record = record

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """The steps at which they were taken."""
        return self._record.steps

    @property
    def edges(self) -> Numbers:
        """Where the bins begin and end, one more than there are bins."""
        return self._grid.edges

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """A row for each step, a column for each bin."""
        return histograms.on_grid(self._record.bins, self._grid)

    def quantiles(self, *fractions: float) -> Numbers:
        """Below which values these fractions of the numbers lay: a row a step, a column each."""
        found = [histograms.quantiles(each, fractions) for each in self._record.bins]
        return np.array(found, np.float64).reshape(-1, len(fractions))

    def shown(self, bins: int = 64, *, reject: float = 0.0) -> tuple[Numbers, Numbers]:
        """Edges and counts for a plot of at most so many bins, with no room for outliers.

        Of all numbers the fraction `reject` may lie beside them. One step with a coarse grid makes
        the others no coarser: its own counts are spread.
        """
        edges = histograms.display_grid(self._record.bins, bins, reject=reject).edges
        rows = [histograms.rebinned(each, edges) for each in self._record.bins]
        return edges, np.array(rows, np.float64).reshape(len(rows), len(edges) - 1)

    def merged(self) -> Histogram:
        """All steps as one."""
        return histograms.merged(self._record.bins)

    def to_csv(self, path: str | PathLike[str] | None = None) -> str:
        """A line for each step, a column for each bin, named by its lower edge."""
        rows = zip(self.steps.tolist(), self.counts.tolist(), strict=True)
        headings = ["step", *map(str, self.edges[:-1].tolist())]
        return written(csv_text(headings, ([step, *counts] for step, counts in rows)), path)

    def to_pandas(self) -> pd.DataFrame:
        """A row for each step, a column for each bin, named by the interval it spans."""
        pandas = import_pandas()
        frame: pd.DataFrame = pandas.DataFrame(
            self.counts,
            index=pandas.Index(self.steps, name="step"),
            columns=pandas.IntervalIndex.from_breaks(self.edges, closed="left"),
        )
        return frame

    def __getitem__(self, index: int) -> Histogram:
        return self._record.bins[index]

    def __iter__(self) -> Iterator[Histogram]:
        return iter(self._record.bins)

    def __len__(self) -> int:
        return len(self._record)

    def __repr__(self) -> str:
        label = self._record.series.label
        if not len(self.edges) > 1:
            return f"<histograms of {label}: none>"
        low, high = self.edges[[0, -1]]
        return (
            f"<histograms of {label} at {len(self)} steps: {len(self.edges) - 1} bins "
            f"from {low:g} to {high:g}>"
        )

    @cached_property
    def _grid(self) -> histograms.Grid:
        return histograms.common_grid(self._record.bins)
