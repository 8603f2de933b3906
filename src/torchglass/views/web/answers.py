"""The requests of the page and their answers, the same for a server and a notebook.

    runs        all open runs
    statuses    the progress of each of them
    distances   ?with=1: the distances between the weights of this run and of another
    run         the run and its status
    model       the structure and its counts; null if there is none yet
    source      ?class=shop.Block: the code of a class of the model
    series      all series
    points      ?series=1&series=2&after=100: their points at steps above 100
    histograms  ?series=1&after=100: the histograms of a tensor over steps
    glance      ?series=1&series=2&step=100: the latest histogram of each at a step
    flow        the gradient norms, by module and step
    graph, findings, measures, statistics, spans, activations, memory
                the records of the whole run

`?run=1` selects another run than the first. `api.schema.json` describes the format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torchglass.errors import LookupFailedError, ViewError
from torchglass.records.series import SeriesId
from torchglass.views.web import documents, payloads
from torchglass.views.web.open_runs import OpenRun, OpenRuns

Query = Mapping[str, Sequence[str]]
"""The values of each parameter of a request."""


def answer(runs: OpenRuns, name: str, query: Query) -> bytes:
    """The JSON that answers a request.

    Raises:
        ViewError: A parameter is not valid.
        LookupFailedError: The run, or the name of the request, does not exist.
    """
    if name in _ALL_RUNS:
        return _json(_ALL_RUNS[name](runs, query))
    run = runs.find(_integer(query, "run"))
    if run is None:
        raise LookupFailedError(f"there is no run {_integer(query, 'run')}")
    if name in documents.DOCUMENTS:
        return run.document_json(name)
    if name not in _ONE_RUN:
        raise LookupFailedError(f"there is no answer called {name!r}")
    return _json(_ONE_RUN[name](run, query))


def _runs(runs: OpenRuns, _: Query) -> payloads.Payload:
    return {**payloads.runs_payload(runs), "grows": runs.grows}


def _statuses(runs: OpenRuns, _: Query) -> payloads.Payload:
    return {"version": payloads.VERSION, "runs": runs.statuses()}


def _distances(runs: OpenRuns, query: Query) -> payloads.Payload:
    return payloads.distances_payload(runs, _integer(query, "run"), _integer(query, "with"))


def _points(run: OpenRun, query: Query) -> payloads.Payload:
    return payloads.points_payload(run.reader, _series(query), after=_integer(query, "after", -1))


def _histograms(run: OpenRun, query: Query) -> payloads.Payload:
    after = _integer(query, "after", -1)
    return payloads.histograms_payload(run.histograms, _series(query), after=after)


def _latest_histograms(run: OpenRun, query: Query) -> payloads.Payload:
    step = _integer(query, "step", run.reader.last_step())
    return payloads.latest_histograms_payload(run.histograms, _series(query), step=step)


def _source(run: OpenRun, query: Query) -> payloads.Payload:
    (name,) = query.get("class", [""])[:1]
    code = documents.source(documents.model_of(run.reader), name)
    return {"version": payloads.VERSION, **code}


_ALL_RUNS: Mapping[str, Callable[[OpenRuns, Query], payloads.Payload]] = {
    "runs": _runs,
    "statuses": _statuses,
    "distances": _distances,
}
_ONE_RUN: Mapping[str, Callable[[OpenRun, Query], payloads.Payload]] = {
    "run": lambda run, _: payloads.run_payload(run.reader),
    "series": lambda run, _: payloads.series_payload(run.reader),
    "points": _points,
    "histograms": _histograms,
    "glance": _latest_histograms,
    "flow": lambda run, _: payloads.gradient_norms_payload(run.gradient_norms),
    "source": _source,
}
ENDPOINTS = (*_ALL_RUNS, *_ONE_RUN, *documents.DOCUMENTS)


def _series(query: Query) -> list[SeriesId]:
    return [SeriesId(_parsed("series", text)) for text in query.get("series", ())]


def _integer(query: Query, name: str, default: int = 0) -> int:
    given = query.get(name)
    return _parsed(name, given[0]) if given else default


def _parsed(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ViewError(f"{name} is a whole number") from error


def _json(payload: payloads.Payload) -> bytes:
    return payloads.to_json(payload).encode("ascii")
