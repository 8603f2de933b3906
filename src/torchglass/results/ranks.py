"""The ranks of a distributed run, read as one and compared."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np

from torchglass.analyse import histograms
from torchglass.analyse.diagnosis.training_view import is_loss
from torchglass.errors import StoreError, TorchglassError
from torchglass.records.findings import Finding, Findings
from torchglass.records.model import Histogram, Histograms, Model
from torchglass.records.run import (
    D,
    Points,
    RunRecord,
    RunStatus,
    Series,
    SeriesId,
    Session,
    worst_status,
)
from torchglass.records.step_points import FIELDS
from torchglass.store.readers import FileReader
from torchglass.store.run_file import Catalog
from torchglass.tables.text import aligned_rows, format_time, harmless

SLOW = 1.3
"""A rank is slow if it takes this many times the median of the others."""

BEHIND = 10
"""A rank has stopped if it is this many steps behind the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """The values of one rank that can be compared with the others."""

    rank: int
    host: str = ""
    last_step: int = -1
    finished: bool = False
    dropped: int = 0
    step_seconds: float = math.nan
    """The median time per step; NaN before the second step."""
    own_seconds: Mapping[str, float] = field(default_factory=dict)
    """Logged times by name, which do not include waiting for other ranks."""
    first_not_finite: tuple[int, str] | None = None
    """The step and series of the first NaN or Inf."""


def compare(ranks: Sequence[RankFacts]) -> tuple[Finding, ...]:
    """Problems of some ranks, but not of all."""
    return (*_nonfinite_ranks(ranks), *_stopped(ranks), *_slow(ranks), *_dropped(ranks))


def _nonfinite_ranks(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    hit = {each.rank: each.first_not_finite for each in ranks if each.first_not_finite}
    for rank, (step, label) in sorted(hit.items(), key=lambda item: item[1]):
        others = len(hit) - 1
        elsewhere = f"so do {others} others" if others else "all other ranks are finite"
        yield Finding(
            severity="error",
            kind="rank-not-finite",
            message=f"rank {rank} has NaN or Inf since step {step}, first in {label}; {elsewhere}",
            step=step,
            facts={"rank": rank, "series": label},
        )


def _stopped(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    furthest = max((each.last_step for each in ranks), default=-1)
    for each in ranks:
        if furthest - each.last_step >= BEHIND:
            how = "ended" if each.finished else "stopped"
            where = f"at step {each.last_step}" if each.last_step >= 0 else "before its first step"
            yield Finding(
                severity="error",
                kind="rank-behind",
                message=f"rank {each.rank} {how} {where}, but others reached {furthest}",
                step=each.last_step,
                facts={"rank": each.rank},
            )


def _slow(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    names = {name for each in ranks for name in each.own_seconds}
    for name in sorted(names):
        times = {each.rank: each.own_seconds.get(name, math.nan) for each in ranks}
        yield from _stragglers(times, f"in {name}")
    yield from _stragglers({each.rank: each.step_seconds for each in ranks}, "per step")


def _stragglers(seconds: Mapping[int, float], what: str) -> Iterator[Finding]:
    known = sorted(each for each in seconds.values() if not math.isnan(each))
    for rank, own in seconds.items():
        if len(known) < 2 or math.isnan(own):
            continue
        usual = _median_without(known, own)
        if own > SLOW * usual > 0:
            ratio = own / usual
            yield Finding(
                severity="warning",
                kind="straggler",
                message=f"rank {rank} takes {ratio:.1f} times as long as the others {what}",
                facts={"rank": rank, "ratio": ratio},
            )


def _median_without(ordered: Sequence[float], value: float) -> float:
    """The median of ordered values without one of them, without a copy: there may be thousands."""
    gone, rest = bisect_left(ordered, value), len(ordered) - 1

    def at(place: int) -> float:
        return ordered[place + (place >= gone)]

    return (at((rest - 1) // 2) + at(rest // 2)) / 2


def _dropped(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    for each in ranks:
        if each.dropped:
            yield Finding(
                severity="info",
                kind="rank-left-out-steps",
                message=f"rank {each.rank} left out {each.dropped} steps: its disk was too slow",
                facts={"rank": each.rank, "steps": each.dropped},
            )


LOST_NS = 60_000_000_000
"""A rank is not waited for when its latest step is this much older than that of the others."""

_MOST_BYTES = 256 << 20
"""Values of all ranks that are in memory at a time, unless one series has more."""

T = TypeVar("T")


@final
class RanksReader:
    """A reader of all ranks together.

    Statistics and histograms are those of the values of all ranks; scalars are the mean over the
    ranks. A step is visible once every rank that is still running has written it.
    """

    def __init__(self, readers: Sequence[FileReader]) -> None:
        self.ranks: Mapping[int, FileReader] = {
            reader.run().rank: reader
            for reader in sorted(readers, key=lambda reader: reader.run().rank)
        }
        self._catalog = Catalog()

    @property
    def path(self) -> Path:
        """The folder that the files are in."""
        return next(iter(self.ranks.values())).path.parent

    def run(self) -> RunRecord:
        """What recorded this run, where and when, on the first rank."""
        return next(iter(self.ranks.values())).run()

    def model(self) -> Model:
        """The structure of the model on the first rank that has one."""
        return self._first(FileReader.model)

    def document(self, kind: type[D]) -> D | None:
        """The record of this class that the first of the ranks keeps, if one does."""
        found = (reader.document(kind) for reader in self.ranks.values())
        return next((document for document in found if document is not None), None)

    def revision(self) -> int:
        """A number that goes up when anything but the series changes on a rank."""
        return sum(reader.revision() for reader in self.ranks.values())

    def series(self) -> Sequence[Series]:
        """What was measured on any rank."""
        for reader in self.ranks.values():
            for each in reader.series():
                self._catalog.id_of(each.path, each.name, each.kind)
        return tuple(self._catalog.all)

    def points(self, series: SeriesId, *, after: int = -1) -> Points:
        """The points of one series at steps above `after`, over all ranks."""
        (points,) = self.points_of([series], after=after)
        return points

    def points_of(
        self, ids: Sequence[SeriesId], *, after: int = -1, most: int | None = None
    ) -> list[Points]:
        """The points of several series; each file is read once, or for each part of many series."""
        wanted, last = self._known(ids), self.last_step()
        steps = last + 1 if most is None else most
        row = np.dtype(np.float64).itemsize * len(FIELDS["stats"])
        at_once = max(_MOST_BYTES // max(row * steps * len(self.ranks), 1), 1)
        parts = (wanted[at : at + at_once] for at in range(0, len(wanted), at_once))
        return [points for part in parts for points in self._points(part, last, after, most)]

    def _points(
        self, wanted: Sequence[Series], last: int, after: int, most: int | None
    ) -> list[Points]:
        parts: defaultdict[SeriesId, list[Points]] = defaultdict(list)
        for reader in self.ranks.values():
            common, there = self._common(reader, wanted)
            read = reader.points_of(there, after=after, most=most)
            for each, points in zip(common, read, strict=True):
                parts[each.id].append(points)
        return [_joined(each, parts[each.id], last) for each in wanted]

    def histograms(self, series: SeriesId, *, after: int = -1) -> Histograms:
        """The bins of one series of histograms at steps above `after`, over all ranks."""
        (found,) = self.histograms_of([series], after=after)
        return found

    def histograms_of(self, ids: Sequence[SeriesId], *, after: int = -1) -> list[Histograms]:
        """The bins of several series; each file is read once."""
        wanted, last = self._known(ids), self.last_step()
        parts: defaultdict[SeriesId, defaultdict[int, list[Histogram]]]
        parts = defaultdict(lambda: defaultdict(list))
        for reader in self.ranks.values():
            common, there = self._common(reader, wanted)
            for each, found in zip(common, reader.histograms_of(there, after=after), strict=True):
                for step, histogram in zip(found.steps.tolist(), found.bins, strict=True):
                    if step <= last:
                        parts[each.id][step].append(histogram)
        return [_merged(each, parts[each.id]) for each in wanted]

    def last_step(self) -> int:
        """The latest step that all ranks that are still running have written."""
        # One rank after the other: not all files may be open at a time.
        known = [
            (reader.last_step(), reader.last_time_ns(), reader.finished())
            for reader in self.ranks.values()
        ]
        newest = max(time_ns for _, time_ns, _ in known)
        awaited = [
            last
            for last, time_ns, is_finished in known
            if not is_finished and newest - time_ns < LOST_NS
        ]
        return min(awaited, default=max(last for last, _, _ in known))

    def finished(self) -> bool:
        """Whether all ranks closed their run."""
        return all(reader.finished() for reader in self.ranks.values())

    def status(self) -> RunStatus:
        """The state of the rank that needs attention most."""
        return worst_status(reader.status() for reader in self.ranks.values())

    def dropped(self) -> int:
        """Frames that the writers of all ranks dropped."""
        return sum(reader.dropped() for reader in self.ranks.values())

    def thinned(self) -> int:
        """Frames that were removed again on all ranks."""
        return sum(reader.thinned() for reader in self.ranks.values())

    def sessions(self) -> tuple[Session, ...]:
        """The processes that wrote to the run of the first rank."""
        return self._first(FileReader.sessions)

    def close(self) -> None:
        """Close the files."""
        for reader in self.ranks.values():
            reader.close()

    def _known(self, ids: Sequence[SeriesId]) -> list[Series]:
        known = self.series()
        if missing := [each for each in ids if not 0 <= each < len(known)]:
            raise StoreError(f"{self.path} has no series with the id {missing[0]}")
        return [known[each] for each in ids]

    def _common(
        self, reader: FileReader, wanted: Sequence[Series]
    ) -> tuple[list[Series], list[SeriesId]]:
        """The wanted series that a rank has, and their ids there."""
        here = {_key(each): each.id for each in reader.series()}
        common = [each for each in wanted if _key(each) in here]
        return common, [here[_key(each)] for each in common]

    def _first(self, ask: Callable[[FileReader], T]) -> T:
        """The answer of the first rank that has one."""
        *others, last = self.ranks.values()
        for reader in others:
            try:
                return ask(reader)
            except TorchglassError:  # noqa: PERF203 - a handful of ranks
                continue
        return ask(last)


def _key(series: Series) -> tuple[Any, ...]:
    return series.path, series.name, series.kind


def _merged(series: Series, by_step: Mapping[int, Sequence[Histogram]]) -> Histograms:
    """The histograms of all ranks, merged by step."""
    steps = sorted(by_step)
    return Histograms(
        series=series,
        steps=np.array(steps, np.int64),
        bins=tuple(histograms.merged(by_step[step]) for step in steps),
    )


def _joined(series: Series, parts: Sequence[Points], last: int) -> Points:
    """The points of all ranks, merged by step, up to the last step."""
    width = len(FIELDS[series.kind])
    values = np.concatenate([np.empty((0, width)), *(part.values for part in parts)])
    steps = np.concatenate([np.empty(0, np.int64), *(part.steps for part in parts)])
    values, steps = values[steps <= last], steps[steps <= last]
    distinct, groups = np.unique(steps, return_inverse=True)
    if series.kind == "scalar":
        sums = np.bincount(groups, values[:, 0], len(distinct))
        joined = (sums / np.bincount(groups, minlength=len(distinct)))[:, None]
    else:
        joined = histograms.joined_rows(values, groups, len(distinct))
    return Points(series=series, steps=distinct, values=joined)


TIMES = "time."
"""Scalars of the model with this prefix are seconds of one rank."""


class RankReport:
    """A row for each rank, and what is wrong with some of them."""

    def __init__(self, ranks: Sequence[RankFacts]) -> None:
        self.ranks = tuple(ranks)
        self.findings: tuple[Finding, ...] = compare(self.ranks)

    def __str__(self) -> str:
        names = sorted({name for each in self.ranks for name in each.own_seconds})
        heads = ["rank", "host", "last step", "a step", *names, "first NaN or Inf", "left out"]
        lines = aligned_rows([heads, *(_cells(each, names) for each in self.ranks)])
        told = [harmless(finding.message) for finding in self.findings]
        return "\n".join([*lines, "", *(told or ["No rank differs from the others."])])

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
    """Steps with NaN or Inf; an Inf may be from a mask or a scaled gradient."""
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
