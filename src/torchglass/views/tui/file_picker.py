"""Asks for one of several files before the explorer opens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from rich.cells import cell_len
from textual.app import App

from torchglass.views.formats import format_bytes, harmless
from torchglass.views.tui.themes import THEMES, column_colours, theme_for
from torchglass.views.tui.windows import Pick

_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


def pick(files: Sequence[Path], title: str = "Select a run or checkpoint") -> Path | None:
    """The file that the user picks; None where they leave instead."""
    return Picker(files, title).run()


class Picker(App["Path | None"]):
    """A list of files, the latest first."""

    CSS_PATH: ClassVar = "app.tcss"
    TITLE = "torchglass"
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        files: Sequence[Path],
        heading: str = "Select a run or checkpoint",
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._heading = heading
        self._files = {str(number): file for number, file in enumerate(files)}
        self._now = now
        for each in THEMES:
            self.register_theme(each)
        self.theme = theme_for(os.environ, self.console.color_system)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """The colours of the columns, which the style sheet names."""
        return dict(column_colours(self.current_theme))

    def on_mount(self) -> None:
        """Show the list."""
        names = [harmless(os.path.relpath(file)) for file in self._files.values()]
        width = max(map(cell_len, names), default=0)
        lines = [
            (number, f"{name}{' ' * (width - cell_len(name))}  {self._facts(file)}")
            for name, (number, file) in zip(names, self._files.items(), strict=True)
        ]
        self.push_screen(Pick(self._heading, lines), self._leave)

    def _leave(self, number: str | None) -> None:
        self.exit(None if number is None else self._files[number])

    def _facts(self, file: Path) -> str:
        """How large a file is, and how old."""
        try:
            stat = file.stat()
        except OSError:
            return ""
        return f"{format_bytes(stat.st_size):>9}  {_ago(self._now() - stat.st_mtime)}"


def _ago(seconds: float) -> str:
    for length, unit in _UNITS:
        count = int(seconds // length)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
