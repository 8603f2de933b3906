"""The first column of the tree: where a module hangs, whether it is open, and its name."""

from __future__ import annotations

from functools import cached_property

from rich.cells import cell_len

from torchglass.records.model import Module
from torchglass.views.formats import harmless
from torchglass.views.tui.cells import Piece, fit_pieces
from torchglass.views.tui.subject import Subject

BESIDE = 5
"""Cells a name needs besides itself and its lines: the cursor's, and two on each of its sides."""

_LINE = "│ "
_OPEN, _CLOSED, _LEAF = "▾ ", "▸ ", "  "
_GUTTERS = {"cursor": "▌", "same": "▏"}


class Names:
    """The names of a model's modules, as they stand in the tree."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    @cached_property
    def widths(self) -> list[int]:
        """The cells that each module's name takes with the lines before it."""
        modules, depths = self.subject.model.modules, self.subject.outline.depths
        lengths = {name: cell_len(_label(name)) for name in {module.name for module in modules}}
        widths = [
            len(_LINE) * depth + lengths[module.name]
            for module, depth in zip(modules, depths, strict=True)
        ]
        widths[0] = cell_len(self._label(self.subject.model.root))
        return widths

    def draw(
        self, module: Module, width: int, tone: str, *, is_open: bool, is_match: bool
    ) -> list[Piece]:
        """A module's name in `width` cells."""
        levels = self._levels(module, width)
        guides = _LINE * levels
        if levels < self.subject.outline.depths[module.id]:
            guides = "…" + guides[1:]
        marker = (_OPEN if is_open else _CLOSED) if module.children else _LEAF
        mark = self.subject.note(module)[:1]
        pieces = [
            (guides + marker, "guide"),
            (self._label(module), "match" if is_match else "name"),
            (f" {mark}" if mark else "", "problem" if module.problem else "mark"),
        ]
        return [(_GUTTERS.get(tone, " "), "gutter"), *fit_pieces(pieces, width - 1)]

    def is_marker(self, module: Module, width: int, x: int) -> bool:
        """Whether a place in the line is where the fold is opened and closed."""
        start = 1 + len(_LINE) * self._levels(module, width)
        return start <= x < start + len(_LEAF)

    def _levels(self, module: Module, width: int) -> int:
        """How many levels above a module are drawn: a deep row gives up lines, not its name."""
        room = width - 1 - len(_LEAF)
        drawn = max(room - cell_len(self._label(module)) - 2, room // 2) // len(_LINE)
        return min(self.subject.outline.depths[module.id], drawn)

    def _label(self, module: Module) -> str:
        if module.parent is None:
            return harmless(self.subject.model.name) or "model"
        return _label(module.name)


def _label(name: str) -> str:
    return harmless(name) or '""'
