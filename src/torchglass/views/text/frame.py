"""Tables of plain text between rules, with what is to be said of the whole below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchglass.views.formats import pad, width

Cells = tuple[Sequence[str], bool]
"""The cells of a column, its heading first, and whether they end at the right."""

_GAP = "  "


def framed(columns: Iterable[Cells], below: Sequence[str] = ()) -> str:
    """A table between rules, and some lines below it."""
    heading, *lines = lined_up(columns)
    rule = rule_for([heading, *lines, *below])
    return "\n".join([rule, heading, rule, *lines, rule, *below, *([rule] if below else [])])


def lined_up(columns: Iterable[Cells]) -> list[str]:
    """The lines of a table, that of the headings first."""
    aligned = [_align(cells, right=right) for cells, right in columns]
    return [_GAP.join(line).rstrip() for line in zip(*aligned, strict=True)]


def rule_for(lines: Iterable[str]) -> str:
    """A rule as long as the longest of some lines."""
    return "─" * max(map(width, lines))


def fact_lines(facts: Sequence[tuple[str, str]]) -> list[str]:
    """What is said of a whole: what each fact is about, and the fact."""
    labels = _align([label for label, _ in facts], right=False)
    return [f"{label}{_GAP}{text}" for label, (_, text) in zip(labels, facts, strict=True)]


def note_lines(notes: Iterable[str]) -> list[str]:
    """What has to be said besides."""
    return [f"Note: {note}." for note in notes]


def left_out(every: Sequence[object], shown: Sequence[object]) -> list[str]:
    """How many there are that are not shown, if any."""
    count = len(every) - len(shown)
    return [f"… and {count:,} more"] if count else []


def _align(cells: Sequence[str], *, right: bool) -> list[str]:
    longest = max(map(width, cells))
    return [pad(cell, longest, right=right) for cell in cells]
