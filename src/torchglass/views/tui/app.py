"""The explorer as an application: `run_explorer(reader)`."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from textual import on
from textual.app import App, SystemCommand, get_system_commands_provider
from textual.screen import Screen

from torchglass.analyse.failure.failure import Failure
from torchglass.analyse.model_diff import Comparison
from torchglass.records.attributes import LiveModel
from torchglass.records.reader import Reader
from torchglass.views.tui.command_palette import Commands
from torchglass.views.tui.explorer_state import Subject
from torchglass.views.tui.preferences import Forgetful, Kind, Memory, PreferenceFile
from torchglass.views.tui.screen import Explorer
from torchglass.views.tui.themes import THEMES, column_colours, theme_for
from torchglass.views.tui.windows import Opening


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """What is to be looked at."""

    reader: Reader
    live: LiveModel | None = None
    """The model itself, where it is in this process."""
    comparison: Comparison | None = None
    """With another model, in whose tree both are."""
    kind: Kind = "model"
    """By which columns and panels are chosen at first."""
    failure: Failure | None = None
    """The forward that raised."""
    error: BaseException | None = None
    """What it raised."""


Source = Reader | Exhibit | Callable[[], Exhibit]
"""What is called takes its time: a screen says so meanwhile."""


def run_explorer(source: Source, *, memory: Memory | None = None) -> None:
    """Show a run in this terminal until the user quits; the reader stays open.

    What a reader raises about a run that cannot be read passes through.
    """
    app = ExplorerApp(source, memory=PreferenceFile() if memory is None else memory)
    with _undisturbed():
        app.run()
    if app.error is not None:
        raise app.error


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep the garbage collector from walking a large model again and again while keys wait."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class ExplorerApp(App[None]):
    """Shows what a reader reads."""

    CSS_PATH: ClassVar = "app.tcss"
    TITLE = "torchglass"
    COMMANDS: ClassVar = {get_system_commands_provider, Commands}
    explorer: Explorer

    def __init__(self, source: Source, *, theme: str = "", memory: Memory | None = None) -> None:
        super().__init__()
        self._memory = memory or Forgetful()
        self._preferences = self._memory.load()
        self.error: BaseException | None = None
        """What reading the model raised."""
        self._source = source
        if isinstance(source, (Exhibit, Reader)):
            self._take(source)
        for each in THEMES:
            self.register_theme(each)
        self._own_theme = theme_for(os.environ, self.console.color_system)
        wanted = theme or self._preferences.theme
        self.theme = wanted if wanted in self.available_themes else self._own_theme
        self.animation_level = "none"

    def _take(self, source: Reader | Exhibit) -> None:
        exhibit = source if isinstance(source, Exhibit) else Exhibit(reader=source)
        reader, comparison = exhibit.reader, exhibit.comparison
        model = reader.model() if comparison is None else comparison.model
        subject = Subject(
            reader.run(),
            model,
            live=exhibit.live,
            comparison=comparison,
            failure=exhibit.failure,
        )
        self.explorer = Explorer(subject, reader, self._preferences, kind=exhibit.kind)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Themes alone: all else of Textual's own has a key here, and is offered by its name."""
        yield SystemCommand(
            "Change theme", "Light, dark, 16 colours and others", self.action_change_theme
        )

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """The colours of the columns."""
        return dict(column_colours(self.current_theme))

    def get_default_screen(self) -> Screen[None]:
        """The explorer, or what is shown until there is something to explore."""
        if isinstance(self._source, (Exhibit, Reader)):
            return self.explorer
        return Opening(self._source)

    @on(Opening.Opened)
    def _open(self, message: Opening.Opened) -> None:
        self.error = message.error
        if isinstance(message.result, Exhibit):
            self._take(message.result)
            self.push_screen(self.explorer)
        else:
            self.exit()

    def on_unmount(self) -> None:
        """Remember what the user chose."""
        if hasattr(self, "explorer"):
            theme = "" if self.theme == self._own_theme else self.theme
            self._memory.save(replace(self.explorer.preferences, theme=theme))
