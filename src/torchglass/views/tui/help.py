"""The page that tells every key, made from the table of keys."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from torchglass.views.tui.keys import KEYS, Key, sections

_KEYS = 14
_WIDE = 96


class Help(ModalScreen[None]):
    """All keys, under the headings of the table."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"help--heading", "help--key", "help--does"}
    BINDINGS: ClassVar = [
        Binding("escape,enter,q,question_mark", "dismiss", "close the help", show=False),
        Binding("down,j", "scroll(1)", "scroll down", show=False),
        Binding("up,k", "scroll(-1)", "scroll up", show=False),
    ]

    def compose(self) -> ComposeResult:
        """One page, of two columns where there is room."""
        with VerticalScroll(id="help") as page:
            page.border_title = "Keys"
            page.border_subtitle = "Esc closes"
            with Container():
                for column in _columns():
                    yield Static(column)

    def on_resize(self) -> None:
        """Set the columns side by side where there is room."""
        self.set_class(self.size.width >= _WIDE, "wide")

    def action_scroll(self, direction: int) -> None:
        """Move the page one line."""
        self.query_one(VerticalScroll).scroll_relative(y=direction, animate=False)


def _columns() -> tuple[Content, Content]:
    """The table as two texts of about the same length, with no section torn apart."""
    left: list[Content] = []
    right: list[Content] = []
    half = (len(KEYS) + 2 * len(sections())) / 2
    for title, keys in sections().items():
        block = [Content.styled(title, ".help--heading"), *map(_line, keys), Content("")]
        (left if len(left) + len(block) / 2 < half else right).extend(block)
    return Content("\n").join(left), Content("\n").join(right)


def _line(key: Key) -> Content:
    return Content.assemble((f"{key.label:<{_KEYS}}", ".help--key"), (key.does, ".help--does"))
