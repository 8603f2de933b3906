"""Every key of the table, pressed: the cases below must cover all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from textual.command import CommandPalette
from textual.pilot import Pilot

from tests.textual_pilot import screen_text
from tests.unit.views.tui.runs import Training, documents, drive, tiny
from torchglass.records.run import RunRecord
from torchglass.views.tui.app import ExplorerApp, settle
from torchglass.views.tui.bars import SearchInput
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.keys import KeyEntry, Place, sections
from torchglass.views.tui.panel_tabs import all_keys
from torchglass.views.tui.panels import PANELS
from torchglass.views.tui.windows import HelpWindow, ListDialog

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
    return len(app.explorer.tree_panel.tree_rows)


def focus(app: ExplorerApp) -> object:
    return type(app.focused).__name__


def titles(app: ExplorerApp) -> object:
    return [column.title for column in app.explorer.tree_panel.columns]


def dock_width(app: ExplorerApp) -> object:
    return app.explorer.tabs.outer_size.width


def pan(app: ExplorerApp) -> object:
    return app.explorer.tree_panel.scroll_offset.x


def helping(app: ExplorerApp) -> object:
    return isinstance(app.screen, HelpWindow)


def searching(app: ExplorerApp) -> object:
    return isinstance(app.focused, SearchInput)


def open_panels(app: ExplorerApp) -> object:
    return app.explorer.tabs.keys


def status(app: ExplorerApp) -> str:
    return screen_text(app).splitlines()[-2]


def says(words: str) -> Callable[[ExplorerApp], object]:
    return lambda app: words in status(app)


def label_order(app: ExplorerApp) -> object:
    return app.explorer.tree_panel.labels.order[:3]


def label_cursor(app: ExplorerApp) -> object:
    panel = app.explorer.tabs.find("L")
    return panel and panel.row


def order(app: ExplorerApp) -> object:
    return app.explorer.tree_panel.sorting.column


USUAL = ["class", "gradient std", "params", "share", "memory", "time", "notes"]
TYPED = ("slash", "m", "l", "p")
LAST = "head"
FIRST = ["a", "b", "distance"]


def without(*titles: str) -> list[str]:
    return [title for title in USUAL if title not in titles]


def with_more(*titles: str, after: str) -> list[str]:
    place = USUAL.index(after) + 1
    return [*USUAL[:place], *titles, *USUAL[place:]]


SORTED_BY = ("name", "class", "trend", "params", "params share", "bytes", "time", "notes", "", "")

CASES: dict[tuple[Place, str], Case] = {
    ("anywhere", "help"): Case(helping, False, True),
    ("anywhere", "quit"): Case(lambda app: app.is_running and not app._exit, True, False),
    ("anywhere", "app.command_palette"): Case(
        lambda app: isinstance(app.screen, CommandPalette), False, True
    ),
    ("anywhere", "export"): Case(lambda app: isinstance(app.screen, ListDialog), False, True),
    ("anywhere", "copy_path"): Case(lambda app: app.clipboard, "", "embed", first=("down",)),
    ("anywhere", "edit"): Case(says("No source file for this module"), False, True),
    ("anywhere", "search"): Case(searching, False, True),
    ("anywhere", "match(1)"): Case(cursor, "blocks.0.mlp", "blocks.1.mlp", first=(*TYPED, "enter")),
    ("anywhere", "match(-1)"): Case(
        cursor, "blocks.0.mlp", "blocks.1.mlp", first=(*TYPED, "enter")
    ),
    ("anywhere", "filter"): Case(row_count, 6, 11, first=(*TYPED, "enter")),
    ("anywhere", "clear_search"): Case(
        lambda app: app.explorer.search.text, "mlp", "", first=(*TYPED, "enter")
    ),
    ("search", "screen.keep_search"): Case(searching, True, False, first=TYPED),
    ("search", "screen.drop_search"): Case(cursor, "blocks.0.mlp", "", first=TYPED),
    ("search", "screen.filter"): Case(row_count, 6, 11, first=TYPED),
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
    ("tree", "screen.jump_to_twin"): Case(cursor, "embed", "head", first=("down",)),
    ("tree", "fold('one')"): Case(row_count, 9, 1),
    ("tree", "fold('branch')"): Case(row_count, 9, 16, first=("j", "j", "j")),
    ("tree", "fold('all')"): Case(row_count, 7, 23, first=("Z",)),
    ("tree", "fold('siblings')"): Case(row_count, 9, 13, first=("j", "j", "j")),
    ("tree", "fold('sibling branches')"): Case(row_count, 9, 23, first=("j", "j", "j")),
    ("tree", "fold('class')"): Case(row_count, 9, 13, first=("j", "j", "j")),
    ("tree", "fold('class branches')"): Case(row_count, 9, 23, first=("j", "j", "j")),
    ("tree", "screen.fold_repeats"): Case(row_count, 9, 8),
    ("tree", "screen.unfold_or_view"): Case(row_count, 9, 1),
    ("anywhere", "panel(1)"): Case(focus, "ModuleTree", "DetailsPanel"),
    ("anywhere", "panel(-1)"): Case(focus, "ModuleTree", "PerformancePanel", first=("P",)),
    ("anywhere", "resize(1)"): Case(dock_width, 48, 54),
    ("anywhere", "resize(-1)"): Case(dock_width, 48, 42),
    ("anywhere", "maximize"): Case(lambda app: app.explorer.tabs.display, True, False),
    ("anywhere", "column('parameters')"): Case(titles, USUAL, without("params", "share")),
    ("anywhere", "column('size')"): Case(titles, USUAL, without("memory")),
    ("anywhere", "column('shapes')"): Case(titles, USUAL, with_more("shapes", after="time")),
    ("anywhere", "column('device')"): Case(
        titles, USUAL, with_more("device", "dtype", after="memory")
    ),
    ("anywhere", "column('flow')"): Case(
        titles, USUAL, with_more("input", "output", "dtypes", "calls", after="memory")
    ),
    ("anywhere", "column('memory')"): Case(
        titles,
        USUAL,
        with_more("of memory", "own", "in mem", "out mem", "saved", "peak", after="memory"),
    ),
    ("anywhere", "column('time')"): Case(titles, USUAL, without("time")),
    ("anywhere", "column('flops')"): Case(
        titles, USUAL, with_more("FLOPs", "of FLOPs", after="time")
    ),
    ("anywhere", "column('gradients')"): Case(titles, USUAL, without("gradient std")),
    ("anywhere", "align"): Case(lambda app: app.explorer.tree_panel.labels.aligned, True, False),
    ("anywhere", "diagram"): Case(says("No traced forward"), False, True),
    ("anywhere", "labels"): Case(focus, "ModuleTree", "LabelPanel"),
    ("labels", "line(-1)"): Case(label_cursor, 1, 0, first=("L", "down")),
    ("labels", "line(1)"): Case(label_cursor, 0, 1, first=("L",)),
    ("labels", "choose"): Case(titles, USUAL, without("class"), first=("L", *["down"] * 5)),
    ("labels", "shift(1)"): Case(
        label_order, tuple(FIRST), ("b", "a", "distance"), first=("L", "down")
    ),
    ("labels", "shift(-1)"): Case(
        label_order, tuple(FIRST), ("b", "a", "distance"), first=("L", "down", "down")
    ),
    ("labels", "shift(-99)"): Case(
        label_order, tuple(FIRST), ("distance", "a", "b"), first=("L", "j", "j", "j")
    ),
    ("labels", "shift(99)"): Case(
        label_order, tuple(FIRST), ("b", "distance", "change"), first=("L", "down")
    ),
    ("labels", "screen.labels"): Case(focus, "LabelPanel", "ModuleTree", first=("L",)),
}


def recorded() -> ExplorerState:
    state = ExplorerState(RunRecord(name="demo", created_ns=0), tiny())
    state.take_documents({type(one): one for one in documents()})
    state.learn(0, Training().store.series(), ())
    return state


def case_of(entry: KeyEntry, key: str) -> Case:
    if entry.action == "sort({key})":
        by = SORTED_BY[int(key) - 1] if key != "0" else ""
        first = ("4",) if not by else ()
        return Case(
            order,
            "params" if first else "",
            by or ("params" if key == "9" else ""),
            first=first,
        )
    if entry.action.startswith("toggle_panel("):
        panel = next(panel for panel in PANELS if panel.key == key)
        missing = Case(says(panel.missing[:40]), False, True)
        opened = Case(open_panels, ("i",), () if key == "i" else (key, "i"))
        return opened if panel.available(recorded()) else missing
    return CASES[entry.place, entry.action]


MINE = [entry for entry in all_keys() if not entry.place.startswith("panel")]


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        # One loop binds all keys of an entry to its action: every day the first one is enough.
        pytest.param(
            entry, key, id=f"{entry.place}: {key}", marks=[pytest.mark.slow] if number else []
        )
        for entry in MINE
        for number, key in enumerate(entry.keys)
    ],
)
def test_every_key_does_what_the_table_says(entry: KeyEntry, key: str) -> None:
    case = case_of(entry, key)
    app = ExplorerApp(Training(documents=documents()).train(30).finish())

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press(*case.first)
        await settle(app, pilot)
        assert case.see(app) == case.before

        await pilot.press(key)
        await settle(app, pilot)

        assert case.see(app) == case.after

    drive(app, story, size=SIZE)


def test_every_key_test_case_has_a_key_in_the_table() -> None:
    generated = ("sort({key})", "toggle_panel(")
    table = {(entry.place, entry.action) for entry in MINE}

    assert set(CASES) == {one for one in table if not one[1].startswith(generated)}


def test_no_key_has_two_meanings_in_one_panel() -> None:
    for place in {entry.place for entry in all_keys()}:
        keys = [key for entry in all_keys() if entry.place == place for key in entry.keys]

        assert len(keys) == len(set(keys))


def test_the_help_lists_every_key() -> None:
    app = ExplorerApp(Training().finish())

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        # What is long goes on in the next line.
        text = " ".join(screen_text(app).replace("│", " ").split())

        for title, entries in sections(all_keys()).items():
            assert title in text
            assert all(f"{entry.label} {entry.does}" in text for entry in entries)

    drive(app, story, size=(70, 300))


def test_the_help_has_several_columns_if_they_fit() -> None:
    app = ExplorerApp(Training().finish())

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        lines = screen_text(app).splitlines()
        first = next(line for line in lines if "Show all keys" in line)

        assert len(first.strip(" │").split("   ")) > 4
        assert max(map(len, lines)) == 200

    drive(app, story, size=(200, 50))


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


def test_the_help_has_two_columns_even_in_a_small_terminal() -> None:
    app = ExplorerApp(Training().finish())

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        first = next(line for line in screen_text(app).splitlines() if "Show all keys" in line)

        assert len(first.replace("Show all keys", "").strip(" │?").split()) > 2

    drive(app, story, size=(80, 24))


def test_typing_filters_the_help() -> None:
    app = ExplorerApp(Training().finish())

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("question_mark", "slash", *"export")
        await pilot.pause()
        text = screen_text(app)
        assert "Export the table" in text
        assert "Next match" not in text

        await pilot.press("escape")
        await pilot.pause()
        assert "Next match" in screen_text(app)
        assert helping(app)

        await pilot.press("escape")
        assert not helping(app)

    drive(app, story, size=(160, 50))


def test_the_help_begins_with_the_keys_of_the_focused_panel() -> None:
    app = ExplorerApp(Training(documents=documents()).train(5).finish())

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("G", "tab", "question_mark")
        await pilot.pause()
        text = screen_text(app)
        assert text.index("In a panel") < text.index("Show all keys")
        assert text.index("Toggle largest first") < text.index("Show all keys")

    drive(app, story, size=(70, 200))


def test_the_help_explains_every_mark() -> None:
    app = ExplorerApp(Training().finish())

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("question_mark", "slash", *"marks")
        await pilot.pause()
        lines = [line.strip(" │") for line in screen_text(app).splitlines()]
        for mark in ("✗", "↗", "=", "!", "▏"):
            assert any(line.startswith(f"{mark} ") for line in lines)

    drive(app, story, size=(70, 60))


def test_the_footer_offers_the_panels_that_have_something_to_show() -> None:
    app = ExplorerApp(Training(documents=documents()).train(5).finish())

    async def story(pilot: Pilot[None]) -> None:
        footer = screen_text(app).splitlines()[-1]
        for words in ("? help", "/ search", "Tab panel", "P performance", "v series"):
            assert words in footer
        assert "tensor flow" not in footer
        assert "attributes" not in footer

    drive(app, story, size=(120, 40))
