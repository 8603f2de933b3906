"""The explorer as an application, and its command palette."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.app import SystemCommand, get_system_commands_provider
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.markup import escape
from textual.pilot import Pilot
from textual.screen import Screen

from torchglass.analyse.failure.failure import Failure
from torchglass.analyse.model_diff import ModelDiff
from torchglass.errors import TorchglassError
from torchglass.records.measures import ReportRecord
from torchglass.records.model import LiveModel, Model, Module
from torchglass.records.run import Reader
from torchglass.tables.text import harmless
from torchglass.views.tui.explorer_state import ExplorerState, MapSource
from torchglass.views.tui.keys import KeyEntry
from torchglass.views.tui.panel_tabs import all_keys
from torchglass.views.tui.preferences import (
    PreferenceFile,
    PreferenceStore,
    SourceKind,
)
from torchglass.views.tui.screen import Explorer
from torchglass.views.tui.styled_text import DARK
from torchglass.views.tui.tree_columns import NAME
from torchglass.views.tui.windows import LoadingScreen, ThemedApp, screenshot

_MOST_MODULES = 30
_BATCH = 5_000
_TOGGLES = {"Show or hide columns": "Toggle column", "Open or close a panel": "Toggle panel"}
"""How commands under these headings of the help start."""


class Commands(Provider):
    """The commands of the explorer."""

    @property
    def _explorer(self) -> Explorer | None:
        return self.screen if isinstance(self.screen, Explorer) else None

    async def discover(self) -> Hits:
        for title, help_text, run in self._commands():
            yield DiscoveryHit(Content(title), run, help=escape(help_text))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for title, help_text, run in self._commands():
            score = matcher.match(title)
            if score > 0:
                yield Hit(score, matcher.highlight(title), run, help=escape(help_text))
        explorer = self._explorer
        if explorer is None or not query.strip():
            return
        async for score, module in _find_modules(explorer.state.model, query.strip().lower()):
            path = harmless(module.path or explorer.state.model.name)
            yield Hit(
                score,
                Content(f"Go to {path}"),
                partial(explorer.go_to, module.path),
                text=path,
                help=escape(harmless(module.kind)),
            )

    def _commands(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        explorer = self._explorer
        if explorer is None:
            return
        tree = explorer.tree_panel
        for key in all_keys():
            if key.place in {"anywhere", "tree"} and "{key}" not in key.action:
                namespace = tree if key.place == "tree" else explorer
                run = partial(explorer.call_later, self.app.run_action, key.action, namespace)
                yield command_title(key), key.label, run
        for column in (NAME, *tree.columns):
            sorting = tree.sorting.then(column.id)
            yield f"Sort by {column.name.lower()}", column.title, partial(tree.sort, sorting)


async def _find_modules(model: Model, wanted: str) -> AsyncIterator[tuple[float, Module]]:
    """The modules with the text in their path or class: "layer3" finds layer3.0."""
    found: list[tuple[float, Module]] = []
    for start in range(0, len(model.modules), _BATCH):
        batch = model.modules[start : start + _BATCH]
        found += [(score, one) for one in batch if (score := _score(one, wanted))]
        # Handle letters that were typed meanwhile first.
        await asyncio.sleep(0)
    found.sort(key=lambda hit: -hit[0])
    for hit in found[:_MOST_MODULES]:
        yield hit


def command_title(key: KeyEntry) -> str:
    """What a key does, as a command."""
    toggled = _TOGGLES.get(key.section)
    is_thing = toggled and key.action not in ("align", "labels")
    return f"{toggled}: {key.does}" if is_thing else key.does


def _score(module: Module, wanted: str) -> float:
    path = module.path.lower()
    if path == wanted:
        return 1.0
    if wanted in module.name.lower():
        return 0.8
    if wanted in path:
        return 0.6
    return 0.4 if wanted in module.kind.lower() else 0.0


@dataclass(frozen=True, kw_only=True)
class ExplorerSource:
    """What the explorer shows."""

    reader: Reader
    live: LiveModel | None = None
    """The model itself, if it is in this process."""
    comparison: ModelDiff | None = None
    """A comparison with another model; its tree has both."""
    kind: SourceKind = "model"
    """Decides which columns and panels are shown first."""
    failure: Failure | None = None
    """The forward that raised."""
    error: BaseException | None = None
    """What it raised."""
    reports: tuple[ReportRecord, ...] = ()
    """What other verbs found out about the model, laid over its tree."""
    maps: MapSource | None = None
    """The pictures of the ops of a traced forward."""
    diagram: Callable[[], str] | None = None
    """Draws the block diagram of a traced forward as SVG."""


Source = Reader | ExplorerSource | Callable[[], ExplorerSource]
"""While a callable runs, a loading screen is shown."""


def run_explorer(source: Source, *, memory: PreferenceStore | None = None) -> None:
    """Show a run in this terminal until the user quits. The reader stays open.

    Errors of the reader pass through.
    """
    app = ExplorerApp(source, memory=PreferenceFile() if memory is None else memory)
    with _undisturbed():
        app.run()
    if app.error is not None:
        raise app.error


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep the garbage collector from walking a large model while keys wait."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class ExplorerApp(ThemedApp[None]):
    """The explorer as a Textual app."""

    COMMANDS: ClassVar = {get_system_commands_provider, Commands}
    explorer: Explorer

    def __init__(
        self, source: Source, *, theme: str = "", memory: PreferenceStore | None = None
    ) -> None:
        super().__init__()
        self._memory = memory or PreferenceStore()
        self._preferences = self._memory.load()
        self.error: BaseException | None = None
        """What reading the model raised."""
        self._source = source
        if isinstance(source, (ExplorerSource, Reader)):
            self._take(source)
        wanted = theme or self._preferences.theme
        if wanted in self.available_themes:
            self.theme = wanted
        self.animation_level = "none"

    def _take(self, source: Reader | ExplorerSource) -> None:
        exhibit = source if isinstance(source, ExplorerSource) else ExplorerSource(reader=source)
        reader, comparison = exhibit.reader, exhibit.comparison
        model = reader.model() if comparison is None else comparison.model
        state = ExplorerState(
            reader.run(),
            model,
            live=exhibit.live,
            comparison=comparison,
            failure=exhibit.failure,
            reports=exhibit.reports,
            maps=exhibit.maps,
            is_run=exhibit.kind == "run",
        )
        self.explorer = Explorer(
            state, reader, self._preferences, kind=exhibit.kind, diagram=exhibit.diagram
        )

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Themes only: Textual's other commands have a key here, and are listed by its name."""
        yield SystemCommand(
            "Change theme", "Light, dark, 16 colors and others", self.action_change_theme
        )

    def get_default_screen(self) -> Screen[None]:
        if isinstance(self._source, (ExplorerSource, Reader)):
            return self.explorer
        return LoadingScreen(self._source)

    @on(LoadingScreen.Opened)
    def _open(self, message: LoadingScreen.Opened) -> None:
        self.error = message.error
        if isinstance(message.result, ExplorerSource):
            try:
                self._take(message.result)
            except TorchglassError as error:
                # Such as a run that has no model yet.
                self.error = error
            else:
                self.push_screen(self.explorer)
                return
        self.exit()

    def on_unmount(self) -> None:
        if hasattr(self, "explorer"):
            theme = "" if self.theme == self.own_theme else self.theme
            self._memory.save(replace(self.explorer.preferences, theme=theme))


# What was read arrives as a message, and showing it may request more.
_ROUNDS = 3


def draw_explorer(
    exhibit: Reader | ExplorerSource,
    *,
    press: Sequence[str] = (),
    columns: int = 120,
    lines: int = 36,
    theme: str = DARK.name,
) -> str:
    """The explorer's screen as SVG, after some keys.

    `draw_explorer(reader, press=["Z", "j", "t"])` unfolds all, goes down and shows shapes.
    """
    return asyncio.run(_draw(ExplorerApp(exhibit, theme=theme), press, (columns, lines)))


async def settle(app: ExplorerApp, pilot: Pilot[None]) -> None:
    """Wait until the explorer has counted and read everything, and shows it."""
    quiet = 0
    while quiet < _ROUNDS:
        await pilot.pause()
        quiet = quiet + 1 if app.explorer.settled else 0


async def _draw(app: ExplorerApp, press: Sequence[str], size: tuple[int, int]) -> str:
    async with app.run_test(size=size) as pilot:
        await settle(app, pilot)
        await pilot.press(*press)
        await settle(app, pilot)
        return screenshot(app, simplify=True)
