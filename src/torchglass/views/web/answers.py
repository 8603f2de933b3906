"""The requests of the page and their answers, the same for a server and a notebook.

runs        the runs that can be looked at, the first one first
    statuses    how far each of them is
    distances   ?with=1: how far the weights of this run and of another lie apart
    run         who recorded this, and how far it is
    model       the structure and its counts; null while there is none
    source      ?class=shop.Block: the code of a class of the model
    series      what was measured
    points      ?series=1&series=2&after=100: their points at steps above 100
    histograms  ?series=1&after=100: how the numbers of a tensor were spread, over steps
    glance      ?series=1&series=2&step=100: the latest histogram of each at a step
    flow        the norms of all gradients, along the depth of the model and over steps
    graph, findings, measures, statistics, spans, activations, memory
                the records of the whole run

`?run=1` asks for another run than the first. `api.schema.json` describes the format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torchglass.errors import LookupFailedError, ViewError
from torchglass.records.series import SeriesId
from torchglass.views.web import documents, payloads
from torchglass.views.web.open_runs import OpenRuns, ShownRun

Query = Mapping[str, Sequence[str]]
"""The values of each name in a question."""


def answer(shelf: OpenRuns, name: str, query: Query) -> bytes:
    """The JSON for a question.

    Raises ViewError for one that nobody understands and LookupFailedError where there is nothing.
    """
    if name == "runs":
        return _json({**payloads.runs_payload(shelf), "grows": shelf.grows})
    if name == "statuses":
        return _json({"version": payloads.VERSION, "runs": shelf.statuses()})
    (number,) = _whole_numbers(query, "run", default=0)
    if name == "distances":
        (other,) = _whole_numbers(query, "with", default=0)
        return _json(payloads.distances_payload(shelf, number, other))
    run = shelf.find(number)
    if run is None:
        raise LookupFailedError(f"there is no run {number}")
    if name in KEPT:
        return run.kept(name)
    if name not in _ANEW:
        raise LookupFailedError(f"there is no answer called {name!r}")
    return _json(_ANEW[name](run, query))


def _points(run: ShownRun, query: Query) -> payloads.Payload:
    (after,) = _whole_numbers(query, "after", default=-1)
    return payloads.points_payload(run.reader, _series(query), after=after)


def _histograms(run: ShownRun, query: Query) -> payloads.Payload:
    (after,) = _whole_numbers(query, "after", default=-1)
    return payloads.histograms_payload(run.heat, _series(query), after=after)


def _glance(run: ShownRun, query: Query) -> payloads.Payload:
    (step,) = _whole_numbers(query, "step", default=run.reader.last_step())
    return payloads.glance_payload(run.heat, _series(query), step=step)


def _source(run: ShownRun, query: Query) -> payloads.Payload:
    (name,) = query.get("class", [""])[:1]
    code = documents.source(documents.model_of(run.reader), name)
    return {"version": payloads.VERSION, **code}


_ANEW: Mapping[str, Callable[[ShownRun, Query], payloads.Payload]] = {
    "run": lambda run, _: payloads.run_payload(run.reader),
    "series": lambda run, _: payloads.series_payload(run.reader),
    "points": _points,
    "histograms": _histograms,
    "glance": _glance,
    "flow": lambda run, _: payloads.flow_payload(run.flow),
    "source": _source,
}
KEPT = ("model", *documents.DOCUMENTS)
"""What stays the same until the run's revision changes."""
NAMES = ("runs", "statuses", "distances", *_ANEW, *KEPT)


def _series(query: Query) -> list[SeriesId]:
    return [SeriesId(asked) for asked in _whole_numbers(query, "series")]


def _whole_numbers(query: Query, name: str, default: int | None = None) -> list[int]:
    asked = query.get(name) or ([] if default is None else [str(default)])
    try:
        numbers = [int(text) for text in asked]
    except ValueError as error:
        raise ViewError(f"{name} is a whole number") from error
    return numbers if default is None else numbers[:1]


def _json(payload: payloads.Payload) -> bytes:
    return payloads.to_json(payload).encode("ascii")
