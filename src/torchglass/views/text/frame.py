"""Tables of plain text between rules, with what is to be said of the whole below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchglass.views.formats import width
from torchglass.views.text.fitting import GAP, Cells, fitted, wrapped


def framed(columns: Iterable[Cells], *below: Sequence[str], room: int | None = None) -> str:
    """A table between rules and blocks of lines below it; it fits into so many terminal cells."""
    every = list(columns)
    shown = every if room is None else fitted(every, room)
    heading, *lines = lined_up(shown)
    *blocks, last = [block for block in below if block] or [()]
    blocks.append([*last, *_missing(every, shown, room)])
    rule = rule_for([heading, *lines, *(line for block in blocks for line in block)])
    parts = [[heading], lines, *(block for block in blocks if block)]
    return "\n".join([rule, *(line for part in parts for line in (*part, rule))])


def lined_up(columns: Iterable[Cells]) -> list[str]:
    """The lines of a table, that of the headings first."""
    aligned = [_align(column.texts, right=column.right) for column in columns]
    return [GAP.join(line).rstrip() for line in zip(*aligned, strict=True)]


def rule_for(lines: Iterable[str]) -> str:
    """A rule as long as the longest of some lines."""
    return "─" * max(map(width, lines))


def fact_lines(facts: Sequence[tuple[str, str]], room: int | None = None) -> list[str]:
    """What is said of a whole: what each fact is about, and the fact."""
    labels = _align([label for label, _ in facts], right=False)
    return [
        line
        for label, (_, text) in zip(labels, facts, strict=True)
        for line in wrapped(text, room, before=label + GAP)
    ]


def note_lines(notes: Iterable[str], room: int | None = None) -> list[str]:
    """What has to be said besides."""
    return [line for note in notes for line in wrapped(f"{note}.", room, before="Note: ")]


def left_out(every: Sequence[object], shown: Sequence[object]) -> list[str]:
    """How many there are that are not shown, if any."""
    count = len(every) - len(shown)
    return [f"… and {count:,} more"] if count else []


def missing_note(what: Iterable[str], room: int | None) -> list[str]:
    """What there was no room for, if anything, and where there is."""
    names = ", ".join(dict.fromkeys(what))
    note = f"left out at {room} columns: {names}; a wider terminal or a file has room"
    return note_lines([note], room) if names else []


def _missing(every: Iterable[Cells], shown: Iterable[Cells], room: int | None) -> list[str]:
    """Which columns there was no room for, if any."""
    kept = {column.spare for column in shown}
    return missing_note((column.texts[0] for column in every if column.spare not in kept), room)


def _align(cells: Sequence[str], *, right: bool) -> list[str]:
    widths = [width(cell) for cell in cells]
    longest = max(widths)
    spaces = [" " * (longest - taken) for taken in widths]
    return [
        space + cell if right else cell + space for cell, space in zip(cells, spaces, strict=True)
    ]
