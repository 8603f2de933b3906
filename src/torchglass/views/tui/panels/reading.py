"""A text opened: all of it, to be read line by line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from torchglass.records.attributes import Attribute
from torchglass.views.formats import harmless
from torchglass.views.tui.panels.drawing import Row, paragraph, text

_TAB = 4


class Reading:
    """What an attribute says, as lines that fit."""

    places = ("panel:text",)
    """Where the keys act that act on it, as the table of keys names it."""

    def __init__(self, attribute: Attribute, words: str) -> None:
        self.attribute = attribute
        self._lines = [harmless(line.expandtabs(_TAB).rstrip()) for line in words.splitlines()]
        self._drawn: tuple[int, list[Row]] = (0, [])

    def rows(
        self, width: int, height: int, *, shades: bool = False
    ) -> tuple[Sequence[Row], Sequence[Row]]:
        """The lines, broken where they are too long, and none that stays at the top."""
        if self._drawn[0] != width:
            self._drawn = width, [row for line in self._lines for row in _broken(line, width)]
        return self._drawn[1], []


def _broken(line: str, width: int) -> list[Row]:
    return [text(line)] if cell_len(line) <= width else paragraph(line, width)
