"""Windows in front of the explorer: lists, a prompt, files, help, loading."""

from __future__ import annotations

import os
import re
import textwrap
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.cells import cell_len
from textual import on
from textual.app import App, ComposeResult, ReturnType
from textual.binding import Binding
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, OptionList, ProgressBar, Static
from textual.widgets.option_list import Option

from torchglass.tables.text import format_bytes, harmless
from torchglass.views.tui.explorer_state import BELOW, FOUND, LOST, SHARED, TIED
from torchglass.views.tui.keys import KeyEntry, Place, sections
from torchglass.views.tui.styled_text import THEMES, column_colors, theme_for


class ThemedApp(App[ReturnType]):
    """An app in the colors of the explorer."""

    CSS_PATH: ClassVar = Path(__file__).with_name("app.tcss")
    TITLE = "torchglass"

    def __init__(self) -> None:
        super().__init__()
        for each in THEMES:
            self.register_theme(each)
        self.own_theme = theme_for(os.environ, self.console.color_system)
        if self.own_theme in self.available_themes:
            self.theme = self.own_theme

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(column_colors(self.current_theme))


class ListDialog(ModalScreen["str | None"]):
    """A list; the result is the id of the selected entry, or None."""

    BINDINGS: ClassVar = [
        Binding("escape,q", "dismiss(None)", "close", show=False),
        Binding("j", "cursor(1)", "down", show=False),
        Binding("k", "cursor(-1)", "up", show=False),
    ]

    def __init__(self, title: str, things: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._title, self._things = title, things

    def compose(self) -> ComposeResult:
        options = [Option(Content(harmless(text)), id=name) for name, text in self._things]
        listed = OptionList(*options, id="pick")
        listed.border_title = self._title
        listed.border_subtitle = "Enter select · Esc close"
        yield listed

    @on(OptionList.OptionSelected)
    def _picked(self, message: OptionList.OptionSelected) -> None:
        self.dismiss(message.option.id)

    def action_cursor(self, direction: int) -> None:
        listed = self.query_one(OptionList)
        listed.action_cursor_down() if direction > 0 else listed.action_cursor_up()


_KEYS, _BETWEEN = 13, 2
_COLUMN, _MOST_COLUMNS = 36, 4
_MOST_WIDTH, _AROUND = 190, 5
"""The width of the window in the style sheet, and what its border and padding take."""
MARKS: tuple[tuple[str, str], ...] = (
    (FOUND, "Problem found here"),
    (BELOW, "Problem below; how many, if folded"),
    (SHARED, "Same module as another path"),
    (TIED, "Shares a tensor with another module"),
    (LOST, "Warning here, or could not be read"),
    ("▏", "Same class as the selected module"),
)
"""The marks beside the names in the tree."""


class HelpWindow(ModalScreen[None]):
    """All keys by heading; those of the focused panel come first."""

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

    def __init__(self, keys: Sequence[KeyEntry], focused: Collection[Place] = ()) -> None:
        """`focused` are the places whose keys act now."""
        super().__init__()
        self._keys = keys
        self._focused = focused

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help", can_focus=False) as page:
            page.border_title = "Keys"
            page.border_subtitle = "/ filter · Esc close"
            yield Input(placeholder="filter", compact=True)
            with Container():
                for column in self._columns(""):
                    yield Static(column)

    def on_mount(self) -> None:
        self.query_one(Input).display = False

    def action_filter(self) -> None:
        line = self.query_one(Input)
        line.display = True
        self.set_focus(line)

    @on(Input.Changed)
    def _narrow(self, message: Input.Changed) -> None:
        # After a resize there may be another number of columns.
        columns = list(self.query(Static))
        for column, content in zip(
            columns, self._columns(message.value, len(columns)), strict=True
        ):
            column.update(content)

    @on(Input.Submitted)
    def _keep_filter(self) -> None:
        self.set_focus(None)

    def action_close(self) -> None:
        line = self.query_one(Input)
        if line.has_focus:
            line.value = ""
            line.display = False
            self.set_focus(None)
        else:
            self.dismiss()

    def action_scroll(self, direction: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=direction, animate=False)

    def action_page(self, direction: int) -> None:
        page = self.query_one(VerticalScroll)
        page.scroll_relative(y=direction * max(page.size.height - 1, 1), animate=False)

    def _columns(self, wanted: str, count: int | None = None) -> list[Content]:
        """The sections as columns of about the same height; no section is split."""
        room = min(self.app.size.width, _MOST_WIDTH) - _AROUND
        count = count or min(max(room // _COLUMN, 1), _MOST_COLUMNS)
        blocks = list(self._blocks(wanted.strip().lower(), room // count))
        height = max(sum(map(len, blocks)) / count, 1)
        columns: list[list[Content]] = [[] for _ in range(count)]
        done = 0
        for block in blocks:
            columns[min(int((done + len(block) / 2) / height), count - 1)].extend(block)
            done += len(block)
        return [Content("\n").join(column) for column in columns]

    def _blocks(self, wanted: str, width: int) -> Iterator[list[Content]]:
        """The lines of each section that contain the text."""
        for title, entries in self._sections():
            lines = [
                line
                for key, does in entries
                if wanted in f"{title} {key} {does}".lower()
                for line in _lines(key, does, width)
            ]
            if lines:
                yield [Content.styled(title, ".help--heading"), *lines, Content("")]

    def _sections(self) -> Iterator[tuple[str, Sequence[tuple[str, str]]]]:
        in_panel = any(place.startswith(("panel", "labels")) for place in self._focused)
        own = {key.section for key in self._keys if in_panel and key.place in self._focused}
        found = sections(self._keys)
        for title in sorted(found, key=lambda title: title not in own):
            yield title, [(key.label, key.does) for key in found[title]]
        yield "Marks in the tree", MARKS


def _lines(label: str, does: str, width: int) -> Iterator[Content]:
    """A key and what it does, wrapped."""
    for words in textwrap.wrap(does, max(width - _KEYS - _BETWEEN, 1)):
        yield Content.assemble((f"{label:<{_KEYS}}", ".help--key"), (words, ".help--does"))
        label = ""


_TICK_SECONDS = 0.2


class LoadingScreen(Screen[None]):
    """Runs `work` in a thread and shows the time it takes. The user can cancel at any time."""

    BINDINGS: ClassVar = [Binding("escape,q", "app.quit", "cancel", show=False)]

    @dataclass
    class Opened(Message):
        """The work is done, or it raised."""

        result: object
        error: BaseException | None

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._work = work
        self._start = time.monotonic()

    def compose(self) -> ComposeResult:
        with Vertical(id="opening"):
            yield ProgressBar(show_eta=False, show_percentage=False)
            yield Static(id="elapsed")

    def on_mount(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()
        self._ticking = self.set_interval(_TICK_SECONDS, self._tick)
        self._tick()

    @on(Opened)
    async def _stop_ticking(self) -> None:
        # Each tick would draw the screen above this one again, too.
        self._ticking.stop()
        await self.query_one("#opening").remove()

    def _run(self) -> None:
        try:
            result = self._work()
        except BaseException as error:  # noqa: BLE001 - the app raises it again where it was called
            self.post_message(self.Opened(None, error))
        else:
            self.post_message(self.Opened(result, None))

    def _tick(self) -> None:
        seconds = time.monotonic() - self._start
        self.query_one("#elapsed", Static).update(f"Loading… {seconds:.0f} s (q to cancel)")


def screenshot(app: App[Any], *, simplify: bool = False) -> str:
    """The screen as SVG."""
    svg = app.export_screenshot(simplify=simplify)
    # The picture would load its font from another host.
    return re.sub(r"@font-face\s*{.*?}", "", svg, flags=re.DOTALL)


_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


def pick_file(files: Sequence[Path], title: str = "Select a run or checkpoint") -> Path | None:
    """Let the user pick a file; None if they cancel."""
    return FilePicker(files, title).run()


class FilePicker(ThemedApp["Path | None"]):
    """A list of files, the latest first."""

    ENABLE_COMMAND_PALETTE = False

    def __init__(self, files: Sequence[Path], heading: str) -> None:
        super().__init__()
        self._heading = heading
        self._files = {str(number): file for number, file in enumerate(files)}

    def on_mount(self) -> None:
        names = [harmless(os.path.relpath(file)) for file in self._files.values()]
        width = max(map(cell_len, names), default=0)
        lines = [
            (number, f"{name}{' ' * (width - cell_len(name))}  {self._facts(file)}")
            for name, (number, file) in zip(names, self._files.items(), strict=True)
        ]
        dialog = ListDialog(self._heading, lines)
        self.push_screen(dialog, lambda number: self.exit(self._files.get(number or "")))

    def _facts(self, file: Path) -> str:
        try:
            stat = file.stat()
        except OSError:
            return ""
        return f"{format_bytes(stat.st_size):>9}  {_ago(time.time() - stat.st_mtime)}"


def _ago(seconds: float) -> str:
    for length, unit in _UNITS:
        count = int(seconds // length)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


class Prompt(ModalScreen["str | None"]):
    """Asks for one line of text; an invalid text gets an error message."""

    BINDINGS: ClassVar = [Binding("escape", "dismiss(None)", "close", show=False)]

    def __init__(
        self, title: str, value: str, placeholder: str, check: Callable[[str], str]
    ) -> None:
        """`check` returns what is wrong with the text, or ""."""
        super().__init__()
        self._title, self._check = title, check
        self._input = Input(value, placeholder=placeholder, compact=True)

    def compose(self) -> ComposeResult:
        with Vertical() as window:
            yield self._input
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
