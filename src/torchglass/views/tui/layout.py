"""How the width of the tree is shared out among the names and the columns beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from torchglass.records.model import Module
from torchglass.views.tui.cells import Piece, fit, fit_pieces
from torchglass.views.tui.columns import Column, Group, shown_columns
from torchglass.views.tui.subject import Subject

_LEAST_NAME = 12
_NAME_PERCENT = 45


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that are shown, where each begins, and the room of the names."""

    columns: tuple[Column, ...] = ()
    widths: tuple[int, ...] = ()
    gap: int = 1
    """Empty cells before each column."""
    name_width: int = _LEAST_NAME

    @property
    def starts(self) -> Sequence[int]:
        """Where each column begins, its gap included, and where the last one ends."""
        return [0, *accumulate(self.gap + width for width in self.widths)]

    @property
    def columns_width(self) -> int:
        """What all columns take together."""
        return self.starts[-1]

    def header(self) -> list[Piece]:
        """The titles above the columns."""
        return [
            (" " * self.gap + fit(column.title, width, right=column.right), "header")
            for column, width in zip(self.columns, self.widths, strict=True)
        ]

    def cells(self, subject: Subject, module: Module) -> list[Piece]:
        """What the columns say of a module."""
        pieces: list[Piece] = []
        for column, width in zip(self.columns, self.widths, strict=True):
            pieces.append((" " * self.gap, "plain"))
            pieces += fit_pieces(column.draw(subject, module), width, right=column.right)
        return pieces

    def beside(self, left: int, direction: int) -> int:
        """Where the next column begins, to the right or to the left of a place."""
        if direction > 0:
            return min((start for start in self.starts if start > left), default=left)
        return max((start for start in self.starts if start < left), default=left)

    def showing(self, group: Group, left: int, room: int) -> int:
        """The place nearest to `left` from which the columns of a group fit into the room."""
        for column, start, width in zip(self.columns, self.starts, self.widths, strict=False):
            end = start + self.gap + width
            if column.group == group and not left <= start <= end <= left + room:
                left = min(start, *(place for place in self.starts if place >= end - room))
        return left


def lay_out(subject: Subject, groups: frozenset[Group], names: int, width: int) -> Layout:
    """Share a width out among names, of which the longest takes `names` cells, and columns."""
    columns = tuple(shown_columns(subject, groups))
    widths = tuple(column.width(subject) for column in columns)
    gap = 2 if names + sum(widths) + 2 * len(columns) <= width else 1
    left_over = width - sum(widths) - gap * len(columns)
    return Layout(
        columns=columns,
        widths=widths,
        gap=gap,
        name_width=min(names, max(left_over, width * _NAME_PERCENT // 100, _LEAST_NAME)),
    )
