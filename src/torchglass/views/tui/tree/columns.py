"""What a column of the tree is, and how it is drawn.

A row is a module, or several neighbours that are built alike; their numbers are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len

from torchglass.records.model import Module
from torchglass.records.series import Series
from torchglass.views.formats import format_share
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.text_rows import Piece, bar

RowModules = Sequence[Module]
"""The first one stands for all."""
Group = Literal[
    "name", "class", "args", "parameters", "size", "memory", "device", "shapes",
    "flow", "time", "flops", "gradients", "notes", "change",
]  # fmt: skip
Number = Callable[[ExplorerState, Module], float | None]
Together = Callable[[Sequence[float]], float | None]

_BAR, _SHARE = 6, 5


@dataclass(frozen=True, kw_only=True)
class TreeColumn:
    """One component of the labels. Those of a group come and go with one key."""

    id: str
    title: str
    """Above the column."""
    name: str
    """In the label panel."""
    group: Group
    draw: Callable[[ExplorerState, RowModules], Sequence[Piece]]
    width: Callable[[ExplorerState], int]
    applies: Callable[[ExplorerState], bool] = lambda state: True
    """Whether the state has anything to show in it."""
    number: Number | None = None
    """What it is sorted by; None for a text, which is that itself."""
    together: Together = sum
    """The number of several modules that share a row."""
    heading: str = ""
    """What it is called in a file, with its unit; "" for its id."""
    per_unit: float = 1.0
    """How many of the number one unit of the file has: a million nanoseconds are one ms."""
    of_whole: bool = False
    """Whether a file has the share of the whole model's number, from 0 to 1."""
    series: Callable[[ExplorerState, Module], Series | None] = lambda state, module: None
    """What has to be read of a run to draw it."""
    right: bool = False
    prefix: str = ""
    """What stands before it where there is no title above it."""
    usual: bool = False
    """Whether it is shown until the user says otherwise."""
    among: bool = True
    """Whether the key of its group shows it until the user says otherwise."""
    example: Piece = ("", "plain")
    """What it looks like, for the label panel."""

    def text(self, state: ExplorerState, row: RowModules) -> str:
        """What it says of a row, without styles."""
        return "".join(text for text, _ in self.draw(state, row))

    def value(self, state: ExplorerState, row: RowModules) -> float | str | None:
        """What it says of a row, for a program."""
        if self.number is None:
            return self.text(state, row).strip() or None
        value = total(state, row, self.number, self.together)
        if not self.of_whole or value is None:
            return value if value is None or self.per_unit == 1.0 else value / self.per_unit
        whole = self.number(state, state.model.root)
        return value / whole if whole else None

    @property
    def file_heading(self) -> str:
        """What it is called in a file."""
        return self.heading or self.id.replace(" ", "_")


def total(
    state: ExplorerState, row: RowModules, number: Number, together: Together = sum
) -> float | None:
    """The number of a row: that of its modules together, each module that stands twice once."""
    if len(row) == 1:
        return number(state, row[0])
    numbers = [number(state, module) for module in row if module.alias_of is None]
    known = [one for one in numbers if one is not None]
    return together(known) if known else None


def not_together(numbers: Sequence[float]) -> None:
    """For numbers that cannot be added up: several modules have none."""


def number_column(
    number: Number,
    form: Callable[[float], str],
    style: str,
    *,
    cells: int,
    together: Together = sum,
    **fields: object,
) -> TreeColumn:
    """A column of numbers, each written as `form` says."""

    def draw(state: ExplorerState, row: RowModules) -> Sequence[Piece]:
        value = total(state, row, number, together)
        return () if value is None else [(form(value), toned(row, style))]

    return TreeColumn(
        draw=draw,
        width=lambda state: cells,
        number=number,
        together=together,
        right=True,
        **fields,  # type: ignore[arg-type]
    )


def share_column(number: Number, style: str, **fields: object) -> TreeColumn:
    """A column of bars: how much of the whole model's number a row has, hotter for more."""

    def draw(state: ExplorerState, row: RowModules) -> Sequence[Piece]:
        part, whole = total(state, row, number), number(state, state.model.root)
        if not part or not whole:
            return ()
        share = min(part / whole, 1.0)
        filled, rest = bar(share, _BAR)
        return [
            (filled, toned(row, f"heat{heat(share)}")),
            (rest, "guide"),
            (f"{format_share(part, whole):>{_SHARE}}", toned(row, style)),
        ]

    return TreeColumn(
        draw=draw,
        width=lambda state: _BAR + _SHARE,
        number=number,
        of_whole=True,
        **fields,  # type: ignore[arg-type]
    )


def text_column(
    draw: Callable[[ExplorerState, Module], Sequence[Piece]],
    *,
    most: int,
    texts: Callable[[ExplorerState], Sequence[str]] | None = None,
    **fields: object,
) -> TreeColumn:
    """A column of texts, as wide as the longest of `texts` up to `most` cells.

    Modules that share a row have a text only where it is that of all of them.
    """

    def width(state: ExplorerState) -> int:
        if texts is None:
            return most
        longest = max(map(cell_len, set(texts(state))), default=0)
        return min(max(longest, cell_len(str(fields["title"]))), most)

    def draw_row(state: ExplorerState, row: RowModules) -> Sequence[Piece]:
        first = draw(state, row[0])
        alike = all(draw(state, module) == first for module in row[1:])
        return first if alike else ()

    return TreeColumn(draw=draw_row, width=width, **fields)  # type: ignore[arg-type]


def heat(share: float) -> int:
    """How hot a share of the whole is, from 0 to 4."""
    return sum(share >= limit for limit in (0.02, 0.1, 0.25, 0.5))


def toned(row: RowModules, style: str) -> str:
    """The style of a row: what stands elsewhere too is counted there, and pale here."""
    return "shared" if row[0].alias_of is not None else style
