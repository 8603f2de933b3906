"""The list of what is wrong."""

from __future__ import annotations

from pathlib import Path

from textual.pilot import Pilot

from tests.unit.views.tui.panels import samples
from tests.unit.views.tui.panels.panel_app import (
    PanelApp,
    catch_up,
    drive,
    seen,
    settle,
    subject_of,
)
from torchglass.records.findings import Finding, Findings
from torchglass.views.tui.panels.findings import FindingsPanel
from torchglass.views.tui.panels.panel import Panel


def panel_of(found: Findings) -> FindingsPanel:
    return FindingsPanel(subject_of(samples.store(None, found)))


def test_each_problem_has_a_message_and_a_path() -> None:
    panel = panel_of(samples.findings())

    shown = seen(panel)

    assert "✗ sqrt produced 3 NaN [/red]" in shown
    assert "blocks.0.fc · call 2 · sqrt · step 7" in shown
    assert "! half of the units are dead" in shown
    assert "the model · backward" in shown
    assert panel.subtitle == "1 error, 1 warning, 1 note"


def test_problems_inside_the_module_come_first() -> None:
    shown = seen(panel_of(samples.findings()), "blocks.1")

    assert shown.splitlines()[0].startswith("▌! half of the units")
    assert shown.index("in other modules") < shown.index("sqrt produced")


def test_the_cursor_moves_between_problems_and_enter_opens_the_module() -> None:
    app = PanelApp(panel_of(samples.findings()))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("enter", "down", "enter", "down", "down", "enter", "up", "enter")

    drive(app, story)

    jumps = [message.path for message in app.heard if isinstance(message, Panel.Jump)]
    assert jumps == ["blocks.0.fc", "blocks.1", "", "blocks.1"]


def test_a_key_shows_all_details_of_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(samples.CODE, encoding="utf-8")
    found = samples.findings(str(file))

    shown = seen(panel_of(found), press=["space"], size=(160, 40))
    again = seen(panel_of(found), press=["space", "space"])

    assert "why: input goes down to -3" in shown
    assert "net.py:21 in forward" in shown
    assert "y = self.layer(x)" in shown
    assert "result  2×4  float32  -1 … 3  3 NaN" in shown
    assert "why:" not in again


def test_a_model_without_problems_says_so() -> None:
    assert "No problems found in this forward" in seen(panel_of(Findings()))


def test_a_run_without_problems_names_the_last_checked_step() -> None:
    run = samples.store()
    samples.train(run, range(174))

    assert "No problems found up to step 173." in seen(FindingsPanel(subject_of(run)))


def test_a_list_of_ten_thousand_problems_is_shortened() -> None:
    one = Finding(severity="info", kind="x", message="again")
    panel = panel_of(Findings(findings=(one,) * 10_000))

    assert "and 9,000 more" in seen(panel, press=["end"])
    assert panel.subtitle == "1,000/1,000 · 10,000 notes"


def test_new_problems_are_shown() -> None:
    run = samples.store(None, Findings())
    state = subject_of(run)
    panel = FindingsPanel(state)
    app = PanelApp(panel)

    async def story(pilot: Pilot[None]) -> None:
        run.put_document(samples.findings())
        catch_up(state, run)
        panel.refresh_data()
        await settle(app, pilot)

    drive(app, story)

    assert panel.subtitle == "1 error, 1 warning, 1 note"
