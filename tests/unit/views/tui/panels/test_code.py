"""The code of a module's class."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.unit.views.tui.panels import samples
from tests.unit.views.tui.panels.panel_app import (
    PanelApp,
    drive,
    module_at,
    seen,
    settle,
    subject_of,
    text_of,
)
from torchglass.records.trace import OpId
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.panels.code import CodePanel, colored
from torchglass.views.tui.panels.panel import Panel


@pytest.fixture
def state(tmp_path: Path) -> ExplorerState:
    model = samples.coded(tmp_path)
    return subject_of(samples.store(model, samples.traced(str(tmp_path / "net.py"))))


def cursor_line(panel: CodePanel) -> str:
    return "".join(words for words, _ in panel.rows[panel.row].pieces)


def after(panel: CodePanel, path: str = "", *press: str) -> str:
    seen(panel, path, press)
    return cursor_line(panel)


def test_the_code_opens_at_forward(state: ExplorerState) -> None:
    panel = CodePanel(state)

    assert after(panel).endswith("    def forward(self, x):")
    assert panel.place is not None
    assert panel.place[1] == 20


def test_decorators_belong_to_the_class_and_lines_keep_their_numbers(state: ExplorerState) -> None:
    shown = seen(CodePanel(state), press=["home"])

    assert shown.splitlines()[0].split(None, 1) == ["▌13", "@torch.no_grad"]


def test_a_key_goes_to_the_top_of_the_class(state: ExplorerState) -> None:
    assert after(CodePanel(state), "", "t").endswith("class Net(Parent):")


def test_the_whole_file_can_be_shown_and_left(state: ExplorerState) -> None:
    panel = CodePanel(state)

    whole = seen(panel, press=["o", "home"])
    alone = seen(CodePanel(state), press=["o", "o", "home"])

    assert '"""A file with a net in it."""' in whole
    assert "A file with a net" not in alone
    assert "whole file" in panel.subtitle


def test_base_classes_can_be_navigated(state: ExplorerState) -> None:
    panel = CodePanel(state)

    shown = seen(panel, press=["right_square_bracket"])

    assert "class Parent" in shown
    assert panel.subtitle.startswith("inherited from Parent")
    assert "class Net" in seen(
        CodePanel(state), press=["right_square_bracket", "left_square_bracket"]
    )


def test_a_base_class_can_be_opened_in_the_whole_file(state: ExplorerState) -> None:
    assert after(CodePanel(state), "", "o", "right_square_bracket").endswith(
        "class Parent(torch.nn.Module):"
    )


def test_a_base_class_without_source_shows_a_message(state: ExplorerState) -> None:
    assert "not available" in seen(CodePanel(state), press=["right_square_bracket"] * 2)


def test_an_inherited_forward_is_shown_in_its_defining_class(state: ExplorerState) -> None:
    panel = CodePanel(state)

    assert after(panel, "heir").endswith("    def forward(self, x):")
    assert panel.subtitle.startswith("inherited from Net")


def test_lines_that_ran_are_marked(state: ExplorerState) -> None:
    marked = [line for line in seen(CodePanel(state)).splitlines() if "•" in line]

    assert [line.split()[0] for line in marked] == ["21", "22"]


def test_the_line_of_the_selected_op_is_highlighted(state: ExplorerState) -> None:
    panel = CodePanel(state)

    async def story(pilot: Pilot[None]) -> None:
        panel.pick(OpId(4))
        await pilot.pause()

    drive(PanelApp(panel), story)

    assert "torch.relu(y)" in cursor_line(panel)
    assert [row.tone for row in panel.rows].count("marked") == 1


def test_a_line_lists_the_ops_it_ran(state: ExplorerState) -> None:
    panel = CodePanel(state)
    app = PanelApp(panel)

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("down", "enter", "up", "enter")

    drive(app, story)

    assert [message.op for message in app.heard if isinstance(message, Panel.Picked)] == [1]


def test_the_code_follows_the_module_selected_in_the_tree(state: ExplorerState) -> None:
    panel = CodePanel(state)
    app = PanelApp(panel)

    async def story(pilot: Pilot[None]) -> None:
        panel.show(module_at(state, "layer"))
        await settle(app, pilot)
        assert "The code of Linear is not available" in text_of(panel.rows)
        panel.show(module_at(state, "heir"))
        await settle(app, pilot)

    drive(app, story)

    assert len(panel.rows) == 10


def test_brackets_in_code_are_not_markup(state: ExplorerState) -> None:
    assert "# [b]not markup[/b]" in seen(CodePanel(state), press=["t"])


def test_highlighting_keeps_all_text() -> None:
    code = 'class A:\n\tx = "a\nb" # \x07\n\n\ndef f(:\n'

    lines = ["".join(words for words, _ in line) for line in colored(code)]

    assert lines == ["class A:", '    x = "a', 'b" # \\x07', "", "", "def f(:"]


def test_keywords_names_and_strings_have_their_own_styles() -> None:
    (line,) = colored("def f(self): return 'a' + 1  # why")

    styles = dict(line)
    assert styles["def"] == "keyword"
    assert styles["f"] == "definition"
    assert styles["1"] == "literal"
    assert styles["# why"] == "comment"
