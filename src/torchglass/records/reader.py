"""The two interfaces of the system: capture writes to a Sink, views read from a Reader.

A run file that is being written and a store in memory have the same interface.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from torchglass.records.calls import Statistics
from torchglass.records.findings import Findings
from torchglass.records.graph import Graph
from torchglass.records.measures import Footprint, Measures
from torchglass.records.run import Ending
from torchglass.records.tensors import Activations
from torchglass.records.trace import TraceRecord
from torchglass.records.training import TrainingFacts

if TYPE_CHECKING:
    from torchglass.records.model import Model
    from torchglass.records.run import RunRecord, RunStatus
    from torchglass.records.series import Frame, Points, Series, SeriesId, SeriesKind
    from torchglass.records.tensors import Histograms


class Sink(Protocol):
    """Where capture writes. No method waits for a disk or raises in the caller's training."""

    def put_model(self, model: Model) -> None:
        """Store the structure; a later one replaces it."""

    def put_document(self, document: Document) -> None:
        """Store a record of the whole run; a later one of its class replaces it."""

    def series(self, path: str, name: str, kind: SeriesKind = "scalar") -> SeriesId:
        """The id of the series with this path and name, created on first use."""

    def put_frame(self, frame: Frame) -> None:
        """Store the measurements of one step."""

    def close(self) -> None:
        """Write what is pending, then release the store."""


@runtime_checkable
class Reader(Protocol):
    """Where views read, also while a sink is still writing."""

    def run(self) -> RunRecord:
        """The record of the run: name, host, time, versions."""

    def model(self) -> Model:
        """The structure of the model."""

    def series(self) -> Sequence[Series]:
        """All series, in the order in which they were first seen."""

    def points(self, series: SeriesId, *, after: int = -1) -> Points:
        """The points of one series at steps above `after`."""
        return self.points_of([series], after=after)[0]

    def histograms(self, series: SeriesId, *, after: int = -1) -> Histograms:
        """The histograms of one series at steps above `after`; empty for other kinds."""
        return self.histograms_of([series], after=after)[0]

    def points_of(self, ids: Sequence[SeriesId], *, after: int = -1) -> list[Points]:
        """The points of several series, read in one pass."""

    def histograms_of(self, ids: Sequence[SeriesId], *, after: int = -1) -> list[Histograms]:
        """The histograms of several series, read in one pass."""

    def document(self, kind: type[D]) -> D | None:
        """The run's record of this class, if there is one."""

    def revision(self) -> int:
        """A number that increases whenever the model or a document changes."""

    def last_step(self) -> int:
        """The latest step, -1 before the first."""

    def finished(self) -> bool:
        """Whether the writer closed the run; False while it runs, or if it was killed."""

    def status(self) -> RunStatus:
        """Whether the run is running, and how it ended."""

    def close(self) -> None:
        """Release the store."""


Document = (
    Activations
    | Ending
    | Findings
    | Footprint
    | Graph
    | Measures
    | Statistics
    | TraceRecord
    | TrainingFacts
)
D = TypeVar(
    "D",
    Activations,
    Ending,
    Findings,
    Footprint,
    Graph,
    Measures,
    Statistics,
    TraceRecord,
    TrainingFacts,
)

DOCUMENT_NAMES: Mapping[type[Document], str] = {
    Activations: "activations",
    Ending: "ending",
    Findings: "findings",
    Footprint: "footprint",
    Graph: "graph",
    Measures: "measures",
    Statistics: "statistics",
    TraceRecord: "trace",
    TrainingFacts: "training",
}
"""Their names in a store and in URLs."""
