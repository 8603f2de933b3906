"""The line that takes the place of the status while something is searched for."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Input, Static

from torchglass.views.tui.keys import bindings
from torchglass.views.tui.tree.searching import Searching

_EDITING = {
    key: binding.action
    for binding in Input.BINDINGS
    if isinstance(binding, Binding) and binding.action != "submit"
    for key in binding.key.split(",")
}


class SearchInput(Input):
    """Where the search is typed."""

    BINDINGS: ClassVar = bindings("search")

    async def on_key(self, event: events.Key) -> None:
        """Edit in the order of the keys: a binding is done after letters that came later."""
        action = _EDITING.get(event.key)
        if action is not None:
            event.stop()
            await self.run_action(action)


class SearchBar(Horizontal):
    """What is searched for, and how many matches there are."""

    def __init__(self, searching: Searching) -> None:
        super().__init__()
        self.searching = searching
        self._line = SearchInput(
            placeholder="name, class or dotted path", compact=True, select_on_focus=False
        )

    def compose(self) -> ComposeResult:
        """The line and the matches."""
        yield Static("/", id="slash")
        yield self._line
        yield Static(id="matches")

    def open(self) -> None:
        """Begin a search."""
        self.searching.begin()
        self._line.value = ""
        self.searching.find("")
        self.screen.set_focus(self._line)

    @on(Input.Changed)
    def _search(self) -> None:
        if self.searching.is_open:
            self.searching.find(self._line.value)
            self.tell()

    def tell(self) -> None:
        """Show how many matches there are, or what is wrong."""
        if self.searching.is_open:
            count = Content(self.searching.count)
            self.query_one("#matches", Static).update(count, layout=False)

    def keep(self, *, then: Callable[[], None]) -> None:
        """End the typing, with the matches marked."""
        # In the line's own turn: letters that came before this key may still be on their way to it.
        self._line.call_later(self._keep, then)

    def _keep(self, then: Callable[[], None]) -> None:
        self.searching.find(self._line.value)
        self.searching.keep()
        then()
