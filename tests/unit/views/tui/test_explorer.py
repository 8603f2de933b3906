"""Someone explores a model, and a training that is under way, in a terminal."""

from __future__ import annotations

import asyncio

import pytest
from rich.cells import cell_len
from textual import events
from textual.pilot import Pilot

from tests import make
from tests.textual_pilot import screen_text
from tests.unit.views.tui.runs import Training, drive, linear, paths, still, tiny
from torchglass.errors import StoreError
from torchglass.records.findings import Finding, Findings
from torchglass.records.run import Document, Ending, RunRecord
from torchglass.store.readers import MemoryStore
from torchglass.views.tui.app import ExplorerApp, ExplorerSource, draw_explorer, settle
from torchglass.views.tui.panel_tabs import TabBar
from torchglass.views.tui.windows import LoadingScreen

HOSTILE = (
    "[red]markup[/]",
    "[/not.opened]",
    "line\nbreak",
    "\x1b[31mescape",
    "right\u202eto left",
    "זרימה",
    "🙂👩\u200d💻",
    "層" * 40,
    "",
    "tab\there",
    "e\u0301",
)


def test_the_tree_shows_names_classes_values_and_marks() -> None:
    app = ExplorerApp(still(tiny()))

    async def story(pilot: Pilot[None]) -> None:
        lines = [line.split() for line in screen_text(app).splitlines()]
        rows = {line[1]: line for line in lines if len(line) > 2}

        assert rows["embed"][2:5] == ["=", "Embedding", "6.4K"]
        assert rows["last_norm"][2:4] == ["↗", "LayerNorm"]
        assert rows["broken"][2:4] == ["!", "Broken"]
        assert "804" not in rows["embed"]

    drive(app, story)


def test_the_loading_screen_stops_drawing_once_the_model_is_loaded() -> None:
    app = ExplorerApp(lambda: ExplorerSource(reader=still(tiny())))

    async def story() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            while not hasattr(app, "explorer") or app.screen is not app.explorer:
                await pilot.pause()
            loading = app.screen_stack[0]
            assert isinstance(loading, LoadingScreen)
            while loading.query("#opening"):
                await pilot.pause()

    asyncio.run(asyncio.wait_for(story(), timeout=60))


def test_the_screen_follows_a_live_run() -> None:
    training = Training().train(1)
    app = ExplorerApp(training.store)

    async def until(pilot: Pilot[None], text: str) -> None:
        while text not in screen_text(app):
            await pilot.pause()

    async def story(pilot: Pilot[None]) -> None:
        assert "step 0 ○ waiting" in screen_text(app)
        assert "▁        1" in screen_text(app)

        training.train(15)
        await until(pilot, "step 15 ● live")
        await until(pilot, "0.0498")

        training.finish()
        await until(pilot, "step 15 ✓ finished")

    drive(app, story, size=(160, 40))


def test_the_first_line_shows_how_a_run_ended() -> None:
    error = Ending(state="stopped", error="RuntimeError", step=4)
    nan = Findings(findings=(Finding(severity="error", kind="nan", message="NaN", step=2),))
    told: list[tuple[Document, str]] = [
        (error, "step 3 ✗ stopped by RuntimeError at step 4"),
        (Ending(state="interrupted", step=4), "step 3 ✗ interrupted at step 4"),
        (nan, "step 3 ✗ NaN since step 2"),
    ]
    for document, text in told:
        training = Training().train(4)
        training.store.put_document(document)
        training.finish()
        app = ExplorerApp(training.store)

        async def story(pilot: Pilot[None], app: ExplorerApp = app, text: str = text) -> None:
            assert text in screen_text(app)

        drive(app, story, size=(120, 30))


def test_a_model_without_a_run_shows_no_steps() -> None:
    app = ExplorerApp(still(tiny()))

    async def story(pilot: Pilot[None]) -> None:
        assert "step" not in screen_text(app)
        assert "trend" not in screen_text(app)

    drive(app, story)


class Vanishing(MemoryStore):
    """A store whose file goes away."""

    gone = False

    def finished(self) -> bool:
        if self.gone:
            raise StoreError("cannot read demo.glass: disk I/O error")
        return False


def test_a_deleted_run_shows_a_status_and_keeps_the_tree() -> None:
    store = Vanishing(RunRecord(name="demo", created_ns=0))
    store.put_model(tiny())
    app = ExplorerApp(store)

    async def story(pilot: Pilot[None]) -> None:
        store.gone = True
        while "disk I/O error · showing the last data read" not in screen_text(app):
            await pilot.pause()

        await pilot.press("down")

        assert app.explorer.tree_panel.selected.path == "embed"

    drive(app, story)


def test_hostile_names_do_not_break_lines_or_columns() -> None:
    children = {name: {**linear(2, 2), "extra": name} for name in HOSTILE}
    app = ExplorerApp(still(make.model({"children": children}, name="[b]Net\x07")))

    async def story(pilot: Pilot[None]) -> None:
        for _ in HOSTILE:
            await pilot.press("down")
            await settle(app, pilot)
            lines = screen_text(app).splitlines()

            assert [cell_len(line) for line in lines] == [120] * 40
            assert not any(char < " " or char == "\u202e" for line in lines for char in line)

        text = screen_text(app)
        assert "[red]markup[/]" in text
        assert "line\\nbreak" in text
        assert "\\x1b[31mescape" in text

    drive(app, story)


def test_an_empty_model_is_one_row() -> None:
    app = ExplorerApp(still(make.model(name="Empty")))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press(
            "j", "k", "h", "l", "escape", "z", "Z", "s", "S", "o", "O", "space", "end"
        )
        await settle(app, pilot)

        assert paths(app) == [""]
        assert "Empty" in screen_text(app)

    drive(app, story)


def test_a_deep_model_keeps_its_names_on_a_narrow_screen() -> None:
    tree: make.Tree = {"class": "t.Leaf"}
    for _ in range(60):
        tree = {"class": "t.Level", "children": {"inner": tree}}
    app = ExplorerApp(still(make.model(tree)))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("Z", "Z", "end")
        await settle(app, pilot)

        assert "inner" in screen_text(app).splitlines()[-3]
        assert "…" in screen_text(app).splitlines()[-3]

    drive(app, story, size=(40, 10))


def test_small_terminals_show_tree_or_details() -> None:
    app = ExplorerApp(still(tiny()))

    def shown() -> tuple[bool, bool]:
        return app.explorer.tree_panel.display, app.explorer.tabs.display

    async def story(pilot: Pilot[None]) -> None:
        assert shown() == (True, False)

        await pilot.press("down", "enter")
        await settle(app, pilot)
        assert shown() == (False, True)
        assert "Embedding(100, 64)" in screen_text(app)

        await pilot.press("escape")
        await settle(app, pilot)
        assert shown() == (True, False)
        assert app.explorer.tree_panel.has_focus

    drive(app, story, size=(40, 10))


def test_the_terminal_can_be_resized_at_any_time() -> None:
    app = ExplorerApp(Training().train(3).finish())

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("Z", "end")
        for size in ((40, 10), (200, 60), (12, 4), (80, 24)):
            await pilot.resize_terminal(*size)
            # Sizes that come one after the other are taken in when there is time for them.
            while [cell_len(line) for line in screen_text(app).splitlines()] != [size[0]] * size[1]:
                await pilot.pause()
            await settle(app, pilot)

        assert app.explorer.tree_panel.selected.path == "head"

    drive(app, story)


def test_the_mouse_selects_folds_and_scrolls() -> None:
    app = ExplorerApp(still(tiny()))
    tree = app.explorer.tree_panel

    async def story(pilot: Pilot[None]) -> None:
        blocks = paths(app).index("blocks") + 1
        await pilot.click(tree, offset=(20, blocks))
        assert tree.selected.path == "blocks"

        shown = len(tree.tree_rows)
        await pilot.click(tree, offset=(3, blocks))
        assert len(tree.tree_rows) < shown

        await pilot.click("KeyBar", offset=(2, 0))
        await pilot.pause()
        assert "Show all keys" in screen_text(app)

    drive(app, story)


def test_a_search_opens_closed_folds_and_restores_them() -> None:
    app = ExplorerApp(still(tiny()))
    tree = app.explorer.tree_panel

    async def story(pilot: Pilot[None]) -> None:
        folds = tree.folds

        await pilot.press("slash", *"gelu")
        await settle(app, pilot)
        assert tree.selected.path == "blocks.0.mlp.1"
        assert "1 of 2" in screen_text(app)

        await pilot.press("x")
        await settle(app, pilot)
        assert "no matches" in screen_text(app)
        assert (tree.selected.path, tree.folds) == ("", folds)

        await pilot.press("backspace", "enter", "n")
        await settle(app, pilot)
        assert tree.selected.path == "blocks.1.mlp.1"

    drive(app, story, size=(120, 16))


def test_keys_of_the_explorer_can_be_typed_into_a_search() -> None:
    app = ExplorerApp(still(tiny()))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"qkv?n")
        await settle(app, pilot)

        assert app.explorer.search.text == "qkv?n"

    drive(app, story)


def test_a_burst_of_keys_is_handled_in_order() -> None:
    app = ExplorerApp(still(tiny()))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("slash")
        for key in ("x", "backspace", "q", "k", "v", "left", "backspace", "k"):
            app.post_message(events.Key(key, key if len(key) == 1 else None))
        await settle(app, pilot)

        assert app.explorer.search.text == "qkv"

    drive(app, story)


def test_a_screenshot_is_drawn_without_a_terminal() -> None:
    svg = draw_explorer(Training().train(20).finish(), press=["down"], columns=100, lines=20)

    assert svg.startswith("<svg")
    assert "embed" in svg
    assert "font-face" not in svg


def test_enter_toggles_a_container_and_views_a_leaf() -> None:
    app = ExplorerApp(still(tiny()))

    async def story(pilot: Pilot[None]) -> None:
        tree = app.explorer.tree_panel
        await pilot.press("down", "down", "down")
        assert tree.selected.path == "blocks.0"
        opened = paths(app)

        await pilot.press("enter")
        assert "blocks.0.attention" not in paths(app)
        assert app.focused is tree

        await pilot.press("enter")
        assert paths(app) == opened
        assert app.focused is tree

        await pilot.press("up", "up", "enter")
        assert tree.selected.path == "embed"
        assert type(app.focused).__name__ == "DetailsPanel"

    drive(app, story)


def test_a_message_disappears_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchglass.views.tui.bars._MESSAGE_SECONDS", 0.01)
    app = ExplorerApp(still(tiny()))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("down", "F")
        while "embed · Embedding" not in screen_text(app).splitlines()[-2]:
            await pilot.pause()

    drive(app, story)


def test_the_class_of_the_selected_module_is_not_marked_during_a_search() -> None:
    app = ExplorerApp(still(tiny()))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("Z", "Z", "slash", *"qkv", "enter", "ampersand")
        await settle(app, pilot)
        assert "▏" not in screen_text(app)

        await pilot.press("escape")
        await settle(app, pilot)
        assert "▏" in screen_text(app)

    drive(app, story)


def test_the_focused_pane_is_marked() -> None:
    app = ExplorerApp(still(tiny()), theme="glass-dark")

    async def story(pilot: Pilot[None]) -> None:
        def title() -> list[object]:
            segments = app.screen.query_one(TabBar).render_line(0)
            return [one.style for one in segments if "Details" in one.text]

        before = title()
        await pilot.press("tab")
        await settle(app, pilot)
        assert title() != before
        style = title()[0]
        assert style.reverse or style.bgcolor != before[0].bgcolor  # type: ignore[attr-defined]

        await pilot.press("escape")
        await settle(app, pilot)
        assert title() == before

    drive(app, story)
