"""The page that tells every key, made from the table of keys."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from torchglass.views.tui.keys import Key, Place, sections
from torchglass.views.tui.subject import FOUND, LOST, SHARED, TIED
from torchglass.views.tui.table import all_keys

_KEYS, _BETWEEN = 13, 2
_COLUMN, _MOST_COLUMNS = 36, 4
_MOST_WIDTH, _AROUND = 190, 5
"""The cells of the window as the style sheet has it, and what its border and its edges take."""
MARKS: tuple[tuple[str, str], ...] = (
    (FOUND, "A problem was found here"),
    (SHARED, "The same module as another one"),
    (TIED, "Shares a tensor with another module"),
    (LOST, "Could not be read"),
    ("▏", "Same class as the selected module"),
)
"""What stands beside the names in the tree."""

Line = tuple[str, str]


class Help(ModalScreen[None]):
    """All keys under the headings of the table, those of the focused pane first."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"help--heading", "help--key", "help--does"}
    AUTO_FOCUS = ""
    BINDINGS: ClassVar = [
        Binding("escape,enter,q,question_mark", "close", "close the help", show=False),
        Binding("slash", "filter", "filter", show=False),
        Binding("down,j", "scroll(1)", "scroll down", show=False),
        Binding("up,k", "scroll(-1)", "scroll up", show=False),
        Binding("pagedown,space", "page(1)", "scroll down a page", show=False),
        Binding("pageup", "page(-1)", "scroll up a page", show=False),
    ]

    def __init__(self, focused: Collection[Place] = ()) -> None:
        """`focused` are the places whose keys act now."""
        super().__init__()
        self._focused = focused

    def compose(self) -> ComposeResult:
        """One page, of several columns where there is room."""
        with VerticalScroll(id="help", can_focus=False) as page:
            page.border_title = "Keys"
            page.border_subtitle = "/ filter · Esc close"
            yield Input(placeholder="filter", compact=True)
            with Container():
                width = min(self.app.size.width, _MOST_WIDTH) - _AROUND
                count = min(max(width // _COLUMN, 1), _MOST_COLUMNS)
                for column in self._columns("", count, width // count):
                    yield Static(column)

    def on_mount(self) -> None:
        """Hide the filter until it is asked for."""
        self.query_one(Input).display = False

    def action_filter(self) -> None:
        """Type what the keys are to be about."""
        line = self.query_one(Input)
        line.display = True
        self.set_focus(line)

    @on(Input.Changed)
    def _narrow(self, message: Input.Changed) -> None:
        columns = list(self.query(Static))
        width = min(self.app.size.width, _MOST_WIDTH) - _AROUND
        texts = self._columns(message.value, len(columns), width // len(columns))
        for column, content in zip(columns, texts, strict=True):
            column.update(content)

    @on(Input.Submitted)
    def _keep_filter(self) -> None:
        self.set_focus(None)

    def action_close(self) -> None:
        """Leave the filter, or the page."""
        line = self.query_one(Input)
        if line.has_focus:
            line.value = ""
            line.display = False
            self.set_focus(None)
        else:
            self.dismiss()

    def action_scroll(self, direction: int) -> None:
        """Move the page one line."""
        self.query_one(VerticalScroll).scroll_relative(y=direction, animate=False)

    def action_page(self, direction: int) -> None:
        """Move the page by what can be seen of it."""
        page = self.query_one(VerticalScroll)
        page.scroll_relative(y=direction * max(page.size.height - 1, 1), animate=False)

    def _columns(self, wanted: str, count: int, width: int) -> list[Content]:
        """The table as texts of about the same length, with no section torn apart."""
        blocks = [
            [
                Content.styled(title, ".help--heading"),
                *(line for key, does in lines for line in _lines(key, does, width)),
                Content(""),
            ]
            for title, lines in _wanted(self._sections(), wanted.strip().lower())
        ]
        room = max(sum(map(len, blocks)) / count, 1)
        columns: list[list[Content]] = [[] for _ in range(count)]
        done = 0
        for block in blocks:
            columns[min(int((done + len(block) / 2) / room), count - 1)].extend(block)
            done += len(block)
        return [Content("\n").join(column) for column in columns]

    def _sections(self) -> Iterator[tuple[str, Sequence[Line]]]:
        """Headings and lines: what acts in the focused panel, all else, and the marks."""
        own: list[Key] = [key for key in all_keys() if key.place in self._focused]
        first = {key.section for key in own} if self._in_panel else set()
        found = sections(all_keys())
        ordered = sorted(found, key=lambda title: title not in first)
        for title in ordered:
            yield title, [(key.label, key.does) for key in found[title]]
        yield "Marks in the tree", MARKS

    @property
    def _in_panel(self) -> bool:
        return any(place.startswith(("panel", "labels")) for place in self._focused)


def _wanted(
    blocks: Iterator[tuple[str, Sequence[Line]]], text: str
) -> Iterator[tuple[str, Sequence[Line]]]:
    """The sections and lines that have a text in them."""
    for title, lines in blocks:
        kept = [line for line in lines if text in f"{title} {line[0]} {line[1]}".lower()]
        if kept:
            yield title, kept


def _lines(label: str, does: str, width: int) -> Iterator[Content]:
    """A key and what it does, which goes on below itself where it is long."""
    for words in textwrap.wrap(does, max(width - _KEYS - _BETWEEN, 1)):
        yield Content.assemble((f"{label:<{_KEYS}}", ".help--key"), (words, ".help--does"))
        label = ""
