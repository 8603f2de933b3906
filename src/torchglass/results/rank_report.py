"""The ranks of a distributed run beside each other: who is slow, who stopped, who has NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from torchglass.analyse.ranks import RankFacts, compare
from torchglass.analyse.training_health import is_loss
from torchglass.records.finding import Finding, Findings
from torchglass.records.series import Points
from torchglass.store.file import FileReader
from torchglass.views.formats import format_time, harmless, pad, width

TIMES = "time."
"""Scalars of the whole model with such names are seconds that a rank took for itself."""


class RankReport:
    """A row for each rank, and what is wrong with some of them."""

    def __init__(self, ranks: Sequence[RankFacts]) -> None:
        self.ranks = tuple(ranks)
        self.findings: tuple[Finding, ...] = compare(self.ranks)

    def __str__(self) -> str:
        names = sorted({name for each in self.ranks for name in each.own_seconds})
        heads = ["rank", "host", "last step", "a step", *names, "first NaN or Inf", "left out"]
        rows = [heads, *(_cells(each, names) for each in self.ranks)]
        widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(pad, row, widths)).rstrip() for row in rows]
        told = [harmless(finding.message) for finding in self.findings]
        return "\n".join([*lines, "", *(told or ["nothing sets one rank apart from the others"])])

    def __repr__(self) -> str:
        return f"<ranks: {len(self.ranks)}, findings: {len(self.findings)}>"


def report(readers: Mapping[int, FileReader]) -> RankReport:
    """The ranks of a run, compared."""
    return RankReport([_facts(reader) for reader in readers.values()])


def _facts(reader: FileReader) -> RankFacts:
    run = reader.run()
    all_points = reader.points_of([series.id for series in reader.series()])
    return RankFacts(
        rank=run.rank,
        host=run.host,
        last_step=reader.last_step(),
        finished=reader.finished(),
        dropped=reader.dropped(),
        step_seconds=_step_seconds(reader),
        own_seconds={
            points.series.name: float(np.median(points.values))
            for points in all_points
            if points.series.kind == "scalar" and points.series.name.startswith(TIMES)
            if len(points)
        },
        first_not_finite=min((*_not_finite(all_points), *_found(reader)), default=None),
    )


def _step_seconds(reader: FileReader) -> float:
    steps, times_ns = reader.times()
    apart = np.diff(steps)
    forward = apart > 0
    if not forward.any():
        return math.nan
    return float(np.median(np.diff(times_ns)[forward] / apart[forward])) / 1e9


def _found(reader: FileReader) -> Iterable[tuple[int, str]]:
    """What was found while the run was recorded."""
    found = reader.document(Findings)
    for one in found.findings if found is not None else ():
        if one.kind in ("nan", "inf") and one.step is not None:
            yield one.step, str(one.facts.get("series", one.path))


def _not_finite(all_points: Sequence[Points]) -> Iterable[tuple[int, str]]:
    """What the points tell; an Inf among them may be a mask's, or that of a scaled gradient."""
    is_scaled = any(points.series.name == "grad_scale" for points in all_points)
    for points in all_points:
        name = points.series.name
        if points.series.kind == "scalar":
            if not points.series.path and not is_loss(name):
                continue
            bad = ~np.isfinite(points.column("value"))
        elif ".grad" in name:
            bad = (points.column("nan") + points.column("inf") > 0) & (not is_scaled)
        else:
            bad = points.column("nan") > 0
        if bad.any():
            yield int(points.steps[bad].min()), points.series.label


def _cells(each: RankFacts, names: Iterable[str]) -> list[str]:
    not_finite = "step {}, {}".format(*each.first_not_finite) if each.first_not_finite else "none"
    state = "" if each.finished else " …"
    return [
        str(each.rank),
        harmless(each.host),
        f"{each.last_step}{state}",
        _seconds(each.step_seconds),
        *(_seconds(each.own_seconds.get(name, math.nan)) for name in names),
        harmless(not_finite),
        str(each.dropped or "none"),
    ]


def _seconds(seconds: float) -> str:
    return "" if math.isnan(seconds) else format_time(seconds)
