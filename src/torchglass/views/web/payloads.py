"""The JSON of the page: runs, models, series, histograms.

Each payload says the `version` of this format, which goes up when a reader of the old one would
misunderstand. Records are written by `records.plain`: a field at its default is left out.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchglass.analyse.parameters import Counts, count
from torchglass.records.json_data import to_json_data
from torchglass.records.model import Model
from torchglass.records.reader import Reader
from torchglass.records.series import FIELDS, SeriesId
from torchglass.records.tensors import Histogram
from torchglass.views.web import documents
from torchglass.views.web.decimated_steps import GradientNorms, Heat, StepColumn, decimate, in_order

if TYPE_CHECKING:
    from torchglass.views.web.open_runs import OpenRuns

VERSION = 1
MOST_POINTS = 2000
"""Points of one series in one payload: more than a screen has columns."""
MOST_SAVED_POINTS = 500
"""The same in a saved page, which carries all series."""
MOST_SAVED_COLUMNS = 120
"""Columns of a heat map in a saved page."""

Payload = dict[str, Any]

_USUAL = ("running", "finished")


def run_payload(reader: Reader) -> Payload:
    """Who recorded this, and how far it is."""
    return {"version": VERSION, "run": _who(reader), "status": status(reader)}


def runs_payload(shelf: OpenRuns) -> Payload:
    """All runs that can be looked at, and which of them the first is compared with."""
    runs = [_who(reader) for reader in shelf.readers]
    return {"version": VERSION, "runs": runs, "compare": list(shelf.compared)}


def _who(reader: Reader) -> Payload:
    """What a run says of itself; one that is read from a file also what names it in links."""
    run = reader.run()
    path = getattr(reader, "path", None)
    if path is None:
        return dict(to_json_data(run))
    # The same whatever the file is called, and whatever other runs there are.
    file = path.name
    with contextlib.suppress(ValueError, OSError):
        # As it can be opened again from where the program runs.
        file = path.resolve().relative_to(Path.cwd()).as_posix()
    return {**to_json_data(run), "file": file, "id": f"{run.created_ns:x}-{run.rank}"}


def distances_payload(shelf: OpenRuns, number: int, other: int) -> Payload:
    """How far the weights of two runs lie apart; null where they cannot be compared."""
    found = shelf.distances(number, other)
    return {
        "version": VERSION,
        "distances": None
        if found is None
        else {name: _number(value) for name, value in found.items()},
    }


def status(reader: Reader) -> Payload:
    """How far a run is: what changes while it goes on, and what went wrong with it."""
    how = reader.status()
    wrong = {"state": how.state, "how": how.full} if how.state not in _USUAL else {}
    return {
        "last_step": reader.last_step(),
        "finished": reader.finished(),
        "series": len(reader.series()),
        "revision": reader.revision(),
        **wrong,
    }


def _marked(value: int | str) -> str:
    return value if isinstance(value, str) else str(int(value))


def mark(statuses: Sequence[Payload]) -> str:
    """A text that differs whenever a status does: the id of an event."""
    return ";".join(
        ".".join(_marked(value) for name, value in status.items() if name not in ("problem", "how"))
        for status in statuses
    )


def model_payload(model: Model | None) -> Payload:
    """The structure, and for each module a row of what it holds itself and with all below it."""
    if model is None:
        return {"version": VERSION, "model": None}
    names = [field.name for field in fields(Counts)]
    numbers = attrgetter(*names)
    counts = count(model)
    return {
        "version": VERSION,
        "model": to_json_data(model),
        "counts": {
            "fields": names,
            "own": [numbers(row.own) for row in counts],
            "total": [numbers(row.total) for row in counts],
        },
    }


def series_payload(reader: Reader) -> Payload:
    """What was measured, and which numbers a point of each kind has."""
    return {
        "version": VERSION,
        "fields": to_json_data(FIELDS),
        "series": [to_json_data(series) for series in reader.series()],
    }


def points_payload(
    reader: Reader, series: Iterable[SeriesId], *, after: int = -1, limit: int = MOST_POINTS
) -> Payload:
    """The points of some series at steps above `after`, thinned out to `limit` of each."""
    sent = []
    for found in reader.points_of(list(series), after=after):
        points = decimate(in_order(found), limit)
        names = FIELDS[points.series.kind]
        columns = {name: _numbers(points.column(name)) for name in names}
        sent.append(
            {"series": points.series.id, "steps": points.steps.tolist(), "columns": columns}
        )
    return {"version": VERSION, "points": sent}


def histograms_payload(heat: Heat, series: Iterable[SeriesId], *, after: int = -1) -> Payload:
    """The columns of some series that reach above `after`, each as `_column` writes it.

    `width` is how many steps a column holds. When it changed, what was sent before is outdated.
    """
    sent = []
    ids = list(series)
    for asked, ribbon in zip(ids, heat.ribbons(ids), strict=True):
        columns = [_column(one) for one in ribbon.columns if one.last_step > after]
        sent.append({"series": asked, "width": ribbon.width, "columns": columns})
    return {"version": VERSION, "histograms": sent}


def glance_payload(heat: Heat, series: Iterable[SeriesId], *, step: int) -> Payload:
    """The column of each series at a step; null where there was none yet."""
    ids = list(series)
    columns = [ribbon.at(step) for ribbon in heat.ribbons(ids)]
    sent = [
        {"series": asked, "column": None if column is None else _column(column)}
        for asked, column in zip(ids, columns, strict=True)
    ]
    return {"version": VERSION, "step": step, "glances": sent}


def _column(column: StepColumn[Histogram]) -> list[Any]:
    """First and last step, exponent, first bin, counts, and how many values were not finite."""
    bins = column.content
    broken = bins.stats.nan + bins.stats.inf
    return [
        column.first_step,
        column.last_step,
        bins.exponent,
        bins.first,
        list(bins.counts),
        broken,
    ]


def flow_payload(flow: GradientNorms) -> Payload:
    """The norms of all gradients: a row for each module that has any, a number for each column."""
    columns = flow.ribbon().columns
    paths = dict.fromkeys(path for column in columns for path in column.content)
    return {
        "version": VERSION,
        "steps": [[column.first_step, column.last_step] for column in columns],
        "layers": [
            {
                "path": path,
                "norms": [_number(column.content.get(path, math.nan)) for column in columns],
            }
            for path in paths
        ],
    }


def document_payload(reader: Reader, name: str) -> Payload:
    """The model, or one of the records that `documents` knows by name."""
    if name == "model":
        return model_payload(documents.model_of(reader))
    return {"version": VERSION, **documents.DOCUMENTS[name](reader)}


def snapshot(reader: Reader) -> Payload:
    """All of it at once, for a page that is saved."""
    known = reader.series()
    ids = [series.id for series in known]
    spread = [series.id for series in known if series.kind == "histogram"]
    return {
        "run": run_payload(reader),
        "model": document_payload(reader, "model"),
        **{name: document_payload(reader, name) for name in documents.DOCUMENTS},
        "sources": _sources(documents.model_of(reader)),
        "series": series_payload(reader),
        "points": points_payload(reader, ids, limit=MOST_SAVED_POINTS),
        "histograms": histograms_payload(Heat(reader, MOST_SAVED_COLUMNS), spread),
        "flow": flow_payload(GradientNorms(reader)),
    }


def _sources(model: Model | None) -> Payload:
    """The code of the model's own classes; that of torch is no news to anyone."""
    names = (
        [] if model is None else [name for name in model.classes if not name.startswith("torch.")]
    )
    return {name: documents.source(model, name)["source"] for name in names}


def to_json(payload: Payload) -> str:
    """A payload as ASCII text, so that no name can break the encoding."""
    try:
        return json.dumps(payload, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_in_words(payload), separators=(",", ":"), allow_nan=False)


def _in_words(value: Any) -> Any:
    """The same with every number that JSON cannot write as a word."""
    if isinstance(value, dict):
        return {key: _in_words(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_words(each) for each in value]
    return _number(value) if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(column: npt.NDArray[np.float64]) -> list[float | str]:
    return [_number(value) for value in column.tolist()]


def _number(value: float) -> float | str:
    """Seven digits, which is what float32 has; what JSON cannot write as a word `Number` reads."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return int(value) if value.is_integer() else float(f"{value:.7g}")
