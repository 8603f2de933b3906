"""A recorded run: how it ended, its series of values, and the two interfaces to it.

Capture writes to a Sink, views read from a Reader. A run file that is being written and a store in
memory have the same interface.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NewType, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from torchglass.records.calls import Statistics
from torchglass.records.findings import Findings
from torchglass.records.measures import Footprint, Measures
from torchglass.records.model import Activations, Histograms, Model, join_path
from torchglass.records.step_points import FIELDS, Point, SeriesKind
from torchglass.records.trace import Graph, TraceRecord
from torchglass.records.training import TrainingFacts

State = Literal["running", "finished", "stopped", "interrupted", "killed", "stalled"]
"""The state of a run: its process is running, finished normally, was stopped by an exception or
by Ctrl-C, was killed, or is alive but makes no steps."""

ConfigValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What was recorded, where and when."""

    name: str
    created_ns: int
    """Since the epoch."""
    host: str = ""
    command: str = ""
    """The command line of the recorded process."""
    torchglass_version: str = ""
    torch_version: str = ""
    rank: int = 0
    world_size: int = 1
    group: str = ""
    """An id that all ranks of one training share; "" if unknown."""
    sample_n: int | None = 100
    """The number of values per tensor that histograms sample; None for all values."""
    reject_outlier_proportion: float = 0.1
    """The share of extreme values of a histogram that views hide by default."""
    config: Mapping[str, ConfigValue] = field(default_factory=dict)
    """The settings of the training, as the user passed them; nested ones have dotted names."""
    notes: str = ""
    """What the user wrote about the run."""
    git_commit: str = ""
    """The commit that was checked out where the program is; "" outside of a repository."""
    store: str = ""
    """The URL of the object store that it is shipped to, without secrets; "" if none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One process that wrote to a run: the one that started it, or one that resumed it."""

    number: int
    """From 1, in the order of time."""
    run: RunRecord
    first_step: int | None = None
    """The step at which it started or resumed; None before its first step."""
    last_step: int | None = None
    abandoned_from: int | None = None
    """The step from which a later session started again, so that this branch ends there;
    None if later sessions continued it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended, as written by its process when it closed the run."""

    state: State = "finished"
    step: int = -1
    """The step that was running."""
    error: str = ""
    """The class of the exception that stopped it: "RuntimeError"."""
    message: str = ""
    """The first line of its message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """One run of a folder, as a table of runs lists it."""

    path: str
    """The path of its file in the folder."""
    run: RunRecord
    ending: Ending = field(default_factory=Ending)
    """How it ended, or its state when it was read."""
    last_step: int = -1
    seconds: float = 0.0
    """From its start to its last step."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The last value of everything that was logged for the whole model, such as the loss."""
    problems: tuple[str, ...] = ()
    """The messages of its findings, the worst first, without mere information."""
    severity: str = ""
    """That of its worst finding: "error", "warning" or ""."""
    bytes: int = 0
    ranks: int = 1
    is_trace: bool = False
    """Whether the file has a trace of one forward, and no training."""
    unreadable: str = ""
    """Why it cannot be read; "" if it can."""

    @property
    def id(self) -> str:
        """The id of the run in links; moving its file or adding runs does not change it."""
        return f"{self.run.created_ns:x}-{self.run.rank}"

    @property
    def status(self) -> RunStatus:
        """How it ended, or that it is running."""
        return status_of_ending(self.ending)


class RunStatus(str):
    """The status of a run: a text that also has its parts as attributes.

    >>> status = RunStatus("stopped", step=40, error="RuntimeError", message="out of memory")
    >>> status, status.state, status.step, status.message
    ('stopped by RuntimeError at step 40', 'stopped', 40, 'out of memory')
    """

    state: State
    step: int
    error: str
    message: str
    seconds: float

    def __new__(  # noqa: PYI034 - Self is not in Python 3.10
        cls,
        state: State,
        *,
        step: int = -1,
        error: str = "",
        message: str = "",
        seconds: float = 0.0,
    ) -> RunStatus:
        """`seconds` is the time since the last step of a stalled run."""
        status = super().__new__(cls, _in_words(state, step, error, seconds))
        status.state, status.step, status.seconds = state, step, seconds
        status.error, status.message = error, message
        return status

    @property
    def is_over(self) -> bool:
        """Whether the run has ended; it may still be resumed."""
        return self.state not in ("running", "stalled")

    @property
    def has_failed(self) -> bool:
        """Whether the run did not end normally."""
        return self.state in ("stopped", "interrupted", "killed")

    @property
    def full(self) -> str:
        """The text, with the message of the exception: "stopped by … at step 40: out of memory"."""
        return f"{self}: {self.message}" if self.message else str(self)


_WORST = ("stopped", "killed", "interrupted", "stalled", "running", "finished")


def status_of_ending(ending: Ending) -> RunStatus:
    """The status of a run whose ending is known."""
    return RunStatus(ending.state, step=ending.step, error=ending.error, message=ending.message)


def worst_status(statuses: Iterable[RunStatus]) -> RunStatus:
    """The status that needs attention most, of the ranks of one run."""
    return min(statuses, key=lambda status: _WORST.index(status.state))


def _in_words(state: State, step: int, error: str, seconds: float) -> str:
    at_step = f" at step {step}" if step >= 0 else ""
    if state == "stopped":
        return f"stopped by {error}{at_step}"
    if state == "interrupted":
        return f"interrupted{at_step}"
    return f"stalled for {_duration(seconds)}" if state == "stalled" else state


def _duration(seconds: float) -> str:
    """A duration in the largest unit with a value of at least 2: "40 s", "3 h"."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


SeriesId = NewType("SeriesId", int)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One quantity of one module, over steps."""

    id: SeriesId
    path: str
    """The module it belongs to; "" for the model as a whole."""
    name: str
    """The quantity: "loss", "weight", "weight.grad"."""
    kind: SeriesKind = "scalar"

    @property
    def label(self) -> str:
        """Its full name: "encoder.0.weight.grad"."""
        return join_path(self.path, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """All measurements of one step."""

    step: int
    time_ns: int
    """Since the epoch."""
    points: Mapping[SeriesId, Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Points of one series: row i of `values` was measured at `steps[i]`."""

    series: Series
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    """One column for each of `FIELDS[series.kind]`."""

    def column(self, field: str) -> npt.NDArray[np.float64]:
        """One value of each point: `points.column("mean")`."""
        column: npt.NDArray[np.float64] = self.values[:, FIELDS[self.series.kind].index(field)]
        return column

    def __len__(self) -> int:
        return len(self.steps)


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

    def points_of(
        self, ids: Sequence[SeriesId], *, after: int = -1, most: int | None = None
    ) -> list[Points]:
        """The points of several series, read in one pass.

        With `most` at most this many steps are read, spread evenly over those that measured at
        least half as much as the fullest one.
        """

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
