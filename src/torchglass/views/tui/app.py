"""The explorer as a program: `run_explorer(reader)` shows a run until the user quits."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from typing import ClassVar

from textual.app import App
from textual.screen import Screen

from torchglass.records.flow import Reader
from torchglass.views.tui.screen import Explorer
from torchglass.views.tui.subject import Subject
from torchglass.views.tui.themes import DARK, LIGHT, column_colours, theme_for


def run_explorer(reader: Reader) -> None:
    """Show a run in this terminal until the user quits; the reader stays open.

    What a reader raises about a run that cannot be read passes through, before the screen is taken.
    """
    app = ExplorerApp(reader)
    with _undisturbed():
        app.run()


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

    def __init__(self, reader: Reader, *, theme: str = "") -> None:
        subject = Subject(reader.run(), reader.model())
        super().__init__()
        self.explorer = Explorer(subject, reader)
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = theme or theme_for(os.environ)
        self.animation_level = "none"

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """The colours of the columns."""
        return dict(column_colours(self.current_theme))

    def get_default_screen(self) -> Screen[None]:
        """The explorer is the only screen."""
        return self.explorer
