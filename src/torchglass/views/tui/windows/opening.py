"""What is shown while a large model is being read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.screen import Screen
from textual.widgets import ProgressBar, Static

_TICK_SECONDS = 0.2


class Opening(Screen[None]):
    """Does something in a thread, and tells how long it has been at it; it can be left any time."""

    BINDINGS: ClassVar = [Binding("escape,q", "app.quit", "give up", show=False)]

    class Opened(Message):
        """It is done, or it raised."""

        def __init__(self, result: object, error: BaseException | None) -> None:
            super().__init__()
            self.result = result
            self.error = error

    def __init__(self, work: Callable[[], object], says: str = "Loading") -> None:
        super().__init__()
        self._work = work
        self._says = says
        self._start = time.monotonic()

    def compose(self) -> ComposeResult:
        """A bar, and words below it."""
        with Vertical(id="opening"):
            yield ProgressBar(show_eta=False, show_percentage=False)
            yield Static(id="elapsed")

    def on_mount(self) -> None:
        """Begin. A thread of our own, which nobody waits for when the user leaves."""
        threading.Thread(target=self._run, daemon=True).start()
        self._ticking = self.set_interval(_TICK_SECONDS, self._tick)
        self._tick()

    async def on_opening_opened(self) -> None:
        """Move no more: each time all of the screen above would be drawn anew, too."""
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
        self.query_one("#elapsed", Static).update(f"{self._says}… {seconds:.0f} s (q to cancel)")
