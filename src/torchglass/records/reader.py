"""The two interfaces of the system: capture writes to a Sink, views read from a Reader.

A file that is being written and a store in memory are the same thing to both sides.
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

if TYPE_CHECKING:
    from torchglass.records.model import Model
    from torchglass.records.run import RunRecord, RunStatus
    from torchglass.records.series import Frame, Points, Series, SeriesId, SeriesKind
    from torchglass.records.tensors import Histograms


class Sink(Protocol):
    """Where capture writes. No method waits for a disk or raises into the caller's training."""

    def put_model(self, model: Model) -> None:
        """Keep the structure; a later one replaces it."""

    def put_document(self, document: Document) -> None:
        """Keep a record of the whole run; a later one of its class replaces it."""

    def series(self, path: str, name: str, kind: SeriesKind = "scalar") -> SeriesId:
        """The id of the series with this place and name, made on first use."""

    def put_frame(self, frame: Frame) -> None:
        """Keep what was measured at one step."""

    def close(self) -> None:
        """Write what is still waiting, then let go of the store."""


@runtime_checkable
class Reader(Protocol):
    """Where views read, also while a sink is still writing."""

    def run(self) -> RunRecord:
        """Who recorded this, where and when."""

    def model(self) -> Model:
        """The structure of the model."""

    def series(self) -> Sequence[Series]:
        """What was measured, in the order in which it was first seen."""

    def points(self, series: SeriesId, *, after: int = -1) -> Points:
        """The points of one series at steps above `after`."""

    def histograms(self, series: SeriesId, *, after: int = -1) -> Histograms:
        """The bins of one series of histograms at steps above `after`; none of any other kind."""

    def points_of(self, ids: Sequence[SeriesId], *, after: int = -1) -> list[Points]:
        """The points of several series, for hardly more than the price of one."""

    def histograms_of(self, ids: Sequence[SeriesId], *, after: int = -1) -> list[Histograms]:
        """The bins of several series, for hardly more than the price of one."""

    def document(self, kind: type[D]) -> D | None:
        """The record of this class that the run keeps, if there is one."""

    def revision(self) -> int:
        """A number that goes up whenever the model or a document changes."""

    def last_step(self) -> int:
        """The latest step there is, -1 before the first."""

    def finished(self) -> bool:
        """Whether the writer closed the run; False while it goes on, or if it was killed."""

    def status(self) -> RunStatus:
        """How the run is doing, or how it ended."""

    def close(self) -> None:
        """Let go of the store."""


Document = Activations | Ending | Findings | Footprint | Graph | Measures | Statistics | TraceRecord
D = TypeVar("D", Activations, Ending, Findings, Footprint, Graph, Measures, Statistics, TraceRecord)

DOCUMENT_NAMES: Mapping[type[Document], str] = {
    Activations: "activations",
    Ending: "ending",
    Findings: "findings",
    Footprint: "footprint",
    Graph: "graph",
    Measures: "measures",
    Statistics: "statistics",
    TraceRecord: "trace",
}
"""What each is called in a store and in addresses."""
