"""The first column of the tree: where a module hangs, whether it is open, and its name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len

from torchglass.records.model import Module
from torchglass.views.formats import harmless
from torchglass.views.tui.cells import Piece, fit_pieces
from torchglass.views.tui.subject import FOUND, LOST, Subject
from torchglass.views.tui.tree.columns import Row

BESIDE = 5
"""Cells a name needs besides itself and its lines: the cursor's, and two on each of its sides."""

_LINE = "│ "
_OPEN, _CLOSED, _LEAF = "▾ ", "▸ ", "  "
_GUTTERS = {"cursor": "▌", "resting": "▌", "same": "▏"}


@dataclass(frozen=True, slots=True)
class Standing:
    """How a row stands in the tree now."""

    tone: str = "plain"
    is_open: bool = False
    is_match: bool = False


class Names:
    """The names of a model's modules, as they stand in the tree."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    @cached_property
    def widths(self) -> npt.NDArray[np.int64]:
        """The cells that each module's name takes with the lines before it."""
        modules, depths = self.subject.model.modules, self.subject.outline.depths
        lengths = {name: cell_len(_label(name)) for name in {module.name for module in modules}}
        own = np.fromiter((lengths[module.name] for module in modules), np.int64, len(modules))
        own[0] = cell_len(self._label([self.subject.model.root]))
        return own + len(_LINE) * np.array(depths, np.int64)

    def width(self, row: Row) -> int:
        """The cells of one row, which may stand for several modules."""
        own = cell_len(self._label(row))
        return own + len(_LINE) * self.subject.outline.depths[row[0].id]

    def draw(self, row: Row, width: int, standing: Standing, *, named: bool = True) -> list[Piece]:
        """A row's name in `width` cells, or what stands before it alone."""
        module = row[0]
        levels = self._levels(row, width)
        guides = _LINE * levels
        if levels < self.subject.outline.depths[module.id]:
            guides = "…" + guides[1:]
        marker = (_OPEN if standing.is_open else _CLOSED) if module.children else _LEAF
        mark = next((mark for one in row if (mark := self.subject.note(one)[:1])), "")
        label = self._label(row) if named else ""
        pieces = [
            (guides + marker, "guide"),
            (label, "match" if standing.is_match else self._tone(module)),
            (f" {mark}" if mark else "", "problem" if mark in (LOST, FOUND) else "mark"),
        ]
        return [(_GUTTERS.get(standing.tone, " "), "gutter"), *fit_pieces(pieces, width - 1)]

    def is_marker(self, row: Row, width: int, x: int) -> bool:
        """Whether a place in the line is where the fold is opened and closed."""
        start = 1 + len(_LINE) * self._levels(row, width)
        return start <= x < start + len(_LEAF)

    def _tone(self, module: Module) -> str:
        comparison = self.subject.comparison
        change = comparison.changes.get(module.path) if comparison else None
        return change.verdict if change else "name"

    def _levels(self, row: Row, width: int) -> int:
        """How many levels above a module are drawn: a deep row gives up lines, not its name."""
        room = width - 1 - len(_LEAF)
        drawn = max(room - cell_len(self._label(row)) - 2, room // 2) // len(_LINE)
        return min(self.subject.outline.depths[row[0].id], drawn)

    def _label(self, row: Row) -> str:
        first, last = row[0], row[-1]
        if first.parent is None:
            return harmless(self.subject.model.name) or "model"
        if first is not last:
            places = f"{_label(first.name)}–{_label(last.name)}"
            return f"{len(row)} × {harmless(first.kind)} ({places})"
        return _label(first.name)


def _label(name: str) -> str:
    return harmless(name) or '""'
