"""The one-line parts around the panels: texts at two ends, and the keys that act."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.widget import Widget

from torchglass.views.formats import harmless
from torchglass.views.tui.cells import fit
from torchglass.views.tui.keys import Key, glyph


class TwoEnds(Widget):
    """A line with text at its left end and at its right end; the right one is never cut."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"ends--left", "ends--right"}

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._left = self._right = ""

    def say(self, left: str, right: str | None = None) -> None:
        """Replace the text at the left, and at the right if there is any for it."""
        said = self._left, self._right
        self._left = harmless(left)
        self._right = self._right if right is None else harmless(right)
        # What is told again every second need not go over the wire again.
        if said != (self._left, self._right):
            self.refresh()

    def render(self) -> Content:
        """Both ends."""
        room = max(self.size.width - cell_len(self._right) - 1, 0)
        return Content.assemble(
            (fit(self._left, room), ".ends--left"),
            (f" {self._right}", ".ends--right"),
        )


class KeyBar(Widget):
    """The keys that act now, as many as fit. A click on one does what the key does."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"keys--key", "keys--hint"}

    def __init__(self) -> None:
        super().__init__()
        self._keys: tuple[Key, ...] = ()

    def offer(self, keys: Iterable[Key]) -> None:
        """Show these keys, the first ones first."""
        self._keys = tuple(keys)
        self.refresh()

    def render(self) -> Content:
        """The keys and a word for each."""
        return Content("").join(
            Content.assemble((f" {label}", ".keys--key"), (f" {hint} ", ".keys--hint"))
            for _, (label, hint) in self._entries()
        )

    def on_click(self, event: events.Click) -> None:
        """Press the key that was clicked."""
        left = 0
        for key, texts in self._entries():
            left += _entry_width(texts)
            if event.x < left:
                self.app.simulate_key(key)
                break

    def _entries(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """Each key that fits, whole entries only, with its label and word."""
        room = self.size.width
        for entry in self._keys:
            texts = glyph(entry.keys[0]), entry.hint
            room -= _entry_width(texts)
            if room < 0:
                return
            yield entry.keys[0], texts


def _entry_width(texts: tuple[str, str]) -> int:
    return sum(map(cell_len, texts)) + 3
