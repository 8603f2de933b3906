"""The requests of the page and their answers, the same for a server and a notebook.

    table       ?where=lr<1e-3&sort=-loss&count=200: the runs of a folder
    curves      ?path=a.glass&path=b.glass: the loss of some of them, or as for `table`
    open        ?which=runs/a.glass: opens a run of the folder
    runs        all open runs
    statuses    the progress of each of them
    distances   ?with=1: the distances between the weights of this run and of another
    reports     what verbs such as `tg.compare` returned about the first run
    run         the run and its status
    model       the structure and its counts; null if there is none yet
    source      ?class=shop.Block: the code of a class of the model
    series      all series
    points      ?series=1&series=2&after=100: their points at steps above 100
    histograms  ?series=1&after=100: the histograms of a tensor over steps
    glance      ?series=1&series=2&step=100: the latest histogram of each at a step
    layers      ?statistic=gradient&after=100: a statistic by module and step
    graph, findings, measures, statistics, spans, activations, memory
                the records of the whole run

`?run=1` selects another run than the first. `api.schema.json` describes the format.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from torchglass.analyse.training_overview import STATISTICS, HeatMaps, Statistic
from torchglass.errors import LookupFailedError, StoreError, ViewError
from torchglass.records.run import Reader, SeriesId
from torchglass.views.web import payloads
from torchglass.views.web.decimated_steps import (
    MOST_COLUMNS,
    HistogramColumns,
)


class OpenRun:
    """A run with what is cached between requests."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.histograms = HistogramColumns(reader)
        self._layers: HeatMaps | None = None
        self._documents: dict[str, tuple[int, bytes]] = {}

    @property
    def layers(self) -> HeatMaps:
        """The heat maps of the run; how many columns they have depends on its model."""
        if self._layers is not None:
            return self._layers
        layers = payloads.heat_maps(self.reader, payloads.MOST_CELLS, MOST_COLUMNS)
        if payloads.model_of(self.reader) is not None:
            self._layers = layers
        return layers

    def document_json(self, name: str) -> bytes:
        """The model or a document as JSON, rebuilt when the revision of the run changes."""
        revision = self.reader.revision()
        known = self._documents.get(name)
        if known is None or known[0] != revision:
            document = payloads.document_payload(self.reader, name)
            known = self._documents[name] = revision, payloads.to_json(document)
        return known[1]


Distances = Callable[[Reader, Reader], Mapping[str, float] | None]
"""The distances between the tensors of two targets, by name; None if either has no tensors."""


Reports = Mapping[str, Callable[[], payloads.Payload]]
"""What verbs returned about the first run, by kind, such as "Comparison"."""


class RunsFolder(Protocol):
    """A folder of runs: a table of all, of which few are open."""

    def new_readers(self) -> Sequence[Reader]:
        """The latest runs that are not open yet, as long as few are."""

    def open(self, which: str) -> Reader:
        """A run by its path in the folder, or its id."""

    def table(self, *, where: str, sort: str, count: int) -> Mapping[str, Any]:
        """The first runs of the table, filtered and sorted."""

    def losses(self, paths: Sequence[str]) -> Mapping[str, npt.NDArray[np.float64]]:
        """The loss of some runs: a row of steps and one of values each."""


_SECONDS_BETWEEN_LOOKS = 1.0


class OpenRuns:
    """The runs that a page shows; with a `folder`, runs that appear in it later are appended.

    `compared` are the indices of the runs that the page compares the first one with at the start.
    """

    def __init__(
        self,
        readers: Sequence[Reader],
        folder: RunsFolder | None = None,
        *,
        compared: Sequence[int] = (),
        distances: Distances | None = None,
        reports: Reports | None = None,
    ) -> None:
        self.readers = tuple(readers)
        self.compared = tuple(compared)
        self.report_kinds = tuple(reports or ())
        self._reports = reports or {}
        self._known_reports: list[payloads.Payload] | None = None
        self._distances = distances
        self._known_distances: dict[tuple[int, int], Mapping[str, float] | None] = {}
        self._runs = [OpenRun(reader) for reader in readers]
        self.folder = folder
        self._numbers: dict[str, int] = {}
        """Those of the runs that were opened from the table, by path or id."""
        self._looked = time.monotonic()
        self._lock = threading.Lock()
        self._comparing = threading.Lock()

    @property
    def grows(self) -> bool:
        return self.folder is not None

    def find(self, number: int) -> OpenRun | None:
        """The run at an index, or None."""
        return self._runs[number] if 0 <= number < len(self._runs) else None

    def distances(self, number: int, other: int) -> Mapping[str, float] | None:
        """The distances from the tensors of the second run to those of the first."""
        pair = number, other
        if self._distances is None or not all(0 <= each < len(self.readers) for each in pair):
            return None
        if pair not in self._known_distances:
            # A separate lock: reading large checkpoints must not block other requests.
            with self._comparing:
                if pair not in self._known_distances:
                    found = self._distances(self.readers[other], self.readers[number])
                    self._known_distances[pair] = found
        return self._known_distances[pair]

    def reports(self) -> list[payloads.Payload]:
        """The reports about the first run; they are made when they are first asked for."""
        if self._known_reports is None:
            with self._comparing:
                if self._known_reports is None:
                    self._known_reports = [make() for make in self._reports.values()]
        return self._known_reports

    def statuses(self) -> list[payloads.Payload]:
        """The progress of each run. A run that cannot be read does not hide the others."""
        self._look_for_more()
        if len(self.readers) == 1:
            return [payloads.status(self.readers[0])]
        return [_status_or_problem(reader) for reader in self.readers]

    def _look_for_more(self) -> None:
        with self._lock:
            now = time.monotonic()
            if self.folder is None or now - self._looked < _SECONDS_BETWEEN_LOOKS:
                return
            self._looked = now
            self._add(self.folder.new_readers())

    def open(self, which: str) -> int:
        """The number of a run of the folder, which is opened if it is not open yet."""
        if self.folder is None:
            raise LookupFailedError("this page shows no folder of runs")
        with self._lock:
            if which not in self._numbers:
                reader = self.folder.open(which)
                path, run = getattr(reader, "path", None), reader.run()
                for number, known in enumerate(self.readers):
                    if getattr(known, "path", None) == path and known.run() == run:
                        reader.close()
                        self._numbers[which] = number
                        break
                else:
                    self._numbers[which] = len(self.readers)
                    self._add([reader])
            return self._numbers[which]

    def _add(self, found: Sequence[Reader]) -> None:
        self._runs += [OpenRun(reader) for reader in found]
        self.readers += tuple(found)


def _status_or_problem(reader: Reader) -> payloads.Payload:
    try:
        return payloads.status(reader)
    except StoreError as error:
        ended = {"last_step": -1, "finished": True, "series": 0, "revision": 0}
        return {**ended, "problem": str(error)}


Query = Mapping[str, Sequence[str]]
"""The values of each parameter of a request."""


def answer(runs: OpenRuns, name: str, query: Query) -> bytes:
    """The JSON that answers a request.

    Raises:
        ViewError: A parameter is not valid.
        LookupFailedError: The run, or the name of the request, does not exist.
    """
    if name in _ALL_RUNS:
        return payloads.to_json(_ALL_RUNS[name](runs, query))
    run = runs.find(_integer(query, "run"))
    if run is None:
        raise LookupFailedError(f"there is no run {_integer(query, 'run')}")
    if name in payloads.DOCUMENTS:
        return run.document_json(name)
    if name not in _ONE_RUN:
        raise LookupFailedError(f"there is no API request called {name!r}")
    return payloads.to_json(_ONE_RUN[name](run, query))


def _source(run: OpenRun, query: Query) -> payloads.Payload:
    (name,) = query.get("class", [""])[:1]
    code = payloads.source(payloads.model_of(run.reader), name)
    return {"version": payloads.VERSION, **code}


class _TableQuery(TypedDict):
    where: str
    sort: str
    count: int


def _table(runs: OpenRuns, query: Query) -> payloads.Payload:
    if runs.folder is None:
        raise LookupFailedError("this page shows no folder of runs")
    try:
        return {
            "version": payloads.VERSION,
            "table": dict(runs.folder.table(**_of_table(query))),
        }
    except ViewError as error:
        # A filter that is being typed is often wrong, and no failure of the page.
        return {"version": payloads.VERSION, "problem": str(error)}


def _curves(runs: OpenRuns, query: Query) -> payloads.Payload:
    if runs.folder is None:
        raise LookupFailedError("this page shows no folder of runs")
    paths = query.get("path")
    if paths is None:
        table = runs.folder.table(**_of_table(query))
        paths = [row["path"] for row in table["rows"]]
    found = runs.folder.losses(paths)
    return {
        "version": payloads.VERSION,
        "curves": [payloads.curve(path, *rows) for path, rows in found.items()],
    }


_ROWS, _MOST_ROWS = 200, 10_000


def _of_table(query: Query) -> _TableQuery:
    return {
        "where": _text(query, "where"),
        "sort": _text(query, "sort"),
        "count": min(_integer(query, "count", _ROWS), _MOST_ROWS),
    }


_ALL_RUNS: Mapping[str, Callable[[OpenRuns, Query], payloads.Payload]] = {
    "table": _table,
    "curves": _curves,
    "open": lambda runs, query: {
        "version": payloads.VERSION,
        "number": runs.open(_text(query, "which")),
    },
    "runs": lambda runs, _: payloads.runs_payload(runs),
    "reports": lambda runs, _: payloads.reports_payload(runs),
    "statuses": lambda runs, _: {"version": payloads.VERSION, "runs": runs.statuses()},
    "distances": lambda runs, query: payloads.distances_payload(
        runs, _integer(query, "run"), _integer(query, "with")
    ),
}
_ONE_RUN: Mapping[str, Callable[[OpenRun, Query], payloads.Payload]] = {
    "run": lambda run, _: payloads.run_payload(run.reader),
    "series": lambda run, _: payloads.series_payload(run.reader, run.layers),
    "points": lambda run, query: payloads.points_payload(
        run.reader, _series(query), after=_integer(query, "after", -1)
    ),
    "histograms": lambda run, query: payloads.histograms_payload(
        run.histograms, _series(query), after=_integer(query, "after", -1)
    ),
    "glance": lambda run, query: payloads.latest_histograms_payload(
        run.histograms, _series(query), step=_integer(query, "step", run.reader.last_step())
    ),
    "layers": lambda run, query: payloads.layers_payload(
        run.layers, _statistic(query), after=_integer(query, "after", -1)
    ),
    "source": _source,
}
ENDPOINTS = (*_ALL_RUNS, *_ONE_RUN, *payloads.DOCUMENTS)


def _text(query: Query, name: str) -> str:
    return next(iter(query.get(name, ())), "")


def _series(query: Query) -> list[SeriesId]:
    return [SeriesId(_parsed("series", text)) for text in query.get("series", ())]


def _statistic(query: Query) -> Statistic:
    (name,) = query.get("statistic", ["gradient"])[:1]
    for statistic in STATISTICS:
        if statistic == name:
            return statistic
    raise ViewError(f"statistic must be one of {', '.join(STATISTICS)}")


def _integer(query: Query, name: str, default: int = 0) -> int:
    given = query.get(name)
    return _parsed(name, given[0]) if given else default


def _parsed(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ViewError(f"{name} must be an integer") from error
