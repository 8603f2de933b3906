"""The panel of what other verbs found out: the answer, and the rows about the selected module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import ClassVar

from rich.cells import cell_len

from torchglass.records.measures import ReportEntry, ReportRecord, ReportSection
from torchglass.records.model import Module
from torchglass.tables.text import harmless, plural
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.keys import bindings
from torchglass.views.tui.panels.details import describe_change
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.styled_text import (
    Line,
    TableCell,
    TextRow,
    fit_path,
    fit_pieces,
    heading,
    line_width,
    paragraph,
    sections,
    table,
    text,
)
from torchglass.views.tui.tree_columns import heat_style

_MOST_ROWS = 200
_GAP = 2
_LEAST_NAME = 12
_SUGGESTED = "✓"
"""The mark of a row that its report suggests."""


class ReportPanel(Panel):
    """The answer of each report, its rows about the selected module, and what it cannot know."""

    key: ClassVar[str] = "R"
    title: ClassVar[str] = "Reports"
    missing: ClassVar[str] = "No report: use tg.explore(tg.quantization(model, *inputs))"
    has_cursor = True
    BINDINGS: ClassVar = bindings("panel:reports")

    @classmethod
    def available(cls, state: ExplorerState) -> bool:
        return bool(state.reports)

    def follow(self, moved: bool) -> None:
        self.put(describe_reports(self.state, self.module, self.room))


def describe_reports(state: ExplorerState, module: Module, width: int) -> list[TextRow]:
    """The answers of all reports, then the rows of each about the selected module."""
    answers = [
        row for one in state.reports for row in paragraph(harmless(one.answer), width, "path", "  ")
    ]
    parts = (part for one in state.reports for part in _parts(state, one, module, width))
    change = describe_change(state, module, width) if module.parent is not None else ()
    return sections(answers, change, *parts)


def _parts(
    state: ExplorerState, report: ReportRecord, module: Module, width: int
) -> Iterator[Iterable[TextRow]]:
    yield from (_section(one, width) for one in report.sections)
    yield _entries(state, report, module, width)
    told = [*report.facts, *(("Note", note) for note in report.notes)]
    yield (
        row
        for label, words in told
        for row in paragraph(f"{harmless(label)}: {harmless(words)}", width, "muted", "  ")
    )


def _section(part: ReportSection, width: int) -> Iterator[TextRow]:
    yield heading(harmless(part.title))
    for line, path in zip_longest(part.lines, part.paths[: len(part.lines)], fillvalue=None):
        words = harmless(line or "")
        indent = " " * (len(words) - len(words.lstrip()))
        for row in paragraph(words, width, "plain", f"{indent}  "):
            yield TextRow(row.pieces, path)


def _entries(
    state: ExplorerState, report: ReportRecord, module: Module, width: int
) -> Iterator[TextRow]:
    """The rows about a module, or else those about the modules below it."""
    if not report.entries:
        return
    path = state.path_of_calls(module)
    own = [one for one in report.entries if path in one.paths]
    name = harmless(path or state.model.name)
    if own:
        yield heading(report.kind, f"of {name}")
    elif not any(one.paths for one in report.entries):
        own = list(report.entries)
        yield heading(report.kind, "of the whole model")
    else:
        own = [one for one in report.entries if _is_below(one.paths, path)]
        if not own:
            yield text(f"Nothing was measured of {name}.", "muted")
            return
        yield heading(report.kind, f"{plural(len(own), 'row')} below {name}")
    yield from _table(report, own[:_MOST_ROWS], width)
    if len(own) > _MOST_ROWS:
        yield text(f"and {len(own) - _MOST_ROWS:,} more", "muted")


def _is_below(paths: Iterable[str], path: str) -> bool:
    return not path or any(one.startswith(f"{path}.") for one in paths)


def _table(report: ReportRecord, entries: Sequence[ReportEntry], width: int) -> Iterator[TextRow]:
    """The cells of some rows; optional columns are left out if they do not fit."""
    shown = [at for at in range(len(report.columns)) if any(one.cells[at].text for one in entries)]
    lines = _lines(report, entries, shown)
    while max(map(line_width, lines)) > width and any(report.columns[at].spare for at in shown):
        shown.remove(max(reversed(shown), key=lambda at: report.columns[at].spare))
        lines = _lines(report, entries, shown)
    if max(map(line_width, lines)) > width:
        lines = _lines(report, entries, shown, gap=1)
    excess = max(map(line_width, lines)) - width
    if excess > 0:
        longest = max(cell_len(one.cells[shown[0]].text) for one in entries)
        names = max(longest - excess, _LEAST_NAME)
        lines = _lines(report, entries, shown, gap=1, names=names)
    targets = [None, *(one.paths[0] if one.paths else None for one in entries)]
    for line, target in zip(lines, targets, strict=True):
        # Beyond the room there is only the gap after the last column.
        room = width if line_width(line) > width else width + _GAP
        yield TextRow(fit_pieces(line, room, fill=False), target)


def _lines(
    report: ReportRecord,
    entries: Sequence[ReportEntry],
    shown: Sequence[int],
    *,
    gap: int = _GAP,
    names: int = 0,
) -> list[Line]:
    """The heading and the rows of a table, their names cut to `names` cells if it is not 0."""
    has_marks = any(one.is_suggested for one in entries)
    columns = [report.columns[at] for at in shown]
    head = [TableCell(one.title, "header", one.right) for one in columns]
    rows = []
    for entry in entries:
        cells = [entry.cells[at] for at in shown]
        styles = ["plain" if one.share is None else heat_style(one.share) for one in cells]
        texts = [harmless(one.text) for one in cells]
        if names and not columns[0].right:
            texts[0] = fit_path(texts[0], names)
        mark = [TableCell(_SUGGESTED if entry.is_suggested else "", "added")] if has_marks else []
        row = zip(texts, styles, columns, strict=True)
        rows.append([*mark, *(TableCell(words, style, one.right) for words, style, one in row)])
    return table([[*([TableCell("")] if has_marks else []), *head], *rows], gap=gap)
