"""How the width of the tree is shared out among the names and the columns beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from torchglass.views.tui.cells import Piece, fit, fit_pieces
from torchglass.views.tui.subject import Subject
from torchglass.views.tui.tree.columns import Column, Group, Row

_LEAST_NAME = 12
_NAME_PERCENT = 45
_BETWEEN = 2
"""Cells between two components that have no columns."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that are shown, where each begins, and the room of the names."""

    columns: tuple[Column, ...] = ()
    widths: tuple[int, ...] = ()
    gap: int = 1
    """Empty cells before each column."""
    name_width: int = _LEAST_NAME
    aligned: bool = True

    @property
    def starts(self) -> Sequence[int]:
        """Where each column begins, its gap included, and where the last one ends."""
        return [0, *accumulate(self.gap + width for width in self.widths)]

    @property
    def columns_width(self) -> int:
        """What all columns take together."""
        return self.starts[-1]

    def header(self, marked: str = "", mark: str = "") -> list[Piece]:
        """The titles above the columns, with a mark at one of them."""
        pieces: list[Piece] = []
        for column, width in zip(self.columns, self.widths, strict=True):
            sorted_by = column.id == marked
            title = f"{column.title}{mark}" if sorted_by else column.title
            style = "sorted" if sorted_by else "header"
            if self.aligned:
                cell = fit(title, width, right=column.right)
                pieces.append((" " * self.gap + cell, style))
            else:
                pieces.append((" " * _BETWEEN + title, style))
        return pieces

    def cells(self, subject: Subject, row: Row) -> list[Piece]:
        """What the columns say of a row."""
        pieces: list[Piece] = []
        for column, width in zip(self.columns, self.widths, strict=True):
            drawn = column.draw(subject, row)
            if self.aligned:
                pieces.append((" " * self.gap, "plain"))
                pieces += fit_pieces(drawn, width, right=column.right)
            elif any(text.strip() for text, _ in drawn):
                pieces.append((" " * _BETWEEN, "plain"))
                pieces.append((column.prefix, "share"))
                pieces += fit_pieces(drawn, width, fill=False)
        return pieces

    def uncut(self, left: int, room: int) -> int:
        """The cells from `left` on that can be filled without cutting a number at their end."""
        ends = self.starts[1:] if self.aligned else ()
        for column, start, end in zip(self.columns, self.starts, ends, strict=False):
            if left < start < left + room < end and column.number is not None:
                return start - left
        return room

    def column_at(self, x: int) -> Column | None:
        """The column at a place beside the names."""
        places = zip(self.columns, self.starts[1:], strict=True)
        return next((column for column, end in places if x < end), None)

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
                left = min([start, *(place for place in self.starts if place >= end - room)])
        return left


def lay_out(
    columns: Sequence[Column], widths: Sequence[int], names: int, width: int, *, aligned: bool
) -> Layout:
    """Share a width out among names, of which the longest takes `names` cells, and columns."""
    gap = 2 if names + sum(widths) + 2 * len(columns) <= width else 1
    left_over = width - sum(widths) - gap * len(columns)
    return Layout(
        columns=tuple(columns),
        widths=tuple(widths),
        gap=gap,
        name_width=min(names, max(left_over, width * _NAME_PERCENT // 100, _LEAST_NAME)),
        aligned=aligned,
    )
