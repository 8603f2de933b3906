"""Walking along the ops of a pass."""

from __future__ import annotations

from textual.pilot import Pilot

from tests.unit.views.tui.panels import samples
from tests.unit.views.tui.panels.panel_app import PanelApp, drive, seen, settle, subject_of, text_of
from torchglass.records.trace import OpId, TraceRecord
from torchglass.views.tui.panels.op_flow import TensorFlowPanel
from torchglass.views.tui.panels.panel import Panel


def panel_of(trace: TraceRecord | None = None) -> TensorFlowPanel:
    return TensorFlowPanel(subject_of(samples.store(None, trace or samples.traced())))


def test_the_ops_inside_a_module_are_listed_in_order() -> None:
    shown = seen(panel_of(), "blocks.0").splitlines()

    assert shown[0].split() == ["▌linear_1_1", "2×3", "1.50μs", "fc"]
    assert shown[1].split()[0] == "relu_1_2"
    assert shown[2] == ""


def test_an_op_opens_with_its_parents_and_children() -> None:
    shown = seen(panel_of(), "blocks.0", ["enter"])

    assert "linear_1_1  in blocks.0.fc" in shown
    assert "linear(bias=None)" in shown
    assert "net.py:21 in forward" in shown
    assert "←  input_1_0           2×3  input" in shown
    assert "←  blocks.0.fc.weight  4×4  weight" in shown
    assert "→  relu_1_2  2×3  blocks.0" in shown
    assert "→  add_1_4   2×3" in shown


def test_ops_can_be_navigated_and_back() -> None:
    panel = panel_of()
    app = PanelApp(panel, "blocks.0")
    heads = []

    async def story(pilot: Pilot[None]) -> None:
        for key in (
            "enter",
            "right_square_bracket",
            "right_square_bracket",
            "left",
            "left",
            "left",
        ):
            await pilot.press(key)
            await settle(app, pilot)
            heads.append(text_of(panel.rows[:1]).split()[0])
        await pilot.press("left")

    drive(app, story)

    assert heads == ["linear_1_1", "relu_1_2", "linear_2_3", "relu_1_2", "linear_1_1", "linear_1_1"]
    assert isinstance(app.heard[-1], Panel.Leave)


def test_a_key_goes_to_the_parents() -> None:
    shown = seen(panel_of(), "blocks.0", ["j", "left_square_bracket"])

    assert shown.splitlines()[0].startswith(" linear_1_1  in blocks.0.fc")


def test_the_cursor_starts_at_a_link_and_enter_follows_it() -> None:
    panel = panel_of()
    app = PanelApp(panel, "blocks.0")

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("enter", "enter")
        await settle(app, pilot)

    drive(app, story)

    assert text_of(panel.rows[:1]) == "input_1_0  in the model itself"


def test_a_parameter_links_to_its_module() -> None:
    app = PanelApp(panel_of(), "blocks.0")

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("enter", "down", "enter")

    drive(app, story)

    jumps = [message.path for message in app.heard if isinstance(message, Panel.Jump)]
    assert jumps == ["blocks.0.fc"]


def test_the_module_of_an_op_can_be_opened() -> None:
    app = PanelApp(panel_of(), "")

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("down", "down", "g")

    drive(app, story)

    jumps = [message.path for message in app.heard if isinstance(message, Panel.Jump)]
    assert jumps == ["blocks.0"]


def test_the_other_panels_are_notified_of_the_selected_op() -> None:
    app = PanelApp(panel_of(), "")

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("down", "down")

    drive(app, story)

    assert [message.op for message in app.heard if isinstance(message, Panel.Picked)] == [1, 2]


def test_an_op_selected_in_another_panel_is_selected_here() -> None:
    panel = panel_of()

    async def story(pilot: Pilot[None]) -> None:
        panel.pick(OpId(4))

    drive(PanelApp(panel, ""), story)

    assert panel.row == 4


def test_a_module_without_ops_says_so() -> None:
    assert "norm did not run in the traced forward." in seen(panel_of(), "norm")


def test_only_visible_rows_of_a_long_trace_are_drawn() -> None:
    panel = panel_of(samples.long_pass(20_000))

    assert "relu_20000_19999" in seen(panel, "", ["end"])
    assert panel.subtitle == "20,000/20,000"


def test_the_same_trace_is_worked_out_once() -> None:
    state = subject_of(samples.store(None, samples.traced()))

    assert state.traced_forward is state.traced_forward
