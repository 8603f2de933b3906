"""The panel that lists the problems that were found."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from textual.message import Message

from torchglass.analyse.failure.failure import code_at
from torchglass.analyse.nonfinite_cause import cause
from torchglass.analyse.training_overview import place_of
from torchglass.records.findings import Evidence, Finding, Findings
from torchglass.tables.text import format_bytes, harmless, shape_text
from torchglass.views.tui.explorer_state import SEVERITY_MARKS, ExplorerState
from torchglass.views.tui.keys import bindings
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.styled_text import TableCell, TextRow, paragraph, table, text, wrap

_MOST = 1_000


class FindingsPanel(Panel):
    """All problems of the run; those inside the module come first."""

    key: ClassVar[str] = "exclamation_mark"
    title: ClassVar[str] = "Findings"
    has_cursor = True
    BINDINGS: ClassVar = bindings("panel:findings", "panel:values")

    class Checked(Message):
        """The weights were checked."""

    def __init__(self, state: ExplorerState) -> None:
        super().__init__(state)
        self._open: set[int] = set()
        self._starts: list[int] = []
        """The first row of each finding."""

    def extra_places(self) -> Iterable[str]:
        if not self.state.findings() and _can_check(self.state):
            yield "panel:values"

    def follow(self, moved: bool) -> None:
        found = self.state.findings()
        if not found:
            self.subtitle, self._starts = "", []
            if self.settled:
                self.say(_without_findings(self.state))
            return
        self.subtitle = _counted(found)
        rows = self._rows_of(found)
        self._starts = [at for at, row in enumerate(rows) if _begins(rows, at, row)]
        self.put(rows)

    def action_line(self, by: int) -> None:
        """Go from finding to finding, not from line to line."""
        starts = self._starts
        if not starts:
            return
        there = min(max(self._here + by, 0), len(starts) - 1)
        # Its last line first, so that all of it comes into view.
        self.go([*starts, len(self.rows)][there + 1] - 1)
        self.go(starts[there])

    @property
    def position(self) -> str:
        return f"{self._here + 1:,}/{len(self._starts):,}" if super().position else ""

    @property
    def _here(self) -> int:
        return max(bisect_right(self._starts, self.row) - 1, 0)

    def action_check(self) -> None:
        live = self.state.live
        if live is not None and not self.state.findings() and _can_check(self.state):
            self.work("Checking the weights", live.check, self._take_checked)

    def _take_checked(self, found: Sequence[Finding] | None) -> None:
        self.state.take_checked(found)
        self.post_message(self.Checked())

    def action_tell(self) -> None:
        target = self.rows[self.row].target if self.row < len(self.rows) else None
        if isinstance(target, tuple):
            self._open ^= {target[0]}
            self.follow(False)

    def choose(self, row: TextRow) -> None:
        if isinstance(row.target, tuple):
            self.post_message(self.Jump(row.target[1]))

    def _rows_of(self, found: Sequence[Finding]) -> list[TextRow]:
        here: list[TextRow] = []
        elsewhere: list[TextRow] = []
        for number, finding in enumerate(found[:_MOST]):
            inside = _is_inside(finding.path, self.module.path)
            rows = self._rows_of_one(number, finding)
            (here if inside else elsewhere).extend(rows)
        more = len(found) - _MOST
        end = [text(f"and {more:,} more", "muted")] if more > 0 else []
        if here and elsewhere:
            return [*here, TextRow(), text("in other modules", "heading"), *elsewhere, *end]
        return [*here, *elsewhere, *end]

    def _rows_of_one(self, number: int, finding: Finding) -> Iterator[TextRow]:
        mark, style = SEVERITY_MARKS[finding.severity]
        target = number, finding.path
        first, *rest = wrap([(harmless(finding.message), "plain")], self.room - 2)
        yield TextRow([(f"{mark} ", style), *first], target)
        for line in rest:
            yield TextRow([("  ", "plain"), *line], target)
        yield TextRow([(f"  {harmless(place_of(finding))}", "muted")], target)
        if finding.remedy:
            for row in paragraph(f"do: {harmless(finding.remedy)}", self.room - 2, "note"):
                yield TextRow([("  ", "plain"), *row.pieces], target)
        if finding.consequences:
            yield TextRow([(f"  caused {len(finding.consequences)} more", "muted")], target)
        if number in self._open:
            for row in _told(finding, self.room - 4):
                yield TextRow([("    ", "plain"), *row.pieces], target)


def _begins(rows: Sequence[TextRow], at: int, row: TextRow) -> bool:
    return row.target is not None and (at == 0 or rows[at - 1].target != row.target)


def _is_inside(path: str, around: str) -> bool:
    return not around or path == around or path.startswith(f"{around}.")


def _can_check(state: ExplorerState) -> bool:
    """Whether there are weights that were not checked."""
    counts = state.counts(state.model.root)
    unread = state.values_checked is False and state.document(Findings) is None
    return unread and counts is not None and counts.total.bytes > 0


def _without_findings(state: ExplorerState) -> str:
    if state.step >= 0:
        return f"No problems found up to step {state.step:,}."
    if state.document(Findings) is not None:
        return "No problems found in this forward or in the weights."
    if state.values_checked:
        return (
            "No NaN or Inf in the weights. Activations were not checked: tg.explore(model, *inputs)"
            " or --input checks one forward, tg.watch(model) a training."
        )
    if _can_check(state):
        counts = state.counts(state.model.root)
        size = f" ({format_bytes(counts.total.bytes)})" if counts else ""
        return f"Not checked. Press r to look for NaN and Inf in the weights{size}."
    return "Not checked. tg.guard(model) finds the first NaN or Inf of a forward."


def _counted(found: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in found)
    words = [(counts["error"], "error"), (counts["warning"], "warning"), (counts["info"], "note")]
    return ", ".join(f"{count:,} {word}{'s' * (count != 1)}" for count, word in words if count)


def _told(finding: Finding, width: int) -> Iterator[TextRow]:
    """The evidence of a finding: cause, consequences, values, source line, tensors."""
    for sentence in finding.consequences:
        yield from paragraph(f"→ {harmless(sentence)}", width, "plain")
    for name, value in finding.facts.items() if finding.remedy else ():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        yield text(harmless(f"{name}: {shown}"), "muted")
    reason = cause(finding)
    if reason and reason not in finding.message:
        yield from paragraph(f"why: {harmless(reason)}", width, "note")
    source = finding.source
    if source is not None:
        yield text(harmless(f"{source.file}:{source.line} in {source.function}"), "muted")
        if code := code_at(source):
            yield text(harmless(code), "string")
    yield from map(TextRow, table([_evidence(one) for one in finding.tensors]))


def _evidence(one: Evidence) -> list[TableCell]:
    return [
        TableCell(harmless(one.holder or one.name), "name"),
        TableCell(shape_text(one.spec), "shape"),
        TableCell(harmless(one.spec.dtype), "dtype"),
        TableCell(_range(one), "plain"),
        TableCell(_strange(one), "problem"),
    ]


def _range(one: Evidence) -> str:
    if one.stats is None:
        return "overwritten"
    if math.isnan(one.stats.min):
        return ""
    return f"{one.stats.min:.4g} … {one.stats.max:.4g}"


def _strange(one: Evidence) -> str:
    counts = ((one.stats.nan, "NaN"), (one.stats.inf, "Inf")) if one.stats else ()
    return ", ".join(f"{count:,} {name}" for count, name in counts if count)
