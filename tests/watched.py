"""Trainings that are watched in memory, and what was seen of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

import torchglass as tg
from torchglass.analyse.call_graph import op_graph
from torchglass.api.new_run import this_run
from torchglass.capture.watch.options import Options
from torchglass.capture.watch.watcher import Watcher
from torchglass.records.findings import Finding, Findings
from torchglass.records.model import Activations, Histogram
from torchglass.records.run import Series
from torchglass.records.trace import Graph
from torchglass.store.readers import MemoryStore


class Seen:
    """What a watcher has recorded of a model."""

    def __init__(self, model: nn.Module, options: dict[str, Any]) -> None:
        if "log" in options:
            options["log"] = frozenset(options["log"])
        self.store = MemoryStore(this_run(type(model).__name__))
        self.watcher = Watcher(model, self.store, Options(**options))

    @property
    def labels(self) -> set[str]:
        return {series.label for series in self.store.series()}

    @property
    def places(self) -> set[tuple[str, str]]:
        return {(series.path, series.name) for series in self.store.series()}

    @property
    def graph(self) -> Graph:
        graph = self.store.document(Graph)
        assert graph is not None
        return graph

    @property
    def activations(self) -> Activations:
        pictures = self.store.document(Activations)
        assert pictures is not None
        return pictures

    @property
    def findings(self) -> tuple[Finding, ...]:
        found = self.store.document(Findings)
        return found.findings if found is not None else ()

    def steps(self, label: str) -> list[int]:
        return [int(step) for step in self.store.points(self._series(label).id).steps]

    def values(self, label: str) -> list[float]:
        return [float(row[0]) for row in self.store.points(self._series(label).id).values]

    def histogram(self, label: str, index: int = 0) -> Histogram:
        return self.store.histograms(self._series(label).id).bins[index]

    def _series(self, label: str) -> Series:
        (series,) = (each for each in self.store.series() if each.label == label)
        return series


def graph_of(seen: Any) -> Graph:
    """The graph that a saved run has recorded, or the one that the page draws of a trace."""
    if isinstance(seen, tg.Trace):
        return op_graph(seen.record)
    graph: Graph | None = seen.reader.document(Graph)
    assert graph is not None
    return graph


@contextlib.contextmanager
def watching(model: nn.Module, *, misses: str = "", **options: Any) -> Iterator[Seen]:
    """Watch a model until the block ends, in memory, and miss nothing but what is expected."""
    seen = Seen(model, options)
    missed: list[Exception] = []
    seen.watcher.miss = missed.append  # type: ignore[assignment,method-assign]
    with seen.watcher:
        yield seen
    assert bool(missed) == bool(misses), missed
    assert all(misses in repr(problem) for problem in missed)
