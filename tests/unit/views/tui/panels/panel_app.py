"""One panel in an app of its own, on a run that is kept in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.message import Message
from textual.pilot import Pilot

from tests.textual_pilot import run_app, screen_text, settle_when
from torchglass.analyse.failure.failure import Failure
from torchglass.analyse.model_diff import ModelDiff
from torchglass.records.model import LiveModel, Module
from torchglass.records.run import DOCUMENT_NAMES, Document
from torchglass.store.readers import MemoryStore
from torchglass.views.tui.explorer_state import ExplorerState, count_model
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.styled_text import DARK
from torchglass.views.tui.windows import ThemedApp


def subject_of(
    store: MemoryStore,
    live: LiveModel | None = None,
    comparison: ModelDiff | None = None,
    failure: Failure | None = None,
) -> ExplorerState:
    """What the explorer would know of a run after it read all of it."""
    model = comparison.model if comparison else store.model()
    state = ExplorerState(store.run(), model, live=live, comparison=comparison, failure=failure)
    state.contents = count_model(state.model)
    catch_up(state, store)
    return state


def catch_up(state: ExplorerState, store: MemoryStore) -> None:
    """Read what a run has, and what a run that goes on has now."""
    documents: dict[type[Document], Document] = {}
    for kind in DOCUMENT_NAMES:
        found = store.document(kind)  # type: ignore[type-var]
        if found is not None:
            documents[kind] = found
    state.take_documents(documents)
    known = {one.id for one in state.all_series()}
    new = [one for one in store.series() if one.id not in known]
    points = [store.points(one.id, after=state.step) for one in store.series()]
    state.learn(store.last_step(), new, points)


class PanelApp(ThemedApp[None]):
    """A panel alone, and what it said."""

    CSS: ClassVar[str] = "Panel { width: 100%; height: 100%; }"

    def __init__(self, panel: Panel, path: str = "", theme: str = DARK.name) -> None:
        super().__init__()
        self.panel = panel
        self.path = path
        self.heard: list[Message] = []
        self.theme = theme
        self.animation_level = "none"

    def compose(self) -> ComposeResult:
        yield self.panel

    def on_mount(self) -> None:
        self.panel.focus()
        self.panel.show(module_at(self.panel.state, self.path))

    def on_panel_jump(self, message: Panel.Jump) -> None:
        self.heard.append(message)

    def on_panel_picked(self, message: Panel.Picked) -> None:
        self.heard.append(message)

    def on_panel_leave(self, message: Panel.Leave) -> None:
        self.heard.append(message)


def module_at(state: ExplorerState, path: str) -> Module:
    module = state.model.find(path)
    assert module is not None
    return module


async def settle(app: PanelApp, pilot: Pilot[None]) -> None:
    """Wait until the panel shows what it worked out."""
    await settle_when(lambda: app.panel.settled, pilot)


def drive(
    app: PanelApp,
    story: Callable[[Pilot[None]], Awaitable[None]],
    *,
    size: tuple[int, int] = (80, 24),
) -> None:
    """Show a panel without a terminal, and run a story with it."""

    run_app(app, settle, story, size)


def seen(
    panel: Panel,
    path: str = "",
    press: Iterable[str] = (),
    *,
    size: tuple[int, int] = (80, 24),
    theme: str = DARK.name,
) -> str:
    """The screen after some keys were pressed, line by line."""
    app = PanelApp(panel, path, theme)
    shown: list[str] = []

    async def story(pilot: Pilot[None]) -> None:
        for key in press:
            await pilot.press(key)
            await settle(app, pilot)
        shown.extend(line.rstrip() for line in screen_text(app).split("\n"))

    drive(app, story, size=size)
    return "\n".join(shown)


def text_of(rows: Iterable[object]) -> str:
    """Rows without their colors."""
    return "\n".join("".join(words for words, _ in row.pieces).rstrip() for row in rows)  # type: ignore[attr-defined]
