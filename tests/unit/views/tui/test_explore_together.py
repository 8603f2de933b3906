"""Someone works with tree, panels, palette and files together."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from tests.textual_pilot import screen_text
from tests.unit.views.tui.runs import (
    Training,
    documents,
    drive,
    paths,
    still,
    tiny,
    two_models,
)
from torchglass.analyse.model_diff import compare
from torchglass.records.findings import Finding, Findings
from torchglass.views.tui.app import Commands, ExplorerApp, ExplorerSource, command_title, settle
from torchglass.views.tui.panel_tabs import PanelEdge, TabBar, all_keys
from torchglass.views.tui.panels import Panel
from torchglass.views.tui.panels.code import open_editor


def app_of_a_run() -> ExplorerApp:
    return ExplorerApp(Training(documents=documents()).train(5).finish())


def test_tab_cycles_through_the_panels_and_back_to_the_tree() -> None:
    app = app_of_a_run()

    async def story(pilot: Pilot[None]) -> None:
        seen = []
        await pilot.press("P", "i")
        for _ in range(4):
            seen.append(type(app.focused).__name__)
            await pilot.press("tab")

        assert seen == ["ModuleTree", "DetailsPanel", "PerformancePanel", "ModuleTree"]

    drive(app, story)


def test_the_divider_can_be_dragged_with_the_mouse() -> None:
    app = app_of_a_run()

    async def story(pilot: Pilot[None]) -> None:
        before = app.explorer.tabs.outer_size.width
        edge = app.screen.query_one(PanelEdge)

        await pilot.mouse_down(edge, offset=(0, 5))
        await pilot.hover(app.explorer.tree_panel, offset=(30, 5))
        await pilot.mouse_up(app.explorer.tree_panel, offset=(30, 5))
        await settle(app, pilot)

        assert app.explorer.tabs.outer_size.width > before

    drive(app, story)


def test_a_click_on_a_tab_shows_its_panel() -> None:
    app = app_of_a_run()

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("P")
        await settle(app, pilot)
        assert app.explorer.tabs.keys == ("P", "i")

        await pilot.click(TabBar, offset=(4, 0))
        await settle(app, pilot)

        assert app.explorer.tabs.keys == ("i", "P")

    drive(app, story)


def test_a_panel_can_be_maximized_and_restored() -> None:
    app = app_of_a_run()

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("tab", "M")
        await settle(app, pilot)
        assert not app.explorer.tree_panel.display
        assert app.explorer.tabs.outer_size.width == 120

        await pilot.press("M")
        await settle(app, pilot)
        assert app.explorer.tree_panel.display

    drive(app, story)


def test_a_panel_can_select_another_module() -> None:
    app = app_of_a_run()

    async def story(pilot: Pilot[None]) -> None:
        for path, reached in {"blocks.1.mlp.2": "blocks.1.mlp.2", "head.gone.x": "head"}.items():
            app.explorer.post_message(Panel.Jump(path))
            await settle(app, pilot)

            assert app.explorer.tree_panel.selected.path == reached

    drive(app, story)


def test_a_shared_module_and_a_tied_weight_link_to_their_other_paths() -> None:
    app = ExplorerApp(still(tiny()))

    async def story(pilot: Pilot[None]) -> None:
        seen = []
        for path in ("embed", "norm"):
            app.explorer.go_to(path)
            for _ in range(2):
                await pilot.press("J")
                seen.append(app.explorer.tree_panel.selected.path)

        assert seen == ["head", "embed", "last_norm", "norm"]

        await pilot.press("home", "J")
        await settle(app, pilot)
        assert "Not shared with any other module" in screen_text(app)

    drive(app, story)


def test_the_palette_finds_commands_and_modules() -> None:
    app = app_of_a_run()

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+p")
        await pilot.press(*"blocks.1.att")
        while "blocks.1.attention" not in screen_text(app):
            await pilot.pause()
        await pilot.press("enter")
        await settle(app, pilot)
        assert app.explorer.tree_panel.selected.path == "blocks.1.attention"

        await pilot.press("ctrl+p")
        await pilot.press(*"sort by par")
        while "Sort by parameter count" not in screen_text(app):
            await pilot.pause()
        await pilot.press("enter")
        while app.explorer.tree_panel.sorting.column != "params":
            await pilot.pause()

    drive(app, story)


def test_every_key_command_is_in_the_palette() -> None:
    app = app_of_a_run()

    async def story(pilot: Pilot[None]) -> None:
        commands = {str(hit.text): hit async for hit in Commands(app.screen).discover()}
        actions = [key for key in all_keys() if key.place in {"anywhere", "tree"}]
        missing = {command_title(key) for key in actions} - commands.keys()
        assert [command.title for command in app.get_system_commands(app.screen)] == [
            "Change theme"
        ]
        assert missing == {"Sort by column 1–9; 0 = model order"}

        for title in ("Toggle column: FLOPs", "Fold the whole tree", "Down"):
            commands[title].command()
        await settle(app, pilot)
        assert "FLOPs" in [column.title for column in app.explorer.tree_panel.columns]
        assert len(app.explorer.tree_panel.tree_rows) == 7
        assert app.explorer.tree_panel.selected.path == "embed"

    drive(app, story)


@pytest.mark.parametrize(
    ("place", "name"),
    list(enumerate(["TinyGPT.txt", "TinyGPT.json", "TinyGPT.csv", "TinyGPT.html", "TinyGPT.svg"])),
)
def test_the_visible_tree_is_exported_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    app = app_of_a_run()

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("Z", "x")
        await pilot.pause()
        app.screen.query_one(OptionList).highlighted = place
        await pilot.press("enter")
        await settle(app, pilot)
        assert f"Wrote {name}" in screen_text(app)

    drive(app, story)

    text = (tmp_path / name).read_text(encoding="utf-8")
    assert "embed" in text
    if name.endswith("json"):
        assert len(json.loads(text)["modules"]) == 7


def test_the_source_opens_in_the_users_editor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchglass.api.explore import make_source

    torch = pytest.importorskip("torch")
    monkeypatch.setenv("VISUAL", "")
    monkeypatch.setenv("EDITOR", "")
    app = ExplorerApp(make_source(torch.nn.Linear(2, 2)))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("e")
        await settle(app, pilot)
        assert "Set $EDITOR to open" in screen_text(app)
        assert "linear.py:" in screen_text(app)

    drive(app, story)


def test_a_filter_keeps_the_ancestors_of_matches() -> None:
    app = ExplorerApp(still(tiny()))

    async def story(pilot: Pilot[None]) -> None:
        folds = app.explorer.tree_panel.folds
        await pilot.press("slash", *"gelu")
        await settle(app, pilot)
        assert paths(app) == [
            *("", "blocks"),
            *("blocks.0", "blocks.0.mlp", "blocks.0.mlp.1"),
            *("blocks.1", "blocks.1.mlp", "blocks.1.mlp.1"),
        ]

        await pilot.press("escape")
        await settle(app, pilot)
        assert app.explorer.tree_panel.folds == folds

    drive(app, story, size=(120, 16))


def test_matches_are_visited_in_the_order_of_the_sorted_rows() -> None:
    app = ExplorerApp(still(tiny()))
    tree = app.explorer.tree_panel

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("Z", "Z", "1", "1", "slash", *"norm", "enter", "ampersand", "home")
        seen = []
        for key in ("n", "n", "N"):
            await pilot.press(key)
            await settle(app, pilot)
            seen.append((tree.selected.path, tree.row))

        assert [path for path, _ in seen] == ["norm", "last_norm", "norm"]
        assert seen[0][1] < seen[1][1]
        assert "1 of 2" in screen_text(app)

    drive(app, story)


def test_a_search_continues_in_a_replaced_model() -> None:
    training = Training()
    app = ExplorerApp(training.store)

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"probe")
        assert "no matches" in screen_text(app)

        training.store.put_model(two_models()[1])
        while app.is_running and "1 of 1" not in screen_text(app):
            await pilot.pause()
        assert app.explorer.tree_panel.selected.path == "probe"

    drive(app, story)


def test_a_search_does_not_change_the_saved_folds() -> None:
    app = ExplorerApp(still(tiny()))

    async def story(pilot: Pilot[None]) -> None:
        before = app.explorer.preferences.folds
        await pilot.press("slash", *"qkv", "enter")
        await settle(app, pilot)

        assert app.explorer.tree_panel.selected.path == "blocks.0.attention.qkv"
        assert app.explorer.preferences.folds == before

    drive(app, story, size=(120, 16))


def test_a_screenshot_loads_no_external_resources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = ExplorerApp(still(tiny()))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("x")
        await pilot.pause()
        await pilot.press("end", "enter")
        await settle(app, pilot)

    drive(app, story)

    assert "url(" not in (tmp_path / "TinyGPT.svg").read_text(encoding="utf-8").replace("url(#", "")


@pytest.mark.parametrize(
    ("editor", "arguments"),
    [("vim", "+{line} {file}"), ("code --wait", "--wait --goto {file}:{line}")],
)
def test_each_editor_gets_the_line_in_its_own_syntax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, editor: str, arguments: str
) -> None:
    name, *options = editor.split()
    program = tmp_path / name
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path / "asked"}\n')
    program.chmod(0o755)
    monkeypatch.setenv("VISUAL", " ".join([str(program), *options]))
    app = ExplorerApp(still(tiny()))
    # Without a terminal there is none to hand over.
    monkeypatch.setattr(app, "suspend", contextlib.nullcontext)

    assert open_editor(app, "net.py", 12) == ""

    asked = (tmp_path / "asked").read_text().strip()
    assert asked == arguments.format(file="net.py", line=12)


def test_an_incomplete_regex_says_so() -> None:
    app = ExplorerApp(still(tiny()))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("slash")
        app.screen.query_one(Input).value = "re:^blocks\\.[01"
        await settle(app, pilot)
        assert "not a valid regex" in screen_text(app)

        app.screen.query_one(Input).value = "re:^blocks\\.[01]$"
        await settle(app, pilot)
        assert "1 of 2" in screen_text(app)

    drive(app, story)


def test_a_finding_marks_its_module_and_a_new_model_replaces_the_old() -> None:
    training = Training()
    app = ExplorerApp(training.store)

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("down")
        found = Finding(severity="error", kind="nan", message="log of zeros", path="embed")
        training.store.put_document(Findings(findings=(found,)))
        while app.is_running and "embed ✗" not in screen_text(app):
            await pilot.pause()

        training.store.put_model(two_models()[1])
        while app.is_running and "probe" not in screen_text(app):
            await pilot.pause()
        assert app.explorer.tree_panel.selected.path == "embed"

    drive(app, story)


def test_a_comparison_shows_the_changes() -> None:
    before, after = two_models()
    compared = compare(before, after, {"embed.weight": 0.25})
    app = ExplorerApp(ExplorerSource(reader=still(after), comparison=compared))

    async def story(pilot: Pilot[None]) -> None:
        text = screen_text(app)

        assert "weight Δ 0.25" in text
        assert "− removed" in text
        assert "+ added" in text
        assert "weight 100×64 → 120×64" in text

    drive(app, story, size=(160, 40))


def test_changes_can_be_navigated_and_filtered() -> None:
    before, after = two_models()
    compared = compare(before, after, {"embed.weight": 0.25})
    app = ExplorerApp(ExplorerSource(reader=still(after), comparison=compared))

    async def story(pilot: Pilot[None]) -> None:
        tree = app.explorer.tree_panel
        visited = []
        for _ in compared.changes:
            await pilot.press("n")
            visited.append(tree.selected.path)
        assert sorted(visited) == sorted(compared.changes)
        await pilot.press("N")
        assert tree.selected.path == visited[-2]

        rows = tree.tree_rows
        await pilot.press("ampersand")
        await settle(app, pilot)
        shown = {*compared.changes, *compared.below}
        assert len(rows) == len(shown)
        await pilot.press("ampersand")
        await settle(app, pilot)
        assert len(rows) > len(shown)

    drive(app, story, size=(160, 60))


def test_the_theme_can_be_changed_at_runtime() -> None:
    app = app_of_a_run()

    async def story(pilot: Pilot[None]) -> None:
        for theme in ("glass-light", "nord", "ansi-dark", "glass-16", "glass-dark"):
            app.theme = theme
            await settle(app, pilot)
            assert "embed" in screen_text(app)

    drive(app, story)


def test_the_palette_finds_modules_by_any_part_of_their_paths() -> None:
    app = app_of_a_run()

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+p", *"blocks.1")
        while "Go to blocks.1.attention.qkv" not in screen_text(app):
            await pilot.pause()
        text = screen_text(app)
        paths = [line for line in text.splitlines() if "Go to blocks.1" in line]
        assert paths[0].strip(" │▊▎").endswith("Go to blocks.1")

    drive(app, story, size=(100, 60))


def test_palette_commands_have_unique_names() -> None:
    titles = [
        command_title(key)
        for key in all_keys()
        if key.place in {"anywhere", "tree"} and "{key}" not in key.action
    ]

    assert len(titles) == len(set(titles))
    assert all(title[0].isupper() for title in titles)
    assert not any("the same" in title for title in titles)
