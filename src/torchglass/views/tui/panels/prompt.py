"""A small window that asks for one line of text."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from torchglass.views.formats import harmless


class Ask(ModalScreen["str | None"]):
    """A line to type into; what is wrong with it is said, and it is given back when it is right."""

    DEFAULT_CSS: ClassVar[str] = """
    Ask { align: center middle; background: $background 60%; }
    Ask Vertical {
        width: 60;
        max-width: 100%;
        height: auto;
        max-height: 100%;
        background: $surface;
        border: round $primary;
    }
    Ask Input, Ask Input:focus {
        padding: 0 1;
        background: $surface;
        background-tint: $surface 0%;
    }
    Ask Static { height: auto; padding: 0 1; color: $text-error; }
    """
    BINDINGS: ClassVar = [Binding("escape", "dismiss(None)", "close", show=False)]

    def __init__(
        self, title: str, value: str, placeholder: str, check: Callable[[str], str]
    ) -> None:
        """`check` says what is wrong with what was typed, "" if nothing is."""
        super().__init__()
        self._title = title
        self._value = value
        self._placeholder = placeholder
        self._check = check

    def compose(self) -> ComposeResult:
        """The line, and what is wrong with it."""
        with Vertical() as window:
            yield Input(self._value, placeholder=self._placeholder, compact=True)
            yield Static()
        window.border_title = Content(harmless(self._title))
        window.border_subtitle = "Enter apply · Esc close"

    @on(Input.Changed)
    def _typed(self) -> None:
        self.query_one(Static).update("")

    @on(Input.Submitted)
    def _entered(self, message: Input.Submitted) -> None:
        problem = self._check(message.value)
        if problem:
            self.query_one(Static).update(Content(harmless(problem)))
        else:
            self.dismiss(message.value)
