"""The page that tells every key, made from the table of keys."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from torchglass.views.tui.keys import Key, sections
from torchglass.views.tui.table import all_keys

_KEYS, _BETWEEN = 14, 2
_COLUMN = 58
_MOST_WIDTH, _AROUND = 190, 5
"""The cells of the window as the style sheet has it, and what its border and its edges take."""


class Help(ModalScreen[None]):
    """All keys, under the headings of the table."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"help--heading", "help--key", "help--does"}
    BINDINGS: ClassVar = [
        Binding("escape,enter,q,question_mark", "dismiss", "close the help", show=False),
        Binding("down,j", "scroll(1)", "scroll down", show=False),
        Binding("up,k", "scroll(-1)", "scroll up", show=False),
        Binding("pagedown,space", "page(1)", "scroll down a page", show=False),
        Binding("pageup", "page(-1)", "scroll up a page", show=False),
    ]

    def compose(self) -> ComposeResult:
        """One page, of several columns where there is room."""
        with VerticalScroll(id="help") as page:
            page.border_title = "Keys"
            page.border_subtitle = "Esc closes"
            with Container():
                width = min(self.app.size.width, _MOST_WIDTH) - _AROUND
                count = min(max(width // _COLUMN, 1), 3)
                for column in _columns(count, width // count):
                    yield Static(column)

    def action_scroll(self, direction: int) -> None:
        """Move the page one line."""
        self.query_one(VerticalScroll).scroll_relative(y=direction, animate=False)

    def action_page(self, direction: int) -> None:
        """Move the page by what can be seen of it."""
        page = self.query_one(VerticalScroll)
        page.scroll_relative(y=direction * max(page.size.height - 1, 1), animate=False)


def _columns(count: int, width: int) -> list[Content]:
    """The table as texts of about the same length, with no section torn apart."""
    blocks = [
        [
            Content.styled(title, ".help--heading"),
            *(line for key in keys for line in _lines(key, width)),
            Content(""),
        ]
        for title, keys in sections(all_keys()).items()
    ]
    room = sum(map(len, blocks)) / count
    columns: list[list[Content]] = [[] for _ in range(count)]
    done = 0
    for block in blocks:
        columns[min(int((done + len(block) / 2) / room), count - 1)].extend(block)
        done += len(block)
    return [Content("\n").join(column) for column in columns]


def _lines(key: Key, width: int) -> Iterator[Content]:
    """A key and what it does, which goes on below itself where it is long."""
    label = key.label
    for words in textwrap.wrap(key.does, max(width - _KEYS - _BETWEEN, 1)):
        yield Content.assemble((f"{label:<{_KEYS}}", ".help--key"), (words, ".help--does"))
        label = ""
