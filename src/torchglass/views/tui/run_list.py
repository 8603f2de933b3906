"""The start screen of the explorer: the runs of a folder as a table, and its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from rich.console import JustifyMethod
from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import DataTable, Static

from torchglass.analyse.pixels import squeeze
from torchglass.errors import TorchglassError
from torchglass.tables.text import aligned_rows, harmless, sparkline
from torchglass.views.tui.windows import Prompt, ThemedApp

_REFRESH_SECONDS = 1.0
_ROWS = 500
_MOST_CURVES = 8
_CURVE_WIDTH = 60
_MARK = "●"
_KEYS = "Enter open · Space select · 1–9 sort by column · 0 latest first · / filter · q quit"


class ListedRuns(Protocol):
    """A folder of runs."""

    def cells(self, *, where: str, sort: str, count: int) -> Mapping[str, Any]:
        """The first runs of the table as texts, filtered and sorted."""

    def losses(self, paths: Sequence[str]) -> Mapping[str, npt.NDArray[np.float64]]:
        """The loss of some runs: a row of steps and one of values each."""


class RunList(ThemedApp["str | None"]):
    """A table of runs; the result is the path of the selected one in the folder, or None."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("escape,q", "quit_list", "quit", show=False),
        Binding("space", "select", "select", show=False),
        Binding("slash", "filter", "filter", show=False),
        Binding("j", "move(1)", "down", show=False),
        Binding("k", "move(-1)", "up", show=False),
        *(Binding(str(n), f"sort({n})", "sort", show=False) for n in range(10)),
    ]

    def __init__(self, runs: ListedRuns, others: Sequence[str] = ()) -> None:
        super().__init__()
        self._runs, self._others = runs, others
        self._where = self._order = ""
        self._selected: dict[str, str] = {}
        """The lines of the loss of each selected run, by path."""
        self._shown = self._read()

    def compose(self) -> ComposeResult:
        yield Static(id="answer")
        yield DataTable[Text | str](cursor_type="row", id="runs")
        yield Static(id="curves")
        yield Static(_KEYS, id="list-keys")

    def on_mount(self) -> None:
        self._draw()
        self.query_one(DataTable).focus()
        self.set_interval(_REFRESH_SECONDS, self._refresh_table)

    def action_quit_list(self) -> None:
        self.exit(None)

    def action_move(self, by: int) -> None:
        table = self.query_one(DataTable)
        table.move_cursor(row=table.cursor_row + by)

    def action_sort(self, number: int) -> None:
        """Sort by a column: lowest first; if pressed again, highest first."""
        columns = self._shown["columns"]
        if number > len(columns):
            return
        key = columns[number - 1]["key"] if number else ""
        self._order = f"-{key}" if key and self._order == key else key
        self._update(self._read())

    def action_filter(self) -> None:
        def check(text: str) -> str:
            try:
                self._runs.cells(where=text, sort="", count=0)
            except TorchglassError as error:
                return str(error)
            return ""

        def apply(text: str | None) -> None:
            if text is not None:
                self._where = text
                self._update(self._read())

        prompt = Prompt("Filter runs", self._where, "lr < 1e-3 and state == 'finished'", check)
        self.push_screen(prompt, apply)

    def action_select(self) -> None:
        """Toggle the selection of the run at the cursor; selected runs show their loss."""
        path = self._path()
        if path is None or path in self._others:
            return
        if path in self._selected:
            del self._selected[path]
        elif len(self._selected) < _MOST_CURVES:
            self._selected[path] = ""
            self._read_curve(path)
        self._draw()

    @on(DataTable.RowSelected)
    def _picked(self) -> None:
        self.exit(self._path())

    def _path(self) -> str | None:
        row = self.query_one(DataTable).cursor_row
        paths = [each["path"] for each in self._shown["rows"]] + [*self._others]
        return paths[row] if 0 <= row < len(paths) else None

    def _read(self) -> Mapping[str, Any]:
        return self._runs.cells(where=self._where, sort=self._order, count=_ROWS)

    @work(thread=True, exclusive=True, group="table")
    def _refresh_table(self) -> None:
        try:
            shown = self._read()
        except (TorchglassError, OSError):
            return  # The folder is gone, or a setting of the filter is.
        if shown != self._shown:
            self._from_thread(lambda: self._update(shown))

    @work(thread=True, group="curves")
    def _read_curve(self, path: str) -> None:
        try:
            values = self._runs.losses([path])[path][1]
        except (TorchglassError, KeyError) as error:
            values, told = np.empty(0), str(error)
        else:
            told = "no loss"
        curve = sparkline(squeeze(values, _CURVE_WIDTH), _CURVE_WIDTH) if len(values) else told
        ends = f"{values[0]:.4g} → {values[-1]:.4g}" if len(values) else ""

        def put() -> None:
            if path in self._selected:
                self._selected[path] = f"{curve}\t{ends}"
                self._draw_curves()

        self._from_thread(put)

    def _from_thread(self, call: Callable[[], None]) -> None:
        if self.is_running:
            self.call_from_thread(call)

    def _update(self, shown: Mapping[str, Any]) -> None:
        self._shown = shown
        self._draw()

    def _draw(self) -> None:
        shown, table = self._shown, self.query_one(DataTable)
        at = self._path() if table.row_count else None
        row = table.cursor_row
        table.clear(columns=True)
        table.add_column("", width=1)
        for number, column in enumerate(shown["columns"], 1):
            arrow = {column["key"]: " ▲", f"-{column['key']}": " ▼"}
            heading = f"{number} {column['heading']}{arrow.get(self._order, '')}"
            table.add_column(heading if number < 10 else column["heading"])
        paths = [each["path"] for each in shown["rows"]]
        sides: list[JustifyMethod] = [
            "right" if column["right"] else "left" for column in shown["columns"]
        ]
        for each in shown["rows"]:
            mark = _MARK if each["path"] in self._selected else ""
            table.add_row(
                mark,
                *(
                    Text(cell, justify=side)
                    for cell, side in zip(each["cells"], sides, strict=True)
                ),
            )
        for other in self._others:
            blank = [""] * (len(shown["columns"]) - 1)
            table.add_row("", Text(harmless(other)), *blank)
        table.move_cursor(row=paths.index(at) if at in paths else row)
        filtered = f"  filter: {self._where}" if self._where else ""
        notes = "".join(f"\n{note}" for note in shown["notes"])
        self.query_one("#answer", Static).update(Content(f"{shown['answer']}{filtered}{notes}"))
        self._draw_curves()

    def _draw_curves(self) -> None:
        rows = [(path, *line.split("\t")) for path, line in self._selected.items() if line]
        whole = [row for row in rows if len(row) == 3]
        lines = aligned_rows(whole) if whole else []
        self.query_one("#curves", Static).update(Content("\n".join(lines)))
