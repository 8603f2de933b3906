"""The result of `diagnose`: a verdict, and the findings behind it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torchglass.analyse.diagnosis.conclude import conclude
from torchglass.analyse.diagnosis.training_view import TrainingView, is_needed, tracks_of
from torchglass.analyse.training_overview import place_of, remedy_of, verdict_sentence
from torchglass.records.findings import Finding, Findings, Verdict, verdict
from torchglass.records.json_data import nan_as_none, to_json_data
from torchglass.records.run import Reader, RunStatus
from torchglass.records.training import TrainingFacts
from torchglass.results.ranks import RanksReader, report
from torchglass.results.result import Result
from torchglass.tables.export import File, html_page, html_text, written
from torchglass.tables.text import harmless

_MARKS = {"error": "✗", "warning": "!", "info": "·"}
_EXIT_CODES: dict[Verdict, int] = {"healthy": 0, "warning": 1, "broken": 3}
_MOST_CONSEQUENCES = 3
_MOST_OPERANDS = 4
_WIDTH = 100


class Diagnosis(Result):
    """What is wrong with a training, where, since when, and what to do. Print it to read it.

    Args:
        findings: The problems, causes first.
        name: The name of the run or model.
        status: How the run ended.
        last_step: The last step that was recorded.
    """

    def __init__(
        self,
        findings: Sequence[Finding],
        *,
        name: str = "",
        status: RunStatus | None = None,
        last_step: int = -1,
    ) -> None:
        self.findings = tuple(findings)
        """The problems, causes before consequences, the worst first."""
        self.name = name
        self.status = status
        """How the run ended; None where no run was recorded."""
        self.last_step = last_step

    @property
    def verdict(self) -> Verdict:
        """ "healthy", "warning" or "broken"."""
        return verdict(self.findings, self.status)

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that are more than information."""
        return tuple(one for one in self.findings if one.severity != "info")

    @property
    def exit_code(self) -> int:
        """What `torchglass diagnose` exits with: 0 healthy, 1 warnings, 3 broken."""
        return _EXIT_CODES[self.verdict]

    @property
    def summary(self) -> str:
        """The verdict in one sentence."""
        return verdict_sentence(self.findings, self.status, self.last_step)

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as dicts, lists, strings and numbers."""
        return {
            "verdict": self.verdict,
            "summary": self.summary,
            "name": self.name,
            "status": str(self.status) if self.status is not None else None,
            "last_step": self.last_step,
            "findings": [nan_as_none(to_json_data(one)) for one in self.findings],
        }

    def to_html(self, file: File | None = None) -> str:
        """The diagnosis as a self-contained page; also written to `file` if given."""
        title = f"Diagnosis of {self.name}" if self.name else "Diagnosis"
        return written(html_page(title, self._repr_html_()), file)

    def _repr_html_(self) -> str:
        items = "".join(
            f"<li><b>{_MARKS[one.severity]} {html_text(one.message)}</b><br>"
            + "<br>".join(html_text(line) for line in _details(one))
            + "</li>"
            for one in self.findings
        )
        return f"<p><b>{html_text(self.summary)}</b></p><ul>{items}</ul>"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def text(self, *, width: int | None = None) -> str:
        """All findings, wrapped to a `width` of columns."""
        return "\n".join(self.lines(width))

    def lines(self, width: int | None = None) -> Iterator[str]:
        """The text, line by line."""
        width = width or _WIDTH
        yield from textwrap.wrap(harmless(self.summary), width)
        for one in self.findings:
            yield ""
            mark = _MARKS[one.severity]
            yield from textwrap.wrap(
                f"{mark} {harmless(one.message)}", width, subsequent_indent="  "
            )
            for line in _details(one):
                yield from textwrap.wrap(
                    harmless(line), width, initial_indent="    ", subsequent_indent="      "
                )

    def __repr__(self) -> str:
        return f"<Diagnosis: {self.verdict}, {len(self.findings)} findings>"


def _details(one: Finding) -> Iterator[str]:
    """What follows the message of a finding: place, operands, remedy, effects and kind."""
    yield f"at: {place_of(one)}"
    ranges = [
        f"{each.holder or each.name} {each.stats.min:.4g} … {each.stats.max:.4g}"
        for each in one.tensors
        if each.role != "result" and each.stats is not None and math.isfinite(each.stats.min)
    ]
    if ranges:
        yield f"operands: {', '.join(ranges[:_MOST_OPERANDS])}"
    if remedy := remedy_of(one):
        yield f"do: {remedy}"
    if one.consequences:
        shown = "; ".join(one.consequences[:_MOST_CONSEQUENCES])
        rest = len(one.consequences) - _MOST_CONSEQUENCES
        yield f"caused: {shown}" + (f"; and {rest} more" if rest > 0 else "")
    if one.see:
        yield f"see: {one.see}"
    yield f"kind: {one.kind}" + (f", confidence {one.confidence:.0%}" if one.confidence < 1 else "")


def _ranks_that_differ(readers: Sequence[Reader]) -> Iterator[Finding]:
    """Parameters that data-parallel ranks should share, and that have different values."""
    facts = readers[0].document(TrainingFacts) or TrainingFacts()
    trained = {one.name for one in facts.parameters if one.optimizer is not None}
    differ: dict[str, int] = {}
    same = 0
    tracks = [_parameter_tracks(reader, trained) for reader in readers]
    for name, track in tracks[0].items():
        others = [one[name] for one in tracks[1:] if name in one]
        steps = [
            step
            for other in others
            for step in sorted(track.keys() & other.keys())
            if not math.isclose(track[step], other[step], rel_tol=1e-6, abs_tol=1e-12)
        ]
        if steps:
            differ[name] = min(steps)
        same += not steps or min(steps) > min(track)
    if differ:
        first = min(differ.values())
        name = min(differ, key=differ.__getitem__)
        yield Finding(
            # Ranks that share a model by parts have different parameters from the start.
            severity="warning" if same else "info",
            kind="ranks-differ",
            message=f"Ranks have different parameters since step {first}: `{name}` and "
            f"{len(differ) - 1} more of {len(trained)}",
            path=name.rpartition(".")[0],
            series=name,
            step=first,
            first_step=first,
            facts={"parameters": sorted(differ)[:20], "of": len(trained)},
            remedy="Wrap the model in DistributedDataParallel before training, and change "
            "parameters and buffers on all ranks alike",
        )


def _of_single_ranks(reader: RanksReader, known: set[tuple[str, str]]) -> Iterator[Finding]:
    """What some ranks have found in their own steps, and all together do not show."""
    found: dict[tuple[str, str], dict[int, Finding]] = {}
    for rank, one in reader.ranks.items():
        for each in (one.document(Findings) or Findings()).findings:
            if each.severity != "info" and each.kind not in ("nan", "inf"):
                found.setdefault((each.kind, each.path), {}).setdefault(rank, each)
    for key, by_rank in found.items():
        if key not in known and len(by_rank) < len(reader.ranks):
            rank, first = min(by_rank.items())
            more = f" and {len(by_rank) - 1} more" if len(by_rank) > 1 else ""
            message = f"Rank {rank}{more}: {first.message}"
            yield replace(first, message=message, facts={**first.facts, "ranks": sorted(by_rank)})


def _parameter_tracks(reader: Reader, names: set[str]) -> dict[str, dict[int, float]]:
    """The size of each parameter by step."""
    ids = [one.id for one in reader.series() if one.label in names and one.kind != "scalar"]
    return {
        points.series.label: dict(
            zip(
                points.steps.tolist(),
                (points.column("std") + points.column("mean")).tolist(),
                strict=True,
            )
        )
        for points in reader.points_of(ids)
    }


def diagnose_reader(reader: Reader) -> Diagnosis:
    """The diagnosis of a run that was recorded, or is being recorded."""
    ids = [one.id for one in reader.series() if is_needed(one.path, one.name)]
    found, facts = reader.document(Findings) or Findings(), reader.document(TrainingFacts)
    of_ranks: tuple[Finding, ...] = ()
    if isinstance(reader, RanksReader):
        of_ranks = (
            *_ranks_that_differ(list(reader.ranks.values())),
            *report(reader.ranks).findings,
        )
    view = TrainingView(
        tracks_of(reader.points_of(ids)),
        facts=facts,
        model=reader.model(),
        status=reader.status(),
        # Runs of earlier versions have no facts, and what they found is all there is.
        findings=found.findings if facts is None else found.at_steps,
    )
    concluded = conclude(view)
    if isinstance(reader, RanksReader):
        known = {(one.kind, one.path) for one in concluded}
        of_ranks = (*of_ranks, *(_of_single_ranks(reader, known)))
    return Diagnosis(
        (*concluded, *of_ranks),
        name=reader.run().name,
        status=reader.status(),
        last_step=reader.last_step(),
    )
