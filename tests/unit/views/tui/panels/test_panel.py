"""What all panels have in common."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from typing import ClassVar

import pytest
from textual.binding import Binding
from textual.pilot import Pilot

import torchglass as tg
from tests.unit.views.tui.panels import samples
from tests.unit.views.tui.panels.panel_app import (
    PanelApp,
    drive,
    module_at,
    seen,
    settle,
    subject_of,
)
from torchglass.errors import LookupFailedError
from torchglass.records.model import LiveModel, Progress
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.keys import PANEL_KEYS, hints
from torchglass.views.tui.panels import PANELS, Panel
from torchglass.views.tui.styled_text import text

PATIENCE = 10.0
SIZES = [(80, 24), (160, 50), (40, 10), (12, 3)]


class Hundred(Panel):
    """A hundred rows, and work that waits until it is told to go on."""

    title: ClassVar[str] = "Lines"
    has_cursor = True

    def __init__(self, state: ExplorerState) -> None:
        super().__init__(state)
        self.release = threading.Event()
        self.stopped_at: list[float] = []
        self.result = ""

    def follow(self, moved: bool) -> None:
        self.put([text(f"{at} {'long ' * 40}end", target=f"m{at}") for at in range(100)])

    def toil(self) -> None:
        def work(progress: Progress) -> str:
            self.release.wait(PATIENCE)
            if not progress(0.5):
                self.stopped_at.append(0.5)
            return "done"

        def take(result: str) -> None:
            self.result = result

        self.work("toiling", work, take)

    def fail(self, error: Exception) -> None:
        def work(_: Progress) -> None:
            raise error

        self.work("failing", work, lambda _: None)


@pytest.fixture
def everything() -> ExplorerState:
    run = samples.store(
        None,
        samples.traced(),
        samples.measures(),
        samples.statistics(),
        samples.findings(),
    )
    samples.train(run, range(30))
    return subject_of(run, failure=samples.failed())


@pytest.fixture
def lines() -> Hundred:
    return Hundred(subject_of(samples.store()))


def test_the_cursor_moves_by_line_page_and_end(lines: Hundred) -> None:
    rows = []

    async def story(pilot: Pilot[None]) -> None:
        for key in ("j", "down", "k", "pagedown", "end", "down", "home", "up"):
            await pilot.press(key)
            rows.append(lines.row)

    drive(PanelApp(lines), story, size=(40, 11))

    assert rows == [1, 2, 1, 11, 99, 99, 0, 0]


def test_the_position_is_shown_beside_the_title(lines: Hundred) -> None:
    said = []

    async def story(pilot: Pilot[None]) -> None:
        for key in ("j", "end"):
            await pilot.press(key)
            said.append(lines.subtitle)
        lines.has_cursor = False
        for key in ("home", "pagedown", "end"):
            await pilot.press(key)
            said.append(lines.subtitle)
        lines.subtitle = "all"
        said.append(lines.subtitle)
        lines.put([text("a")])
        said.append(lines.subtitle)

    drive(PanelApp(lines), story, size=(40, 10))

    assert said == ["2/100", "100/100", "10%", "19%", "100%", "100% · all", "all"]


def test_wide_content_can_be_panned(lines: Hundred) -> None:
    shown = seen(lines, press=["shift+right"] * 25)

    assert shown.splitlines()[0].endswith("end")


def test_a_second_click_follows_a_row(lines: Hundred) -> None:
    app = PanelApp(lines)

    async def story(pilot: Pilot[None]) -> None:
        await pilot.click(Hundred, offset=(3, 4), times=2)
        await pilot.pause()

    drive(app, story)

    assert [message.path for message in app.heard if isinstance(message, Panel.Jump)] == ["m4"]


def test_escape_goes_back_to_the_tree(lines: Hundred) -> None:
    app = PanelApp(lines)

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("escape")

    drive(app, story)

    assert isinstance(app.heard[-1], Panel.Leave)


def test_selecting_another_module_scrolls_to_the_top(lines: Hundred) -> None:
    app = PanelApp(lines)

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("end")
        lines.show(module_at(lines.state, "blocks"))
        await pilot.pause()

    drive(app, story)

    assert (lines.row, lines.scroll_offset.y) == (0, 0)


def test_long_work_says_how_to_cancel_it_and_can_be_canceled(lines: Hundred) -> None:
    app = PanelApp(lines)
    shown = []

    async def story(pilot: Pilot[None]) -> None:
        lines.toil()
        while "Esc cancel" not in _text(app):
            await pilot.pause(0.01)
        shown.append(_text(app))
        await pilot.press("j")
        assert lines.row == 1
        await pilot.press("escape")
        lines.release.set()
        await settle(app, pilot)
        while not lines.stopped_at:
            await pilot.pause(0.01)

    drive(app, story)

    assert "toiling" in shown[0]
    assert lines.result == ""
    assert not any(isinstance(message, Panel.Leave) for message in app.heard)


def test_endless_work_does_not_prevent_quitting(lines: Hundred) -> None:
    async def story(pilot: Pilot[None]) -> None:
        lines.toil()

    drive(PanelApp(lines), story)

    assert not lines.release.is_set()
    lines.release.set()


def test_the_result_of_background_work_is_used(lines: Hundred) -> None:
    async def story(pilot: Pilot[None]) -> None:
        lines.release.set()
        lines.toil()
        while not lines.settled:
            await pilot.pause(0.01)

    drive(PanelApp(lines), story)

    assert lines.result == "done"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LookupFailedError("open it again"), "open it again"),
        (ValueError("[/red] no"), "ValueError: [/red] no"),
    ],
)
def test_failed_work_shows_a_message_and_does_not_crash(
    lines: Hundred, error: Exception, words: str
) -> None:
    app = PanelApp(lines)

    async def story(pilot: Pilot[None]) -> None:
        lines.fail(error)
        while not lines.settled:
            await pilot.pause(0.01)
        await pilot.pause()
        assert words in _text(app)

    drive(app, story)


@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_can_be_navigated_at_any_size(
    panel: type[Panel], everything: ExplorerState
) -> None:
    pages = walk(panel(everything), ("blocks.0.fc", "broken", ""), SIZES)

    assert all(page.strip() for page in pages)


@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_shows_something_for_a_model_without_data(
    panel: type[Panel],
) -> None:
    state = subject_of(samples.store(samples.hostile()))

    pages = walk(panel(state), ("", *samples.HOSTILE[:-1]), [(80, 24)])

    assert all(page.strip() for page in pages)
    assert not any("\x1b" in page for page in pages)


@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_is_drawn_in_any_theme(panel: type[Panel], everything: ExplorerState) -> None:
    app = PanelApp(panel(everything), "blocks.0.fc")
    pages: list[str] = []

    async def story(pilot: Pilot[None]) -> None:
        for theme in ("glass-light", "ansi-dark", "nord"):
            app.theme = theme
            await settle(app, pilot)
            pages.append(_text(app))

    drive(app, story)

    assert pages[0].strip()
    assert len(set(pages)) == 1


def test_no_information_is_lost_without_colors(
    monkeypatch: pytest.MonkeyPatch, everything: ExplorerState
) -> None:
    colored = seen(PANELS[0](everything), "blocks.0.fc")
    monkeypatch.setenv("NO_COLOR", "1")

    assert seen(PANELS[0](everything), "blocks.0.fc") == colored


def test_every_panel_has_a_key_a_title_and_a_hint_for_missing_data() -> None:
    keys = [panel.key for panel in PANELS]

    assert len(set(keys)) == len(PANELS)
    assert all(panel.title for panel in PANELS)
    assert all(panel.missing for panel in PANELS if not panel.available(_bare()))


def test_a_panel_is_offered_only_where_it_has_something_to_show(everything: ExplorerState) -> None:
    offered = [panel.title for panel in PANELS if panel.available(_bare())]
    filled = [panel.title for panel in PANELS if panel.available(everything)]

    assert offered == ["Details", "Findings"]
    assert filled == [
        "Details",
        "Performance",
        "Tensor flow",
        "Gradient flow",
        "Series",
        "Findings",
        "Explanation",
        "Overview",
    ]


@pytest.mark.parametrize("panel", PANELS)
def test_every_key_of_a_panel_is_an_action_of_it(panel: type[Panel]) -> None:
    bound = [one for one in panel.BINDINGS if isinstance(one, Binding)]

    assert all(hasattr(panel, f"action_{one.action.partition('(')[0]}") for one in bound)


def test_every_key_of_the_table_is_bound_in_some_panel() -> None:
    panels: tuple[type[Panel], ...] = (Panel, *PANELS)
    bound = {
        (one.key, one.action)
        for panel in panels
        for one in panel.BINDINGS
        if isinstance(one, Binding)
    }

    assert {(key, entry.action) for entry in PANEL_KEYS for key in entry.keys} == bound


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_with_nothing_to_show_offers_none_of_its_own_keys(panel: type[Panel]) -> None:
    shown = panel(_bare())
    seen(shown)

    offered = [key.hint for key in hints(shown.places, PANEL_KEYS)]

    assert offered == ["back"]


def _bare() -> ExplorerState:
    live: LiveModel | None = None
    return subject_of(samples.store(), live)


def _text(app: PanelApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def walk(panel: Panel, paths: Iterable[str], sizes: Iterable[tuple[int, int]]) -> list[str]:
    """What a panel shows of some modules on screens of some sizes, its keys pressed."""
    app = PanelApp(panel)
    pages: list[str] = []

    async def story(pilot: Pilot[None]) -> None:
        for size in sizes:
            await pilot.resize_terminal(*size)
            while app.screen.size != size:
                await pilot.pause()
            for path in paths:
                panel.show(module_at(panel.state, path))
                await settle(app, pilot)
                panel.action_end(1)
                panel.action_pan(1)
                await pilot.pause()
                panel.action_end(-1)
                panel.action_pan(-1)
                await pilot.pause()
                pages.append(_text(app))

    drive(app, story)
    return pages


@pytest.mark.parametrize("panel", PANELS, ids=[panel.title for panel in PANELS])
def test_functions_named_in_empty_panels_exist(panel: type[Panel]) -> None:
    for name in re.findall(r"\btg\.(\w+)", panel.missing):
        assert hasattr(tg, name)
