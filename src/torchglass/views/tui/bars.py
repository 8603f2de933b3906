"""The one-line bars: title, status, keys and search."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

from rich.cells import cell_len
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, Static

from torchglass.analyse.model_diff import ModelDiff
from torchglass.records.findings import Finding, Findings
from torchglass.records.run import RunStatus
from torchglass.tables.text import harmless, plural
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.keys import KeyEntry, bindings, glyph
from torchglass.views.tui.run_follower import RunUpdate
from torchglass.views.tui.styled_text import fit
from torchglass.views.tui.tree_search import SearchState


class TwoEndedBar(Widget):
    """A line with a text at each end; the right one is never cut."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "ends--left",
        "ends--right",
        "ends--problem",
        "ends--warning",
    }

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._left = self._right = ""
        self._right_style = "right"

    def put(self, left: str, right: str, style: str = "right") -> None:
        """Replace both texts; `style` is that of the right one."""
        self._right_style = style
        before = self._left, self._right
        self._left, self._right = harmless(left), harmless(right)
        # The title is put again every second: what is unchanged is not sent to the terminal again.
        if before != (self._left, self._right):
            self.refresh()

    def render(self) -> Content:
        room = max(self.size.width - cell_len(self._right) - 1, 0)
        return Content.assemble(
            (fit(self._left, room), ".ends--left"),
            (f" {self._right}", f".ends--{self._right_style}"),
        )


_MESSAGE_SECONDS = 8.0
"""How long a message stays in the status bar."""


class StatusBar(TwoEndedBar):
    """The selected module, or for some seconds a message."""

    def __init__(self, place: Callable[[], str], position: Callable[[], str]) -> None:
        """`place` is shown at the left while there is no message, `position` at the right."""
        super().__init__(id="status")
        self._place, self._position = place, position
        self._timer: Timer | None = None

    def say(self, message: str = "", *, lasting: bool = False) -> None:
        """Show a message, or the position; a `lasting` message stays until the next one."""
        if self._timer is not None:
            self._timer.stop()
        expires = message and not lasting
        self._timer = self.set_timer(_MESSAGE_SECONDS, self.say) if expires else None
        self.put(f" {message or self._place()}", self._position())


class KeyBar(Widget):
    """The keys that act now, as many as fit. A click on one presses the key."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"keys--key", "keys--hint"}

    def __init__(self) -> None:
        super().__init__()
        self._keys: tuple[KeyEntry, ...] = ()

    def offer(self, keys: Iterable[KeyEntry]) -> None:
        self._keys = tuple(keys)
        self.refresh()

    def render(self) -> Content:
        return Content("").join(
            Content.assemble((f" {label}", ".keys--key"), (f" {hint} ", ".keys--hint"))
            for _, (label, hint) in self._entries()
        )

    def on_click(self, event: events.Click) -> None:
        left = 0
        for key, texts in self._entries():
            left += _entry_width(texts)
            if event.x < left:
                self.app.simulate_key(key)
                break

    def _entries(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """The keys that fit, each with its label and hint."""
        room = self.size.width
        for entry in self._keys:
            texts = glyph(entry.keys[0]), entry.hint
            room -= _entry_width(texts)
            if room < 0:
                return
            yield entry.keys[0], texts


def _entry_width(texts: tuple[str, str]) -> int:
    return sum(map(cell_len, texts)) + 3


_LIVE_SECONDS = 10.0
"""How long after its last step a run counts as live."""


class TitleBar(TwoEndedBar):
    """The names of run and model at the left, the state of the run at the right."""

    def __init__(self, state: ExplorerState) -> None:
        super().__init__(id="title")
        self.state = state
        self.last_update: RunUpdate | None = None
        self._advanced: float | None = None
        self._problem: Finding | None = None
        """The first of what is wrong."""

    def on_mount(self) -> None:
        self.set_interval(1.0, self.tell)
        self.tell()

    def take(self, update: RunUpdate) -> None:
        if self.last_update is not None and update.step > self.last_update.step:
            self._advanced = time.monotonic()
        found = (update.documents or {}).get(Findings)
        if isinstance(found, Findings):
            problems = (one for one in found.findings if one.severity != "info")
            self._problem = next(problems, None)
        self.last_update = update
        self.tell()

    def tell(self) -> None:
        run, model = self.state.run.name, self.state.model.name
        names = [run] if run == model else [run, model]
        if self.state.comparison is not None:
            names = [self._conclusion(self.state.comparison), run]
        elif self.state.reports:
            names.append(self.state.reports[0].answer)
        state = self._state()
        style = "problem" if "✗" in state else "warning" if "!" in state else "right"
        self.put(" " + " · ".join(filter(None, names)), state, style)

    def _conclusion(self, comparison: ModelDiff) -> str:
        if self.state.reports:
            return self.state.reports[0].answer
        changed = len(comparison.changes)
        return f"{plural(changed, 'changed module')}" if changed else "no differences"

    def _state(self) -> str:
        if self.state.contents is None:
            return "counting… "
        if self.last_update is None or self.last_update.step < 0:
            return ""
        step = f"step {self.last_update.step:,} "
        if self.last_update.problem:
            return step + "✗ disconnected "
        return f"{step}{self._ending(self.last_update)} "

    def _ending(self, update: RunUpdate) -> str:
        status = update.status or RunStatus("finished" if update.finished else "running")
        if status.has_failed:
            # The step shown may be an earlier one, if not every step was recorded.
            return f"✗ {status}"
        if self._problem is not None:
            return _problem_text(self._problem)
        if status.state == "finished":
            return "✓ finished"
        if status.state == "stalled":
            return f"○ {status}"
        live = self._advanced is not None and time.monotonic() - self._advanced < _LIVE_SECONDS
        return "● live" if live else "○ waiting"


def _problem_text(problem: Finding) -> str:
    """What is wrong, in a few words; the findings panel has all of it."""
    mark = "✗" if problem.severity == "error" else "!"
    step = problem.step if problem.first_step is None else problem.first_step
    since = f" since step {step:,}" if step is not None else ""
    kind = {"nan": "NaN", "inf": "Inf"}.get(problem.kind, problem.kind.replace("-", " "))
    return f"{mark} {kind}{since}"


_EDITING = {
    key: binding.action
    for binding in Input.BINDINGS
    if isinstance(binding, Binding) and binding.action != "submit"
    for key in binding.key.split(",")
}


class SearchInput(Input):
    """The input of the search."""

    BINDINGS: ClassVar = bindings("search")

    async def on_key(self, event: events.Key) -> None:
        """Edit in the order of the keys: a binding would run after letters typed later."""
        action = _EDITING.get(event.key)
        if action is not None:
            event.stop()
            await self.run_action(action)


class SearchBar(Horizontal):
    """The search text, and how many matches there are."""

    def __init__(self, search_state: SearchState) -> None:
        super().__init__()
        self.search_state = search_state
        self._line = SearchInput(
            placeholder="name, class or dotted path", compact=True, select_on_focus=False
        )

    def compose(self) -> ComposeResult:
        yield Static("/", id="slash")
        yield self._line
        yield Static(id="matches")

    def open(self) -> None:
        self.search_state.begin()
        self._line.value = ""
        self.search_state.find("")
        self.screen.set_focus(self._line)

    @on(Input.Changed)
    def _search(self) -> None:
        if self.search_state.is_open:
            self.search_state.find(self._line.value)
            self.tell()

    def tell(self) -> None:
        """Show how many matches there are, or what is wrong with the regex."""
        if self.search_state.is_open:
            count = Content(self.search_state.count)
            self.query_one("#matches", Static).update(count, layout=False)

    def keep(self, *, then: Callable[[], None]) -> None:
        """Close the input; matches stay marked."""

        def keep() -> None:
            self.search_state.find(self._line.value)
            self.search_state.keep()
            then()

        # In the input's own queue: letters typed before this key may still be on their way to it.
        self._line.call_later(keep)
