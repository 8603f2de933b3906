"""Tables and sentences made to fit: columns left out, names cut in the middle, lines broken."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torchglass.views.formats import shorten, width

GAP = "  "
_READABLE = 20
"""Rather than cut names to less than this, columns are left out."""
_LEAST = 8
_GUIDES = "│├└─ "


@dataclass(frozen=True)
class Cells:
    """One column of a table."""

    texts: Sequence[str]
    """Its heading, then a cell for each line."""
    right: bool = True
    """Whether they end at the right, as numbers do; all others may lose their middle."""
    spare: int = 0
    """Columns of the highest number are left out first where there is no room; those of 0 stay."""

    @cached_property
    def width(self) -> int:
        """The terminal cells that the longest of its texts takes."""
        return max(map(width, self.texts))


def fitted(columns: Sequence[Cells], room: int) -> list[Cells]:
    """The columns that so many terminal cells have room for."""
    shown = list(columns)
    for spare in sorted({column.spare for column in columns if column.spare}, reverse=True):
        if _taken(shown, _READABLE) <= room:
            break
        shown = [column for column in shown if column.spare != spare]
    limits = range(max(column.width for column in shown), _LEAST, -1)
    limit = next((limit for limit in limits if _taken(shown, limit) <= room), _LEAST)
    return [column if column.right else _cut(column, limit) for column in shown]


def wrapped(text: str, room: int | None, *, before: str = "") -> list[str]:
    """A text in lines of so many cells, all of them indented by what stands before the first."""
    if room is None or width(before + text) <= room:
        return [before + text]
    first, *others = textwrap.wrap(text, max(room - width(before), _LEAST), break_on_hyphens=False)
    return [before + first, *(" " * width(before) + line for line in others)]


def shortened(text: str, limit: int) -> str:
    """A text in so many terminal cells; the lines of a tree before a name stay if they can."""
    if width(text) <= limit:
        return text
    name = text.lstrip(_GUIDES)
    guide = text[: len(text) - len(name)]
    if guide and limit - len(guide) >= _LEAST:
        return guide + shortened(name, limit - len(guide))
    # Some characters take two cells.
    return next(
        short for length in range(limit, 0, -1) if width(short := shorten(text, length)) <= limit
    )


def _taken(columns: Sequence[Cells], limit: int) -> int:
    """How wide a table is in which no name takes more than so much."""
    widths = (column.width if column.right else min(column.width, limit) for column in columns)
    return sum(widths) + len(GAP) * (len(columns) - 1)


def _cut(column: Cells, limit: int) -> Cells:
    return replace(column, texts=[shortened(text, limit) for text in column.texts])
