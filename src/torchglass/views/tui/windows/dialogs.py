"""Small windows in which one thing is picked from a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from torchglass.views.formats import harmless


class Pick(ModalScreen["str | None"]):
    """A list of things; the id of the one that is picked, or None."""

    BINDINGS: ClassVar = [
        Binding("escape,q", "dismiss(None)", "close", show=False),
        Binding("j", "cursor(1)", "down", show=False),
        Binding("k", "cursor(-1)", "up", show=False),
    ]

    def __init__(self, title: str, things: Sequence[tuple[str, str]], footer: str = "") -> None:
        super().__init__()
        self._title = title
        self._things = things
        self._footer = footer

    def compose(self) -> ComposeResult:
        """The list."""
        options = [Option(Content(harmless(text)), id=name) for name, text in self._things]
        listed = OptionList(*options, id="pick")
        listed.border_title = self._title
        listed.border_subtitle = self._footer or "Enter select · Esc close"
        yield listed

    @on(OptionList.OptionSelected)
    def _picked(self, message: OptionList.OptionSelected) -> None:
        self.dismiss(message.option.id)

    def action_cursor(self, direction: int) -> None:
        """Go down or up."""
        listed = self.query_one(OptionList)
        listed.action_cursor_down() if direction > 0 else listed.action_cursor_up()
