"""A live module opened in a panel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from textual.pilot import Pilot
from torch import nn

from tests.unit.views.tui.panels import samples
from tests.unit.views.tui.panels.showing import PanelApp, drive, seen, settle, subject_of, text_of
from torchglass.capture.attributes.live import LiveObject
from torchglass.capture.model.structure import read_model
from torchglass.records.attributes import Attribute, AttributeId, Page
from torchglass.views.tui.panels.attributes import Attributes
from torchglass.views.tui.panels.branches import Branch, stretches
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


def panel_of(net: nn.Module, recorded: Any = None) -> Attributes:
    live = LiveObject(net, recorded)
    return Attributes(subject_of(samples.store(read_model(net)), live))


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


def test_a_property_that_raises_says_what(net: Net) -> None:
    shown = seen(panel_of(net), press=["end", "enter"])

    assert "RuntimeError: not now" in line(shown, "broken")


def test_a_long_list_opens_in_stretches(net: Net) -> None:
    panel = panel_of(net)

    shown = seen(panel, press=["j", "j", "l", "j", "l", "j", "l"], size=(60, 40))

    assert "▾ [0 … 9,999]" in shown
    assert "▾ [0 … 99]" in shown
    assert "[4]" in shown


def test_a_dict_of_mixed_keys_opens(net: Net) -> None:
    shown = seen(panel_of(net), press=["j"] * 3 + ["l"])

    assert "str '[b]one[/b]'" in line(shown, "[1]")
    assert "2 items" in line(shown, "[None]")


def test_a_circle_is_told(net: Net) -> None:
    shown = seen(panel_of(net), press=["j"] * 4 + ["l"])

    assert "Net (holds this)" in line(shown, "[0]")


def test_branches_close_and_lead_back_to_what_holds_them(net: Net) -> None:
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


def test_a_module_is_gone_to_in_the_tree_or_opened_here(net: Net) -> None:
    panel = panel_of(net)
    app = PanelApp(panel)

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("l")
        await settle(app, pilot)
        assert "in_features" in text_of(panel.rows)
        await pilot.press("enter")

    drive(app, story)

    assert [message.path for message in app.heard if isinstance(message, Panel.Jump)] == ["layer"]


def test_private_names_are_a_key_away(net: Net) -> None:
    assert "_forward_hooks" in seen(panel_of(net), press=["full_stop"], size=(80, 60))


def test_what_changed_is_read_anew(net: Net) -> None:
    panel = panel_of(net)
    app = PanelApp(panel)

    async def story(pilot: Pilot[None]) -> None:
        net.called = 41
        await pilot.press("r")
        await settle(app, pilot)

    drive(app, story)

    assert "int 41" in text_of(panel.rows)


def test_without_a_live_model_it_says_what_to_do() -> None:
    assert "tg.explore(model)" in seen(Attributes(subject_of(samples.store())))


def test_a_tensor_opens_into_its_numbers(net: Net) -> None:
    with torch.no_grad():
        net.layer.weight.copy_(torch.tensor([[1.0, -2.0], [0.0, float("nan")], [3.5, 4.25]]))

    shown = seen(panel_of(net), "layer", ["enter"])

    assert "weight  3×2 float32 24 B cpu" in shown
    assert "stride (2, 1) · requires grad" in shown
    assert "min -2  max 4.25  mean 1.35" in shown
    assert "1 NaN" in shown
    assert "0           1         -2" in shown
    assert "1           0        nan" in shown


def test_the_viewer_closes_where_it_was_opened(net: Net) -> None:
    panel = panel_of(net)
    app = PanelApp(panel, "layer")

    async def story(pilot: Pilot[None]) -> None:
        for key in ("j", "enter", "escape"):
            await pilot.press(key)
            await settle(app, pilot)

    drive(app, story)

    assert panel.row == 1
    assert panel.places == ("panel", "panel:attributes")
    assert not app.heard


def test_slices_are_browsed_through(net: Net) -> None:
    maps = torch.arange(24.0).reshape(1, 2, 3, 4)
    recorded = {"layer": {"output": maps}}

    first = seen(panel_of(net, recorded), "layer", ["enter"])
    second = seen(panel_of(net, recorded), "layer", ["enter", "right_square_bracket"])
    around = seen(panel_of(net, recorded), "layer", ["enter"] + ["left_square_bracket"] * 2)

    assert "[0, 0, :, :]  1 of 2" in first
    assert "recorded" in seen(panel_of(net, recorded), "layer")
    assert "[0, 1, :, :]  2 of 2" in second
    assert "12         13         14         15" in second
    assert "1 of 2" in around


def test_dimensions_and_axes_are_chosen(net: Net) -> None:
    recorded = {"layer": {"output": torch.zeros(5, 6, 7)}}

    turned = seen(panel_of(net, recorded), "layer", ["enter", "t"])

    assert "[:, :, 0]  1 of 7" in turned


def test_columns_are_panned_through(net: Net) -> None:
    recorded = {"layer": {"output": torch.arange(100.0)}}

    shown = seen(panel_of(net, recorded), "layer", ["enter", "l", "l", "l", "h"])

    assert "\n 0           2          3          4          5" in shown


def test_a_tensor_is_seen_as_a_picture_and_its_slices_as_a_sheet(net: Net) -> None:
    recorded = {"layer": {"output": torch.randn(9, 6, 6)}}

    picture = seen(panel_of(net, recorded), "layer", ["enter", "enter"])
    sheet = seen(panel_of(net, recorded), "layer", ["enter", "enter", "enter"])

    assert picture.count("▀") > 100
    assert "1 of 9" in picture
    assert "slices 0 – 8 of 9" in sheet


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((6, 24, 24), "slices 0 – 5 of 6"),
        ((4_000, 3, 3), "slices 0 – 208 of 4,000"),
        ((3, 1, 500), "slices 0 – 2 of 3"),
    ],
)
def test_a_sheet_shows_as_many_slices_as_can_be_told_apart(
    net: Net, shape: tuple[int, ...], words: str
) -> None:
    recorded = {"layer": {"output": torch.zeros(shape)}}

    assert words in seen(panel_of(net, recorded), "layer", ["enter", "enter", "enter"])


def test_a_sheet_is_turned_like_a_page(net: Net) -> None:
    recorded = {"layer": {"output": torch.zeros(4_000, 3, 3)}}
    sheet = ["enter", "enter", "enter"]
    forth, back = "right_square_bracket", "left_square_bracket"

    assert "slices 209 – 417 of" in seen(panel_of(net, recorded), "layer", [*sheet, forth])
    assert "slices 0 – 208 of" in seen(panel_of(net, recorded), "layer", [*sheet, forth, back])


def test_a_tensor_without_numbers_says_why(net: Net) -> None:
    recorded = {"layer": {"output": torch.zeros(3, device="meta")}}

    assert "it lies on meta" in seen(panel_of(net, recorded), "layer", ["enter"])


def test_stretches_are_never_more_than_a_page() -> None:
    for count in (101, 9_999, 10_001, 1_000_001):
        parts = stretches(range(count))

        assert len(parts) <= 100
        assert parts[0][0] == 0
        assert parts[-1][-1] == count - 1


def test_a_stretch_of_a_stretch_is_asked_for_by_its_place() -> None:
    attribute = Attribute(id=AttributeId(0), name="list", opens=True)
    branch = Branch(attribute)
    branch.grow(Page(total=20_000))

    second = branch.below[1]
    second.grow(Page(total=20_000))

    assert second.below[3].wanted == range(10_300, 10_400)
