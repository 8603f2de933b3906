"""The JSON of the page: runs, series, points, histograms and gradient norms.

Each payload has the `version` of this format, which increases when a reader of the old format would
misread the new one. Records are written by `records.json_data`: a field at its default is left out.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchglass.records.json_data import to_json_data
from torchglass.records.model import Model
from torchglass.records.reader import Reader
from torchglass.records.series import FIELDS, SeriesId
from torchglass.records.tensors import Histogram
from torchglass.views.web import documents
from torchglass.views.web.decimated_steps import (
    GradientNormColumns,
    HistogramColumns,
    StepColumn,
    decimate,
    in_order,
)

if TYPE_CHECKING:
    from torchglass.views.web.open_runs import OpenRuns

VERSION = 1
MOST_POINTS = 2000
"""Points of one series in one payload: more than a screen has pixel columns."""
MOST_SAVED_POINTS = 500
"""The same in a saved page, which carries all series."""
MOST_SAVED_COLUMNS = 120
"""Columns of a heat map in a saved page."""

Payload = dict[str, Any]

_USUAL = ("running", "finished")


def run_payload(reader: Reader) -> Payload:
    """The run and its status."""
    return {"version": VERSION, "run": _run_and_file(reader), "status": status(reader)}


def runs_payload(runs: OpenRuns) -> Payload:
    """All open runs, and which of them the first one is compared with."""
    return {
        "version": VERSION,
        "runs": [_run_and_file(reader) for reader in runs.readers],
        "compare": list(runs.compared),
    }


def _run_and_file(reader: Reader) -> Payload:
    """The record of a run; for a run file also its path and the id that links use."""
    run = reader.run()
    path = getattr(reader, "path", None)
    if path is None:
        return dict(to_json_data(run))
    # The id depends neither on the file's name nor on the other runs.
    file = path.name
    with contextlib.suppress(ValueError, OSError):
        # A path that can be opened from the working directory of the program.
        file = path.resolve().relative_to(Path.cwd()).as_posix()
    return {**to_json_data(run), "file": file, "id": f"{run.created_ns:x}-{run.rank}"}


def distances_payload(runs: OpenRuns, number: int, other: int) -> Payload:
    """The distances between the weights of two runs; null if they cannot be compared."""
    found = runs.distances(number, other)
    return {
        "version": VERSION,
        "distances": None
        if found is None
        else {name: _number(value) for name, value in found.items()},
    }


def status(reader: Reader) -> Payload:
    """The progress of a run, and how it failed if it did."""
    how = reader.status()
    wrong = {"state": how.state, "how": how.full} if how.state not in _USUAL else {}
    return {
        "last_step": reader.last_step(),
        "finished": reader.finished(),
        "series": len(reader.series()),
        "revision": reader.revision(),
        **wrong,
    }


def status_mark(statuses: Sequence[Payload]) -> str:
    """A text that changes whenever a status does: the id of an event."""
    return ";".join(
        ".".join(
            value if isinstance(value, str) else str(int(value))
            for name, value in status.items()
            if name not in ("problem", "how")
        )
        for status in statuses
    )


def series_payload(reader: Reader) -> Payload:
    """All series, and the fields of a point of each kind."""
    return {
        "version": VERSION,
        "fields": to_json_data(FIELDS),
        "series": [to_json_data(series) for series in reader.series()],
    }


def points_payload(
    reader: Reader, series: Iterable[SeriesId], *, after: int = -1, limit: int = MOST_POINTS
) -> Payload:
    """The points of some series at steps above `after`, reduced to `limit` per series."""
    sent = []
    for found in reader.points_of(list(series), after=after):
        points = decimate(in_order(found), limit)
        names = FIELDS[points.series.kind]
        columns = {name: _numbers(points.column(name)) for name in names}
        sent.append(
            {"series": points.series.id, "steps": points.steps.tolist(), "columns": columns}
        )
    return {"version": VERSION, "points": sent}


def histograms_payload(
    histograms: HistogramColumns, series: Iterable[SeriesId], *, after: int = -1
) -> Payload:
    """The columns of some series that reach above `after`, each as `_column` writes it.

    `width` is the number of steps per column. When it changes, earlier columns are outdated.
    """
    ids = list(series)
    sent = [
        {
            "series": asked,
            "width": found.width,
            "columns": [_column(one) for one in found.columns if one.last_step > after],
        }
        for asked, found in zip(ids, histograms.columns_of(ids), strict=True)
    ]
    return {"version": VERSION, "histograms": sent}


def latest_histograms_payload(
    histograms: HistogramColumns, series: Iterable[SeriesId], *, step: int
) -> Payload:
    """The histogram of each series at a step or the last one before it; null if there is none."""
    ids = list(series)
    columns = [found.at(step) for found in histograms.columns_of(ids)]
    sent = [
        {"series": asked, "column": None if column is None else _column(column)}
        for asked, column in zip(ids, columns, strict=True)
    ]
    return {"version": VERSION, "step": step, "glances": sent}


def _column(column: StepColumn[Histogram]) -> list[Any]:
    """First and last step, exponent, first bin, counts, and the number of NaN and Inf."""
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


def gradient_norms_payload(norms: GradientNormColumns) -> Payload:
    """The gradient norms: a row per module with gradients, a value per column."""
    columns = norms.columns().columns
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
    """The model, or another record of the whole run."""
    return {"version": VERSION, **documents.DOCUMENTS[name](reader)}


def snapshot(reader: Reader) -> Payload:
    """The whole run, for a saved page."""
    known = reader.series()
    ids = [series.id for series in known]
    spread = [series.id for series in known if series.kind == "histogram"]
    return {
        "run": run_payload(reader),
        **{name: document_payload(reader, name) for name in documents.DOCUMENTS},
        "sources": _sources(documents.model_of(reader)),
        "series": series_payload(reader),
        "points": points_payload(reader, ids, limit=MOST_SAVED_POINTS),
        "histograms": histograms_payload(HistogramColumns(reader, MOST_SAVED_COLUMNS), spread),
        "flow": gradient_norms_payload(GradientNormColumns(reader)),
    }


def _sources(model: Model | None) -> Payload:
    """The code of the model's own classes, without those of torch."""
    names = (
        [] if model is None else [name for name in model.classes if not name.startswith("torch.")]
    )
    return {name: documents.source(model, name)["source"] for name in names}


def to_json(payload: Payload) -> str:
    """A payload as ASCII text, so that no name can break the encoding."""
    try:
        return json.dumps(payload, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_nonfinite_as_text(payload), separators=(",", ":"), allow_nan=False)


def _nonfinite_as_text(value: Any) -> Any:
    """The same with NaN and Inf as text, which JSON cannot write as numbers."""
    if isinstance(value, dict):
        return {key: _nonfinite_as_text(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_nonfinite_as_text(each) for each in value]
    return _number(value) if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(column: npt.NDArray[np.float64]) -> list[float | str]:
    return [_number(value) for value in column.tolist()]


def _number(value: float) -> float | str:
    """Seven digits, the precision of float32; NaN and Inf as text that JavaScript can read."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return int(value) if value.is_integer() else float(f"{value:.7g}")
