"""Every key of the table, pressed: the cases below must cover all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from textual.command import CommandPalette
from textual.pilot import Pilot

from tests.unit.views.tui.runs import Training, drive, screen_text
from torchglass.views.tui.app import ExplorerApp
from torchglass.views.tui.bars import SearchInput
from torchglass.views.tui.help import Help
from torchglass.views.tui.keys import KEYS, Key, Place, sections
from torchglass.views.tui.picture import settle

SIZE = (120, 16)


@dataclass(frozen=True)
class Case:
    """What is seen before a key is pressed, after the keys that lead there, and what after it."""

    see: Callable[[ExplorerApp], object]
    before: object
    after: object
    first: tuple[str, ...] = ()


def cursor(app: ExplorerApp) -> object:
    return app.explorer.tree_panel.selected.path


def row_count(app: ExplorerApp) -> object:
    return app.explorer.tree_panel.row_count


def focus(app: ExplorerApp) -> object:
    return type(app.focused).__name__


def titles(app: ExplorerApp) -> object:
    return [column.title for column in app.explorer.tree_panel.columns]


def details_top(app: ExplorerApp) -> object:
    return app.explorer.details.scroll_offset.y


def details_width(app: ExplorerApp) -> object:
    return app.explorer.details.outer_size.width


def pan(app: ExplorerApp) -> object:
    return app.explorer.tree_panel.scroll_offset.x


def helping(app: ExplorerApp) -> object:
    return isinstance(app.screen, Help)


def searching(app: ExplorerApp) -> object:
    return isinstance(app.focused, SearchInput)


USUAL = ["class", "params", "share", "memory", "trend", "notes"]
TYPED = ("slash", "m", "l", "p")
LAST = "head"
LONG = ("j", "j", "j", "tab")

CASES: dict[tuple[Place, str], Case] = {
    ("anywhere", "help"): Case(helping, False, True),
    ("anywhere", "quit"): Case(lambda app: app.is_running and not app._exit, True, False),
    ("anywhere", "app.command_palette"): Case(
        lambda app: isinstance(app.screen, CommandPalette), False, True
    ),
    ("anywhere", "search"): Case(searching, False, True),
    ("anywhere", "match(1)"): Case(cursor, "blocks.0.mlp", "blocks.1.mlp", first=(*TYPED, "enter")),
    ("anywhere", "match(-1)"): Case(
        cursor, "blocks.0.mlp", "blocks.1.mlp", first=(*TYPED, "enter")
    ),
    ("anywhere", "clear_search"): Case(
        lambda app: app.explorer.searched, "mlp", "", first=(*TYPED, "enter")
    ),
    ("search", "screen.keep_search"): Case(searching, True, False, first=TYPED),
    ("search", "screen.drop_search"): Case(cursor, "blocks.0.mlp", "", first=TYPED),
    ("search", "screen.match(1)"): Case(cursor, "blocks.0.mlp", "blocks.1.mlp", first=TYPED),
    ("search", "screen.match(-1)"): Case(cursor, "blocks.0.mlp", "blocks.1.mlp", first=TYPED),
    ("tree", "move(-1)"): Case(cursor, "blocks", "embed", first=("down", "down")),
    ("tree", "move(1)"): Case(cursor, "", "embed"),
    ("tree", "close"): Case(cursor, "embed", "", first=("down",)),
    ("tree", "open"): Case(row_count, 9, 11, first=("j", "j", "j")),
    ("tree", "page(-1)"): Case(cursor, LAST, "", first=("end",)),
    ("tree", "page(1)"): Case(cursor, "", LAST),
    ("tree", "edge(-1)"): Case(cursor, LAST, "", first=("end",)),
    ("tree", "edge(1)"): Case(cursor, "", LAST),
    ("tree", "pan(-1)"): Case(pan, 11, 0, first=("shift+right",)),
    ("tree", "pan(1)"): Case(pan, 0, 11),
    ("tree", "fold('one')"): Case(row_count, 9, 1),
    ("tree", "fold('branch')"): Case(row_count, 9, 16, first=("j", "j", "j")),
    ("tree", "fold('all')"): Case(row_count, 7, 23, first=("Z",)),
    ("tree", "fold('siblings')"): Case(row_count, 9, 13, first=("j", "j", "j")),
    ("tree", "fold('sibling branches')"): Case(row_count, 9, 23, first=("j", "j", "j")),
    ("tree", "fold('class')"): Case(row_count, 9, 13, first=("j", "j", "j")),
    ("tree", "fold('class branches')"): Case(row_count, 9, 23, first=("j", "j", "j")),
    ("tree", "screen.view"): Case(focus, "ModuleTree", "Details"),
    ("details", "scroll_up"): Case(details_top, 1, 0, first=("tab", "down")),
    ("details", "scroll_down"): Case(details_top, 0, 1, first=("tab",)),
    ("details", "page_up"): Case(details_top, 4, 0, first=("tab", "end")),
    ("details", "page_down"): Case(details_top, 0, 4, first=("tab",)),
    ("details", "scroll_home"): Case(details_top, 4, 0, first=("tab", "end")),
    ("details", "scroll_end"): Case(details_top, 0, 4, first=("tab",)),
    ("details", "screen.leave"): Case(focus, "Details", "ModuleTree", first=("tab",)),
    ("anywhere", "column('parameters')"): Case(
        titles, USUAL, [title for title in USUAL if title not in {"params", "share"}]
    ),
    ("anywhere", "column('memory')"): Case(
        titles, USUAL, [title for title in USUAL if title != "memory"]
    ),
    ("anywhere", "column('shapes')"): Case(titles, USUAL, [*USUAL[:5], "shapes", "notes"]),
    ("anywhere", "column('device')"): Case(titles, USUAL, [*USUAL[:5], "device", "notes"]),
    ("anywhere", "panel"): Case(focus, "ModuleTree", "Details"),
    ("anywhere", "resize(1)"): Case(details_width, 42, 48),
    ("anywhere", "resize(-1)"): Case(details_width, 42, 36),
}


@pytest.mark.parametrize(
    ("entry", "key"),
    [pytest.param(entry, key, id=f"{entry.place}: {key}") for entry in KEYS for key in entry.keys],
)
def test_every_key_does_what_the_table_says(entry: Key, key: str) -> None:
    case = CASES[entry.place, entry.action]
    app = ExplorerApp(Training().train(30).finish())

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press(*case.first)
        await settle(app, pilot)
        assert case.see(app) == case.before

        await pilot.press(key)
        await settle(app, pilot)

        assert case.see(app) == case.after

    drive(app, story, size=SIZE)


def test_no_case_is_left_of_a_key_that_is_gone() -> None:
    assert set(CASES) == {(entry.place, entry.action) for entry in KEYS}


def test_no_key_means_two_things_in_one_place() -> None:
    for place in ("anywhere", "tree", "details", "search"):
        keys = [key for entry in KEYS if entry.place == place for key in entry.keys]

        assert len(keys) == len(set(keys))


def test_the_help_lists_every_key() -> None:
    app = ExplorerApp(Training().finish())

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        text = screen_text(app)

        for title, entries in sections().items():
            assert title in text
            assert all(entry.does in text and entry.label in text for entry in entries)

    drive(app, story, size=(120, 50))


@pytest.mark.parametrize("key", ["escape", "enter", "q", "question_mark"])
def test_the_help_closes(key: str) -> None:
    app = ExplorerApp(Training().finish())

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        assert helping(app)

        await pilot.press(key)

        assert not helping(app)
        assert app.is_running

    drive(app, story)
