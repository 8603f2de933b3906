"""A live module opened in a panel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from textual.pilot import Pilot
from torch import nn

from tests.unit.views.tui.panels import samples
from tests.unit.views.tui.panels.live_models import panel_of
from tests.unit.views.tui.panels.panel_app import PanelApp, drive, seen, settle, subject_of, text_of
from torchglass.capture.live_object import StoredObject
from torchglass.capture.model.checkpoints import StoredTensors, read_checkpoint
from torchglass.records.model import Attribute, AttributeId, Page
from torchglass.views.tui.panels.attributes import AttributeNode, AttributesPanel, page_ranges
from torchglass.views.tui.panels.panel import Panel


class Net(nn.Module):
    """A little of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.numbers = list(range(100_000))
        self.mixed = {1: "[b]one[/b]", None: [7, "seven"]}
        self.me = [self]
        self.called = 0

    @property
    def device(self) -> str:
        self.called += 1
        return "cpu [/red]"

    @property
    def broken(self) -> str:
        raise RuntimeError("not\nnow")


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def line(shown: str, name: str) -> str:
    return next(line for line in shown.splitlines() if name in line)


def test_every_attribute_has_a_line(net: Net) -> None:
    shown = seen(panel_of(net))

    assert "▸ layer" in shown
    assert "100,000 items" in line(shown, "numbers")
    assert "property, called when opened" in line(shown, "device")
    assert net.called == 0


def test_a_property_is_called_when_it_is_opened(net: Net) -> None:
    panel = panel_of(net)
    row = 6

    shown = seen(panel, press=["j"] * row + ["l"])

    assert "str 'cpu [/red]'" in line(shown, "device")
    assert net.called == 1


def test_a_property_that_raises_shows_its_exception(net: Net) -> None:
    shown = seen(panel_of(net), press=["end", "enter"])

    assert "RuntimeError: not now" in line(shown, "broken")


def test_a_long_list_opens_in_pages(net: Net) -> None:
    panel = panel_of(net)

    shown = seen(panel, press=["j", "j", "l", "j", "l", "j", "l"], size=(60, 40))

    assert "▾ [0 … 9,999]" in shown
    assert "▾ [0 … 99]" in shown
    assert "[4]" in shown


def test_a_dict_of_mixed_keys_opens(net: Net) -> None:
    shown = seen(panel_of(net), press=["j"] * 3 + ["l"])

    assert "str '[b]one[/b]'" in line(shown, "[1]")
    assert "2 items" in line(shown, "[None]")


def test_a_circular_reference_is_marked(net: Net) -> None:
    shown = seen(panel_of(net), press=["j"] * 4 + ["l"])

    assert "Net (contains this)" in line(shown, "[0]")


def test_closing_a_branch_returns_to_its_parent(net: Net) -> None:
    panel = panel_of(net)
    app = PanelApp(panel)
    rows = []

    async def story(pilot: Pilot[None]) -> None:
        for key in ("j", "j", "j", "l", "l", "h", "h"):
            await pilot.press(key)
            await settle(app, pilot)
            rows.append((panel.row, len(panel.rows)))
        await pilot.press("h")

    drive(app, story)

    assert rows[3:] == [(3, 10), (4, 10), (3, 10), (3, 8)]
    assert isinstance(app.heard[-1], Panel.Leave)


def test_a_module_can_be_opened_in_place_or_in_the_tree(net: Net) -> None:
    panel = panel_of(net)
    app = PanelApp(panel)

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("l")
        await settle(app, pilot)
        assert "in_features" in text_of(panel.rows)
        await pilot.press("enter")

    drive(app, story)

    assert [message.path for message in app.heard if isinstance(message, Panel.Jump)] == ["layer"]


def test_a_nested_module_can_be_opened_in_the_tree(net: Net) -> None:
    panel = panel_of(nn.Sequential(nn.Sequential(net)))
    app = PanelApp(panel)

    async def story(pilot: Pilot[None]) -> None:
        for key in ("l", "j", "l", "j", "enter"):
            await pilot.press(key)
            await settle(app, pilot)

    drive(app, story)

    assert [message.path for message in app.heard if isinstance(message, Panel.Jump)] == [
        "0.0.layer"
    ]


def test_a_long_text_can_be_opened(net: Net) -> None:
    lines = [f"[b]line {at}[/b]" for at in range(40)]
    net.layer.card = "\n".join(["# A card", "", *lines])  # type: ignore[assignment]
    panel = panel_of(net)

    shown = seen(panel, "layer", ["end", "enter"])
    at_end = seen(panel_of(net), "layer", ["end", "enter", "end"])

    assert shown.splitlines()[0].strip() == "# A card"
    assert "[b]line 20[/b]" in shown
    assert panel.subtitle == "57% · layer.card"
    assert "[b]line 39[/b]" in at_end
    assert "▸ card" in seen(panel_of(net), "layer", ["end", "enter", "h"])


def test_checkpoint_modules_open_down_to_their_values(tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    save_file({"body.layer.weight": torch.full((2, 3), 7.0)}, file)
    model = read_checkpoint(file)
    state = subject_of(samples.store(model), StoredObject(model, StoredTensors(file)))

    shown = seen(AttributesPanel(state), press=["l", "j", "l", "j", "enter"])

    assert "weight  2×3 float32 24 B" in shown
    assert "min 7  max 7  mean 7" in shown


def test_a_key_shows_private_names(net: Net) -> None:
    assert "_forward_hooks" in seen(panel_of(net), press=["full_stop"], size=(80, 60))


def test_changed_attributes_are_reloaded(net: Net) -> None:
    panel = panel_of(net)
    app = PanelApp(panel)

    async def story(pilot: Pilot[None]) -> None:
        net.called = 41
        await pilot.press("r")
        await settle(app, pilot)

    drive(app, story)

    assert "int 41" in text_of(panel.rows)


def test_without_a_live_model_the_panel_says_what_to_do() -> None:
    assert "tg.explore(model)" in seen(AttributesPanel(subject_of(samples.store())))


def test_a_list_has_at_most_one_page_of_ranges() -> None:
    for count in (101, 9_999, 10_001, 1_000_001):
        parts = page_ranges(range(count))

        assert len(parts) <= 100
        assert parts[0][0] == 0
        assert parts[-1][-1] == count - 1


def test_a_nested_range_keeps_its_absolute_indices() -> None:
    attribute = Attribute(id=AttributeId(0), name="list", opens=True)
    branch = AttributeNode(attribute)
    branch.grow(Page(total=20_000))

    second = branch.below[1]
    second.grow(Page(total=20_000))

    assert second.below[3].items == range(10_300, 10_400)
