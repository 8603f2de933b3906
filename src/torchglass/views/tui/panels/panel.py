"""What all panels share: rows that scroll, keys, missing data and background jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, TypeVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events, on
from textual.color import Color
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.timer import Timer

from torchglass.errors import TorchglassError
from torchglass.records.model import Module, Progress
from torchglass.records.run import SeriesId
from torchglass.records.trace import OpId
from torchglass.tables.text import harmless
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.keys import bindings
from torchglass.views.tui.styled_text import (
    PANEL_STYLES,
    SIXTEEN,
    TextRow,
    meter,
    paragraph,
    rich_style,
)

T = TypeVar("T")

_PATIENCE_SECONDS = 0.25
"""How long a job runs before its progress is shown: short jobs must not flicker."""
_METER = 12
_PAN = 8
_SHADES = "░▒▓█"
_LOST, _LOST_COLOR = "×", "#ff00ff"
"""NaN and Inf in a picture of shades, and in one of colors."""
CURSOR_COLORS = {True: 0xFEFEFE, False: 0x010101}
"""A cursor in a picture, on dark and on light; no value has these colors."""
_CURSOR, _CURSORS = "◆", {f"#{color:06x}" for color in CURSOR_COLORS.values()}


@dataclass(slots=True, eq=False)
class BackgroundJob:
    """Work in a thread, which can be cancelled."""

    says: str
    """What it does, in a few words."""
    work: Callable[[Progress], Any]
    then: Callable[[Any], None]
    share: float = 0.0
    stopped: bool = False
    result: Any = None
    problem: str = ""
    """What was raised."""

    def run(self) -> None:
        try:
            self.result = self.work(self._progress)
        except TorchglassError as error:
            self.problem = str(error)
        except Exception as error:  # noqa: BLE001 - the code behind an attribute is not ours, and may raise anything
            self.problem = f"{type(error).__name__}: {error}"

    def _progress(self, share: float) -> bool:
        self.share = share
        return not self.stopped


class Panel(ScrollView, can_focus=True):
    """A view of the module under the tree's cursor: rows below a fixed header.

    A subclass has a `key`, a `title` and `follow`, which calls `put` or `say`.
    """

    key: ClassVar[str] = ""
    """The key that shows and hides it."""
    title: ClassVar[str] = ""
    missing: ClassVar[str] = ""
    """Why there is nothing to show and what to do about it, in one sentence."""
    has_cursor: bool = False
    """Whether a cursor moves from row to row; otherwise rows only scroll."""
    styles_of_text: ClassVar[Mapping[str, str]] = PANEL_STYLES
    BINDINGS: ClassVar = bindings("panel")

    @dataclass
    class Jump(Message):
        """The user wants to go to another module."""

        path: str

    @dataclass
    class Picked(Message):
        """The user selected an op of the trace."""

        op: OpId

    class Leave(Message):
        """The user wants to go back to the tree."""

    class Retitled(Message):
        """The text beside the title changed."""

    @dataclass
    class _Done(Message):
        job: BackgroundJob

    def __init__(self, state: ExplorerState) -> None:
        super().__init__()
        self.state = state
        self.module = state.model.root
        self.row = 0
        self.rows: Sequence[TextRow] = ()
        self._header: Sequence[TextRow] = ()
        self._subtitle = self._position = ""
        self._places: tuple[str, ...] = ()
        self._is_empty = True
        self._job: BackgroundJob | None = None
        self._waited = False
        self._patience: Timer | None = None
        """Ends when a job has taken long enough to say that it is running."""

    # What a panel may define

    @classmethod
    def available(cls, state: ExplorerState) -> bool:
        """Whether it has anything to show."""
        return True

    def follow(self, moved: bool) -> None:
        """Draw the module; `moved` if the cursor moved to it."""
        raise NotImplementedError

    def extra_places(self) -> Iterable[str]:
        """The places of keys that act only sometimes."""
        return ()

    def wanted(self) -> Iterable[SeriesId]:
        """The series that it shows, which have to be read."""
        return ()

    def pick(self, op: OpId) -> None:
        """Show the op that was selected in another panel."""

    def stood(self) -> None:
        """Called when the cursor moved to another row."""

    def choose(self, row: TextRow) -> None:
        """Called when a row is selected."""
        if isinstance(row.target, str):
            self.post_message(self.Jump(row.target))

    def is_marker(self, row: TextRow, x: int) -> bool:
        """Whether `x` is on the triangle that opens and closes a row."""
        return False

    def close_inner(self) -> bool:
        """Close what was opened inside the panel; False if nothing was."""
        return False

    # What it shows

    @property
    def places(self) -> tuple[str, ...]:
        """The places of the key table whose keys act now."""
        own = () if self._is_empty else (f"panel:{self.title.lower()}",)
        return ("panel", *own, *self.extra_places())

    @property
    def subtitle(self) -> str:
        """The text beside the title: the position, and what is shown."""
        return " · ".join(filter(None, (self._position, self._subtitle)))

    @subtitle.setter
    def subtitle(self, words: str) -> None:
        if words != self._subtitle:
            self._subtitle = words
            self.post_message(self.Retitled())

    @property
    def position(self) -> str:
        """The row of the cursor, or how much was scrolled; "" if everything fits."""
        count = len(self.rows)
        if count <= self.window:
            return ""
        if self.has_cursor:
            return f"{self.row + 1:,}/{count:,}"
        return f"{min((self.scroll_offset.y + self.window) / count, 1):.0%}"

    def show(self, module: Module) -> None:
        """Show a module, or update it."""
        moved = module.path != self.module.path
        self.module = module
        if moved:
            self.stop()
            self.row = 0
            self.turn_to(0, 0)
        self.refresh_data(moved)

    def refresh_data(self, moved: bool = False) -> None:
        if self.available(self.state):
            self.follow(moved)
        else:
            self.say(f"{self.missing}.")

    def on_resize(self) -> None:
        self.refresh_data()

    def put(self, rows: Sequence[TextRow], header: Sequence[TextRow] = ()) -> None:
        """Show these rows below a fixed header."""
        self._is_empty = False
        self._put(rows, header)

    def say(self, words: str) -> None:
        """Show a sentence instead of rows; the keys of the panel do not act on it."""
        self._is_empty = True
        self._put(paragraph(words, self.room, "muted"), ())

    def _put(self, rows: Sequence[TextRow], header: Sequence[TextRow]) -> None:
        self.rows, self._header = rows, header
        self.row = min(self.row, max(len(rows) - 1, 0))
        self.lay_out()

    def lay_out(self) -> None:
        """Update the sizes for other rows."""
        near = self.scroll_offset.y
        widest = max(map(_width, self.rows[near : near + 2 * self.window]), default=0)
        self.virtual_size = Size(widest + 2, len(self.rows) + len(self.top()))
        self.refresh()
        self._retitle()

    def _retitle(self) -> None:
        """Announce another position, or other keys."""
        before = self._position, self._places
        self._position, self._places = self.position, self.places
        if before != (self._position, self._places):
            self.post_message(self.Retitled())

    def top(self) -> Sequence[TextRow]:
        """The rows that do not scroll: the header, and the progress of the job."""
        job = self._job
        if job is None or not self._waited:
            return self._header
        share = f" {job.share:4.0%}  "
        pieces = [(f"{job.says}  ", "muted"), *meter(job.share, _METER), (share, "muted")]
        return [*self._header, TextRow([*pieces, ("Esc", "key"), (" cancel", "muted")])]

    # Jobs in the background

    @property
    def settled(self) -> bool:
        return self._job is None

    def work(self, says: str, work: Callable[[Progress], T], then: Callable[[T], None]) -> None:
        """Run `work` in a thread, then `then` with its result unless it was cancelled."""
        self.stop()
        job = self._job = BackgroundJob(says, work, then)
        self._waited = False
        # A daemon thread: a property that hangs must not keep the user from quitting.
        threading.Thread(target=copy_context().run, args=(self._run, job), daemon=True).start()
        self._patience = self.set_timer(_PATIENCE_SECONDS, partial(self._tell_of_work, job))

    def _run(self, job: BackgroundJob) -> None:
        job.run()
        # The screen may be gone by then.
        with suppress(RuntimeError):
            self.post_message(self._Done(job))

    def stop(self) -> None:
        if self._job is not None:
            self._job.stopped = True
            self._end_job()
            self.lay_out()

    def _end_job(self) -> None:
        self._job = None
        if self._patience is not None:
            self._patience.stop()

    @on(_Done)
    def _take(self, message: _Done) -> None:
        """Use the result of a job, unless it was cancelled meanwhile."""
        job = message.job
        if job is not self._job:
            return
        self._end_job()
        if job.problem:
            self.put(paragraph(harmless(job.problem), self.room, "problem"))
        else:
            job.then(job.result)

    def _tell_of_work(self, job: BackgroundJob) -> None:
        if self._job is job:
            self._waited = True
            self.lay_out()
            self._patience = self.set_timer(_PATIENCE_SECONDS, partial(self._tell_of_work, job))

    # Drawing

    @property
    def room(self) -> int:
        """The cells of a row that are not cut."""
        return max(self.scrollable_content_region.width - 2, 1)

    @property
    def window(self) -> int:
        """How many rows are visible at once."""
        return max(self.scrollable_content_region.height - len(self.top()), 1)

    def render_line(self, y: int) -> Strip:
        top = self.top()
        if y < len(top):
            return self._strip(top[y], "plain", 0)
        at = y - len(top) + self.scroll_offset.y
        if at >= len(self.rows):
            return Strip.blank(self.size.width, self.rich_style)
        row = self.rows[at]
        tone = "cursor" if self.has_cursor and at == self.row else row.tone
        return self._strip(row, tone, self.scroll_offset.x)

    def _strip(self, row: TextRow, tone: str, left: int) -> Strip:
        mark = "▌" if tone == "cursor" and self.has_focus else " "
        behind = self._style(tone, "plain")
        pieces = [Segment(text, self._style(tone, style)) for text, style in row.pieces if text]
        draw = self._shade if self.has_few_colors else _half_block
        pieces += [draw(*pair, behind) for pixels in row.pictures for pair in pixels]
        width = self.size.width
        strip = Strip(pieces).crop(left, left + width - 1)
        gutter = Strip([Segment(mark, self._style(tone, "mark"))])
        return Strip.join([gutter, strip]).adjust_cell_length(width, behind)

    def _style(self, tone: str, style: str) -> Style:
        focus = self.has_focus
        if tone == "cursor":
            behind = "glass-cursor" if focus else "glass-resting"
        else:
            behind = "glass-same" if tone == "marked" else "panel" if focus else "surface"
        return rich_style(self.app.theme_variables, self.styles_of_text[style], behind)

    @property
    def has_few_colors(self) -> bool:
        """Whether the terminal has too few colors for pictures; they are drawn in shades."""
        app = self.app
        # Without a terminal there is no limit to the colors.
        sixteen = not app.is_headless and app.console.color_system == "standard"
        return sixteen or app.no_color or app.theme == SIXTEEN.name

    def _shade(self, upper: str, lower: str, behind: Style) -> Segment:
        """Two pixels as one character, denser for brighter ones."""
        shade = _shade(upper, lower, self.app.current_theme.dark)
        color = Style(color=_LOST_COLOR, bold=True) if shade == _LOST else Style()
        return Segment(shade, behind + color)

    # Moving

    def go(self, row: int) -> None:
        """Move the cursor to a row, and scroll to it."""
        self.row = min(max(row, 0), max(len(self.rows) - 1, 0))
        top = self.scroll_offset.y
        if self.row < top:
            self.turn_to(y=self.row)
        elif self.row >= top + self.window:
            self.turn_to(y=self.row - self.window + 1)
        self.refresh()
        self._retitle()
        self.stood()

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        self._retitle()

    def turn_to(self, x: int | None = None, y: int | None = None) -> None:
        """Scroll at once, without waiting for the layout of new rows."""
        self.scroll_to(x, y, animate=False, force=True, immediate=True)
        # A scrollbar that did not exist yet was not notified.
        self.call_after_refresh(self._place_bar)

    def _place_bar(self) -> None:
        self.vertical_scrollbar.position = self.scroll_offset.y

    def action_line(self, by: int) -> None:
        if self.has_cursor:
            self.go(self.row + by)
        else:
            self.turn_to(y=self.scroll_offset.y + by)

    def action_screenful(self, direction: int) -> None:
        self.action_line(direction * max(self.window - 1, 1))

    def action_end(self, direction: int) -> None:
        self.action_line(direction * len(self.rows))

    def action_pan(self, direction: int) -> None:
        self.turn_to(x=self.scroll_offset.x + direction * _PAN)

    def action_choose(self) -> None:
        if self.rows:
            self.choose(self.rows[self.row])

    def action_back(self) -> None:
        """Cancel the job, close what was opened, or go back to the tree."""
        if self._job is not None:
            self.stop()
        elif not self.close_inner():
            self.post_message(self.Leave())

    def on_click(self, event: events.Click) -> None:
        """Select a row with a double click; without a cursor, a single click is enough."""
        at = event.y - len(self.top()) + self.scroll_offset.y
        if not 0 <= at < len(self.rows) or event.y < len(self.top()):
            return
        if self.has_cursor:
            self.go(at)
        if event.chain == 2 or not self.has_cursor or self.is_marker(self.rows[at], event.x):
            self.choose(self.rows[at])


def _width(row: TextRow) -> int:
    return sum(cell_len(words) for words, _ in row.pieces) + sum(map(len, row.pictures))


@lru_cache(maxsize=1 << 13)
def _half_block(upper: str, lower: str, behind: Style) -> Segment:
    """A cell of two pixels; one or both may be missing."""
    if upper == lower == _LOST_COLOR:
        return Segment(_LOST, behind + Style(color="#ffffff", bgcolor=_LOST_COLOR, bold=True))
    if not upper:
        return Segment("▄" if lower else " ", behind + Style(color=lower or None))
    return Segment("▀", behind + Style(color=upper, bgcolor=lower or None))


@lru_cache(maxsize=1 << 13)
def _shade(upper: str, lower: str, bright_ink: bool) -> str:
    """The character for two pixels; one or both may be missing."""
    pixels = [pixel for pixel in (upper, lower) if pixel]
    if not pixels:
        return " "
    if not _CURSORS.isdisjoint(pixels):
        return _CURSOR
    if _LOST_COLOR in pixels:
        return _LOST
    light = sum(map(_light, pixels)) / len(pixels)
    ink = light if bright_ink else 1 - light
    return _SHADES[min(int(ink * len(_SHADES)), len(_SHADES) - 1)]


def _light(color: str) -> float:
    """The brightness of a color, from 0 to 1."""
    red, green, blue = Color.parse(color).rgb
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255
