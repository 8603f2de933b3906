"""A recorded run as text: how it ended, what was found, and its curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torchglass.records.findings import Finding, verdict
from torchglass.records.json_data import nan_as_none, to_json_data
from torchglass.records.run import RunRecord, RunStatus
from torchglass.tables.text import aligned_rows, harmless, sparkline

if TYPE_CHECKING:
    from torchglass.records.run import Points
    from torchglass.results.run import SavedRun

_MOST_FINDINGS = 5
_MOST_LOGGED = 20
_MOST_TENSORS = 5
_MOST_POINTS = 2_000_000
"""Above this many points only logged values are read: the others would take seconds."""
_CURVE_WIDTH = 40
_COMMIT_CHARACTERS = 10
_ACTIVATIONS = ("input", "output", "eval:")
"""How the names of series begin that are not of parameters."""


class RunNote:
    """The state of a run, and what was found in it."""

    def __init__(
        self, run: RunRecord, status: RunStatus, last_step: int, findings: Sequence[Finding]
    ) -> None:
        self.run = run
        self.status = status
        self.last_step = last_step
        self.findings = tuple(one for one in findings if one.severity != "info")

    def __str__(self) -> str:
        count = len(self.findings)
        found = _problems(count) if count else "no problems found"
        head = f"{self.verdict}: {harmless(self.status.full)}, last step {self.last_step}, {found}"
        return "\n".join([head, *self.finding_lines(), *self.setting_lines()])

    @property
    def verdict(self) -> str:
        """How the training is, in a word; one without steps has no verdict."""
        if self.last_step < 0:
            return "Run"
        return verdict(self.findings, self.status).capitalize()

    def finding_lines(self) -> Iterator[str]:
        """The first findings, and how many more there are."""
        for one in self.findings[:_MOST_FINDINGS]:
            yield f"  {harmless(one.message)}"
            if one.remedy:
                yield f"    do: {harmless(one.remedy)}"
            if one.consequences:
                yield f"    caused {len(one.consequences)} more: {harmless(one.consequences[0])}"
        if len(self.findings) > _MOST_FINDINGS:
            yield f"  … {len(self.findings) - _MOST_FINDINGS} more"

    def setting_lines(self) -> Iterator[str]:
        """The settings, the notes and the commit of the run, if it has them."""
        run = self.run
        settings = [f"{name}={value}" for name, value in run.config.items()]
        told = {
            "Config": ", ".join(settings),
            "Notes": run.notes,
            "Commit": run.git_commit[:_COMMIT_CHARACTERS],
        }
        for name, text in told.items():
            if text:
                yield f"{name}: {harmless(text)}"

    def to_dict(self) -> dict[str, Any]:
        """The note as dicts, lists, strings and numbers."""
        return {
            "verdict": self.verdict.lower(),
            "status": str(self.status),
            "state": self.status.state,
            "step": self.status.step,
            "error": self.status.error,
            "message": self.status.message,
            "last_step": self.last_step,
            "config": nan_as_none(dict(self.run.config)),
            "notes": self.run.notes,
            "git_commit": self.run.git_commit,
            "findings": [nan_as_none(to_json_data(one)) for one in self.findings],
        }


def run_text(run: SavedRun) -> str:
    """How a run ended, its findings, and the curves of what was logged and measured."""
    logged, gradients, weights = _shown_series(run)
    status = run.status.full
    facts = [run.run.name, status, *(fact for fact in run.facts() if fact != status)]
    note = RunNote(run.run, run.status, run.last_step, run.findings)
    return "\n".join(
        [
            f"{note.verdict}: {harmless(', '.join(facts))} ({run.path})",
            *_finding_lines(note),
            *note.setting_lines(),
            *_curves("Logged", logged, "value"),
            *_curves("Largest gradients (standard deviation)", gradients, "std"),
            *_curves("Largest weights (standard deviation)", weights, "std"),
        ]
    )


def _finding_lines(note: RunNote) -> Iterator[str]:
    if note.findings:
        yield f"{_problems(len(note.findings))}:"
        yield from note.finding_lines()
    elif note.last_step >= 0:
        yield f"No problems found up to step {note.last_step}"


def _problems(count: int) -> str:
    return "1 problem" if count == 1 else f"{count} problems"


def _shown_series(run: SavedRun) -> tuple[list[Points], list[Points], list[Points]]:
    """What was logged, and the largest gradients and weights at the last step."""
    series = run.reader.series()
    scalars = [each.id for each in series if each.kind == "scalar"][:_MOST_LOGGED]
    logged = [points for points in run.reader.points_of(scalars) if len(points)]
    if len(series) * (run.last_step + 1) > _MOST_POINTS:
        return logged, [], []
    tensors = [
        each.id
        for each in series
        if each.kind != "scalar" and not each.name.startswith(_ACTIVATIONS)
    ]
    measured = [points for points in run.reader.points_of(tensors) if len(points)]
    measured.sort(key=lambda points: -points.column("std")[-1])
    gradients = [points for points in measured if points.series.label.endswith(".grad")]
    weights = [points for points in measured if not points.series.label.endswith(".grad")]
    return logged, gradients[:_MOST_TENSORS], weights[:_MOST_TENSORS]


def _curves(title: str, shown: Sequence[Points], field: str) -> Iterator[str]:
    """A line for each series: its first value, its curve, and its last value."""
    if not shown:
        return
    from torchglass.analyse.pixels import squeeze

    yield from ("", title)
    rows = []
    for points in shown:
        values = points.column(field)
        curve = sparkline(squeeze(values, _CURVE_WIDTH), _CURVE_WIDTH)
        label = harmless(points.series.label)
        rows.append((label, f"{values[0]:>9.4g}", curve, f"{values[-1]:.4g}"))
    yield from (f"  {line}" for line in aligned_rows(rows))
