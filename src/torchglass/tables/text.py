"""Text tables: fits them to a width, and draws rules, tree guides and notes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, TypeVar

from torchglass.analyse.module_rows import Measured, ModuleRow, full_name
from torchglass.records.model import Model
from torchglass.tables.column import Column, TableOptions
from torchglass.views.formats import NOT_RUN, harmless, shorten, width

GAP = "  "
_READABLE = 20
"""Rather than cut names to less than this, columns are left out that can be spared."""
_TIGHT = 12
"""Rather than cut names to less than this, columns are left out that are missed."""
_LEAST = 8
_TAB = 4
_GUIDES = "│├└─ "


@dataclass(frozen=True)
class Cells:
    """One column of a table."""

    texts: Sequence[str]
    """Its heading, then a cell for each line."""
    right: bool = True
    """Whether they end at the right, as numbers do; all others may lose their middle."""
    spare: int = 0
    """Columns of the highest number are left out first where there is no room, those below 0 only
    where names would be hard to tell; those of 0 stay."""

    @cached_property
    def width(self) -> int:
        """The terminal cells that the longest of its texts takes."""
        return max(map(width, self.texts))


def fitted(columns: Sequence[Cells], room: int) -> list[Cells]:
    """The columns that so many terminal cells have room for."""
    shown = list(columns)
    for spare in sorted({column.spare for column in columns if column.spare}, reverse=True):
        if _taken(shown, _READABLE if spare > 0 else _TIGHT) <= room:
            break
        shown = [column for column in shown if column.spare != spare]
    limits = range(max(column.width for column in shown), _LEAST, -1)
    limit = next((limit for limit in limits if _taken(shown, limit) <= room), _LEAST)
    return [column if column.right else _cut(column, limit) for column in shown]


def wrapped(text: str, room: int | None, *, before: str = "") -> list[str]:
    """A text in lines of so many cells, all of them indented by what stands before the first."""
    if room is None or width(before + text) <= room:
        return [before + text]
    first, *others = _folded(text, max(room - width(before), _LEAST))
    return [before + first, *(" " * width(before) + line for line in others)]


def broken(text: str, room: int | None) -> str:
    """A text whose lines go on below themselves where there is no room, so that nothing is lost."""
    if room is None:
        return text
    return "\n".join(part for line in text.splitlines() for part in _parts(line, room))


def shortened(text: str, limit: int) -> str:
    """A text in so many terminal cells; of the lines of a tree before a name the last ones stay."""
    if width(text) <= limit:
        return text
    name = text.lstrip(_GUIDES)
    guide = text[: len(text) - len(name)]
    if guide:
        room = max(limit - min(width(name), _LEAST), 0)
        before = guide if len(guide) <= room else f"…{guide[len(guide) - room + 1 :]}" * (room > 1)
        return before + shortened(name, limit - len(before))
    # Some characters take two cells.
    return next(
        short for length in range(limit, 0, -1) if width(short := shorten(text, length)) <= limit
    )


def _parts(line: str, room: int) -> list[str]:
    """The lines that one line makes, indented as it is as long as that leaves room."""
    line = line.expandtabs(_TAB)
    if width(line) <= room:
        return [line]
    text = line.lstrip(" ")
    indent = line[: min(len(line) - len(text), max(room - _READABLE, 0))]
    first, *others = _folded(text, max(room - len(indent + GAP), _LEAST))
    return [indent + first, *(indent + GAP + other for other in others)]


def _folded(text: str, room: int) -> list[str]:
    """The words of a text in lines of so many terminal cells; only a longer word is broken."""
    lines = [""]
    for word, spaces in re.findall(r"(\S+)(\s*)", text.replace("\n", " ")):
        rest = word
        if lines[-1] and width(lines[-1] + word) > room:
            lines.append("")
        while width(rest) > room:
            part = next(rest[:end] for end in range(room, 0, -1) if width(rest[:end]) <= room)
            lines[-1:] = [part, ""]
            rest = rest[len(part) :]
        lines[-1] += rest + spaces
    return [line.rstrip() for line in lines]


def _taken(columns: Sequence[Cells], limit: int) -> int:
    """How wide a table is in which no name takes more than so much."""
    widths = (column.width if column.right else min(column.width, limit) for column in columns)
    return sum(widths) + len(GAP) * (len(columns) - 1)


def _cut(column: Cells, limit: int) -> Cells:
    return replace(column, texts=[shortened(text, limit) for text in column.texts])


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


class Placed(Protocol):
    """A row that knows its place in a tree."""

    @property
    def depth(self) -> int:
        """How far it is below the root."""

    @property
    def last(self) -> bool:
        """Whether no sibling follows."""


def guides(rows: Iterable[Placed], arm: str) -> Iterator[str]:
    """For each row what stands before it: with "──" as an arm "├── ", "│   └── ", …"""
    blank = " " * len(arm)
    # What the rows below each open level begin with.
    open_levels = [""]
    for row in rows:
        if row.depth == 0:
            yield ""
            continue
        del open_levels[row.depth :]
        before = open_levels[-1]
        yield f"{before}{'└' if row.last else '├'}{arm} "
        open_levels.append(f"{before}{' ' if row.last else '│'}{blank} ")


M = TypeVar("M", bound=Measured)
R = TypeVar("R")
W = TypeVar("W")

_LONGEST_NAME = 60
_MORE_TENSORS = re.compile(r"\S \+\d+$")
_MOST_ROWS = 100
"""Of a table whose depth nobody named."""


def module_table(
    rows: Sequence[ModuleRow[M]],
    columns: Sequence[Column[M, W]],
    whole: W,
    below: Sequence[str],
    look: TableOptions,
) -> str:
    """The modules below their headings, then what is to be said of the whole."""
    every, rows = rows, _readable(rows, look)
    hidden = _hidden_line(every, rows, look)
    names = [
        guide + shorten(harmless(row.name), _LONGEST_NAME)
        for row, guide in zip(rows, guides(rows, "─"), strict=True)
    ]
    measured = [row.measured for row in rows]
    cells = [column_cells(column, measured, whole) for column in columns]
    signs = _sign_lines(text for column in cells for text in column.texts[1:])
    named = Cells(["Module", *names], right=False)
    return framed([named, *cells], [*signs, *hidden], below, room=look.room)


def _sign_lines(texts: Iterable[str]) -> list[str]:
    """What the signs in some cells mean, of those that are there."""
    every = set(texts)
    not_run = [f"{NOT_RUN}: not called in this forward"] if NOT_RUN in every else []
    more = any(_MORE_TENSORS.search(text) for text in every)
    return [*not_run, *(["+1: one more output tensor"] if more else [])]


def _readable(rows: Sequence[ModuleRow[M]], look: TableOptions) -> Sequence[ModuleRow[M]]:
    """All rows; of a long table those down to the depth that can be read at once."""
    if look.depth is not None or len(rows) <= _MOST_ROWS:
        return rows
    depth = readable_depth([row.depth for row in rows])
    return [row for row in rows if row.depth <= depth] if depth else rows[:_MOST_ROWS]


def readable_depth(depths: Sequence[int]) -> int:
    """The depth down to which a tree has about a hundred rows; 0 if its first level has more."""
    deepest = max(depths, default=0)
    levels = range(deepest, 0, -1)
    return next((level for level in levels if sum(d <= level for d in depths) <= _MOST_ROWS), 0)


def _hidden_line(
    every: Sequence[ModuleRow[M]], shown: Sequence[ModuleRow[M]], look: TableOptions
) -> list[str]:
    """How many rows are left out, and how to see them."""
    if len(shown) == len(every):
        return []
    deepest = max((row.measured.path or "").count(".") + 1 for row in every)
    line = (
        f"{len(shown)} of {len(every):,} rows; depth={deepest} (--depth {deepest}) shows all, "
        'sort="self" (--sort self) the largest first'
    )
    return wrapped(line, look.room)


def column_cells(column: Column[R, W], rows: Sequence[R], whole: W) -> Cells:
    """A column with a cell for each row."""
    texts = [column.title, *(column.text(row, whole) for row in rows)]
    return Cells(texts, column.right, column.spare)


def path_text(path: str | None, model: Model) -> str:
    """Where a module is, in no more than the room that there is for it."""
    return shorten(harmless(full_name(path, model)), _LONGEST_NAME)


def class_text(measured: Measured, model: Model) -> str:
    """The class of a module; none for one made as the model ran, and for what is no module's."""
    module = None if measured.path is None else model.find(measured.path)
    return "" if module is None else harmless(module.kind)
