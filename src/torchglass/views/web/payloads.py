"""What the page is told: the same JSON whether it asks a server or carries it inside its file.

Each payload says the `version` of this format, which goes up when a reader of the old one would
misunderstand. Records are written by `records.plain`: a field at its default is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import fields
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from torchglass.analyse.model.parameters import Counts, count
from torchglass.errors import StoreError
from torchglass.records.flow import Reader
from torchglass.records.model import Model
from torchglass.records.plain import to_plain
from torchglass.records.series import FIELDS, SeriesId
from torchglass.views.web.decimation import decimate, in_order

VERSION = 1
MOST_POINTS = 2000
"""Points of one series in one payload: more than a screen has columns."""
MOST_SAVED_POINTS = 500
"""The same in a saved page, which carries all series."""

Payload = dict[str, Any]


def run_payload(reader: Reader) -> Payload:
    """Who recorded this, and how far it is."""
    return {"version": VERSION, "run": to_plain(reader.run()), "status": status(reader)}


def status(reader: Reader) -> Payload:
    """How far a run is: what changes while it goes on."""
    return {
        "last_step": reader.last_step(),
        "finished": reader.finished(),
        "series": len(reader.series()),
    }


def model_of(reader: Reader) -> Model | None:
    """The model, or None while the run has none."""
    try:
        return reader.model()
    except StoreError:
        return None


def model_payload(model: Model | None) -> Payload:
    """The structure, and for each module a row of what it holds itself and with all below it."""
    if model is None:
        return {"version": VERSION, "model": None}
    names = [field.name for field in fields(Counts)]
    numbers = attrgetter(*names)
    counts = count(model)
    return {
        "version": VERSION,
        "model": to_plain(model),
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
        "fields": to_plain(FIELDS),
        "series": [to_plain(series) for series in reader.series()],
    }


def points_payload(
    reader: Reader, series: Iterable[SeriesId], *, after: int = -1, limit: int = MOST_POINTS
) -> Payload:
    """The points of some series at steps above `after`, thinned out to `limit` of each."""
    sent = []
    for asked in series:
        points = decimate(in_order(reader.points(asked, after=after)), limit)
        names = FIELDS[points.series.kind]
        columns = {name: _numbers(points.column(name)) for name in names}
        sent.append({"series": asked, "steps": points.steps.tolist(), "columns": columns})
    return {"version": VERSION, "points": sent}


def snapshot(reader: Reader) -> Payload:
    """All of it at once, for a page that is saved."""
    ids = [series.id for series in reader.series()]
    return {
        "run": run_payload(reader),
        "model": model_payload(model_of(reader)),
        "series": series_payload(reader),
        "points": points_payload(reader, ids, limit=MOST_SAVED_POINTS),
    }


def to_json(payload: Payload) -> str:
    """A payload as ASCII text, so that no name can break the encoding."""
    return json.dumps(payload, separators=(",", ":"), allow_nan=False)


def _numbers(column: npt.NDArray[np.float64]) -> list[float | str]:
    return [_number(value) for value in column.tolist()]


def _number(value: float) -> float | str:
    """Seven digits, which is what float32 has; what JSON cannot write as a word `Number` reads."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return int(value) if value.is_integer() else float(f"{value:.7g}")
