"""One tensor: its slices, values, statistics and pictures."""

from __future__ import annotations

import doctest
import threading

import numpy as np
import numpy.typing as npt
import pytest
import torch
from textual.pilot import Pilot
from torch import nn

from tests.unit.views.tui.panels.live_models import panel_of
from tests.unit.views.tui.panels.panel_app import PanelApp, drive, seen, settle, text_of
from torchglass.records.model import Index
from torchglass.views.tui.panels import tensor_slice
from torchglass.views.tui.panels.tensor_slice import TensorSlice, channels_of, read_slice
from torchglass.views.tui.panels.tensor_viewer import TensorPicture
from torchglass.views.tui.styled_text import TextRow


class Net(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def test_a_tensor_opens_into_its_values(net: Net) -> None:
    with torch.no_grad():
        net.layer.weight.copy_(torch.tensor([[1.0, -2.0], [0.0, float("nan")], [3.5, 4.25]]))

    shown = seen(panel_of(net), "layer", ["enter"])

    assert "weight  3×2 float32 24 B cpu" in shown
    assert "stride (2, 1) · requires grad" in shown
    assert "min -2  max 4.25  mean 1.35" in shown
    assert "1 NaN" in shown
    assert "0           1         -2" in shown
    assert "1           0        nan" in shown


def test_the_title_shows_the_path_of_the_tensor(net: Net) -> None:
    net.layer.kept = {"a": [torch.zeros(2)]}  # type: ignore[assignment]
    panel = panel_of(net, {})

    seen(panel, "layer", ["end", "l", "j", "l", "j", "enter"])

    assert panel.subtitle == "layer.kept['a'][0]"


def test_closing_the_viewer_returns_to_where_it_was_opened(net: Net) -> None:
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


def test_slices_can_be_browsed(net: Net) -> None:
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


def test_dimensions_and_axes_can_be_selected(net: Net) -> None:
    recorded = {"layer": {"output": torch.zeros(5, 6, 7)}}

    turned = seen(panel_of(net, recorded), "layer", ["enter", "t"])

    assert "[:, :, 0]  1 of 7" in turned


def typed(words: str) -> list[str]:
    """The keys that ask for a slice and type it, in place of what stands there."""
    letters = {",": "comma", ":": "colon", " ": "space", "[": "left_square_bracket"}
    return ["s", "home", "ctrl+k", *(letters.get(letter, letter) for letter in words), "enter"]


def test_a_slice_can_be_typed(net: Net) -> None:
    recorded = {"layer": {"output": torch.arange(120.0).reshape(2, 3, 4, 5)}}

    shown = seen(panel_of(net, recorded), "layer", ["enter", *typed("1,2,1:3,::2")])

    assert "[1, 2, 1:3, ::2]" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["0", "2", "4"] in lines
    assert ["1", "105", "107", "109"] in lines
    assert ["2", "110", "112", "114"] in lines


def test_statistics_cover_only_the_typed_slice(net: Net) -> None:
    recorded = {"layer": {"output": torch.arange(120.0).reshape(2, 3, 4, 5)}}

    whole = seen(panel_of(net, recorded), "layer", ["enter"])
    part = seen(panel_of(net, recorded), "layer", ["enter", *typed("1,:,1:3,::2")])
    again = seen(panel_of(net, recorded), "layer", ["enter", *typed("1"), *typed("...")])

    assert "min 0  max 119  mean 59.5  std 34.79  of 120\n" in _trimmed(whole)
    assert "min 65  max 114  mean 89.5" in part
    assert "of 18 in [1, :, 1:3, ::2]" in part
    assert "of 120\n" in _trimmed(again)


def test_statistics_follow_browsing_from_a_typed_slice(net: Net) -> None:
    recorded = {"layer": {"output": torch.arange(24.0).reshape(2, 3, 4)}}

    shown = seen(panel_of(net, recorded), "layer", ["enter", *typed("0"), "right_square_bracket"])

    assert "[1, :, :]  2 of 2" in shown
    assert "min 12  max 23" in shown
    assert "of 12 in [1, :, :]" in shown


def test_browsing_a_whole_tensor_keeps_its_full_statistics(net: Net) -> None:
    recorded = {"layer": {"output": torch.arange(24.0).reshape(2, 3, 4)}}

    shown = seen(panel_of(net, recorded), "layer", ["enter", "right_square_bracket"])

    assert "[1, :, :]  2 of 2" in shown
    assert "min 0  max 23" in shown


def _trimmed(shown: str) -> str:
    return "\n".join(line.rstrip() for line in shown.splitlines())


@pytest.mark.parametrize("leave", ["escape", "another module"])
def test_measuring_a_huge_tensor_can_be_canceled(net: Net, leave: str) -> None:
    # Numbers that take minutes to measure, in the memory of two.
    panel = panel_of(net, {"layer": {"output": torch.tensor([0.0, 1.0]).expand(1 << 35, 2)}})
    app = PanelApp(panel, "layer")

    async def story(pilot: Pilot[None]) -> None:
        resting = threading.active_count()
        await pilot.press("enter")
        while "Measuring" not in text_of(panel.top()):
            await pilot.pause(0.01)
        assert "Esc cancel" in text_of(panel.top())

        if leave == "escape":
            await pilot.press("escape")
        else:
            panel.show(panel.state.model.root)
        await settle(app, pilot)
        assert "Measuring" not in text_of(panel.top())
        while threading.active_count() > resting:
            await pilot.pause(0.01)

    drive(app, story)


def test_an_invalid_slice_says_why_and_can_be_corrected(net: Net) -> None:
    recorded = {"layer": {"output": torch.arange(24.0).reshape(2, 3, 4)}}
    wrong = typed("9")

    bad = seen(panel_of(net, recorded), "layer", ["enter", *wrong])
    better = seen(panel_of(net, recorded), "layer", ["enter", *wrong, "backspace", "1", "enter"])
    given_up = seen(panel_of(net, recorded), "layer", ["enter", *wrong, "escape"])

    assert "Slice of output 2×3×4" in bad
    assert "index 9 is out of range: dimension 0 has size 2" in bad
    assert "[1, :, :]  2 of 2" in better
    assert "[0, :, :]  1 of 2" in given_up


def test_the_view_of_a_tensor_is_remembered(net: Net) -> None:
    recorded = {"layer": {"a": torch.zeros(2, 3, 4), "b": torch.zeros(2, 3, 4)}}
    panel = panel_of(net, recorded)

    shown = seen(
        panel, "layer", ["enter", *typed("1,:,1:3"), "escape", "j", "enter", "escape", "k", "enter"]
    )

    assert "[1, :, 1:3]  2 of 2" in shown
    assert "[0, :, :]  1 of 2" in seen(panel_of(net, recorded), "layer", ["j", "enter"])


def test_the_view_is_not_reused_for_a_tensor_of_another_shape(net: Net) -> None:
    panel = panel_of(net)
    app = PanelApp(panel, "layer")

    async def story(pilot: Pilot[None]) -> None:
        for key in ("enter", *typed("1"), "escape"):
            await pilot.press(key)
            await settle(app, pilot)
        net.layer.weight = nn.Parameter(torch.zeros(1, 2))
        for key in ("r", "enter"):
            await pilot.press(key)
            await settle(app, pilot)

    drive(app, story)

    assert "[:, :]" in text_of(panel.rows)


def test_three_channels_are_shown_as_rgb(net: Net) -> None:
    recorded = {"layer": {"output": torch.rand(3, 16, 16)}}

    colored = seen(panel_of(net, recorded), "layer", ["enter", "enter"])
    channel = seen(panel_of(net, recorded), "layer", ["enter", "enter", "r"])

    assert "[:, :, :]" in colored
    assert "0 … 1 as red, green and blue" in colored
    assert "[0, :, :]  1 of 3" in channel


def test_only_applicable_keys_are_offered(net: Net) -> None:
    recorded = {
        "layer": {
            "picture": torch.rand(3, 16, 16),
            "vector": torch.rand(3),
            "nothing": torch.zeros(0),
        }
    }
    places = []

    for number in range(3):
        panel = panel_of(net, recorded)
        seen(panel, "layer", ["j"] * number + ["enter"])
        places.append([place.removeprefix("panel:") for place in panel.places])

    assert places == [
        ["panel", "picture", "colors", "slices", "tensor"],
        ["panel", "tensor"],
        ["panel"],
    ]


@pytest.mark.parametrize("without", ["color", "many colors"])
def test_an_image_is_drawn_in_grayscale_with_few_colors(
    net: Net, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = {"layer": {"output": torch.tensor([[-1.0, 0.0], [float("nan"), 1.0]] * 2)}}
    if without == "color":
        monkeypatch.setenv("NO_COLOR", "1")
    theme = "glass-16" if without == "many colors" else "glass-dark"

    shown = seen(panel_of(net, recorded), "layer", ["enter", "enter"], theme=theme)

    assert {"░", "▒", "█", "×"} <= set(shown)
    assert "▀" not in shown


def test_columns_can_be_panned(net: Net) -> None:
    recorded = {"layer": {"output": torch.arange(100.0)}}

    shown = seen(panel_of(net, recorded), "layer", ["enter", "l", "l", "l", "h"])

    assert "\n 0           2          3          4          5" in shown


def test_a_tensor_is_shown_as_an_image_and_its_slices_as_a_contact_sheet(net: Net) -> None:
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
def test_a_contact_sheet_shows_as_many_slices_as_are_legible(
    net: Net, shape: tuple[int, ...], words: str
) -> None:
    recorded = {"layer": {"output": torch.zeros(shape)}}

    assert words in seen(panel_of(net, recorded), "layer", ["enter", "enter", "enter"])


def test_a_contact_sheet_has_pages(net: Net) -> None:
    recorded = {"layer": {"output": torch.zeros(4_000, 3, 3)}}
    sheet = ["enter", "enter", "enter"]
    forth, back = "right_square_bracket", "left_square_bracket"

    assert "slices 209 – 417 of" in seen(panel_of(net, recorded), "layer", [*sheet, forth])
    assert "slices 0 – 208 of" in seen(panel_of(net, recorded), "layer", [*sheet, forth, back])


def test_a_tensor_without_values_says_why(net: Net) -> None:
    recorded = {"layer": {"output": torch.zeros(3, device="meta")}}

    assert "the tensor is on the meta device" in seen(panel_of(net, recorded), "layer", ["enter"])


SHAPE = (8, 3, 5, 6)


def look_at(words: str, shape: tuple[int, ...] = SHAPE) -> TensorSlice:
    look = TensorSlice(shape)
    look.take(read_slice(words, shape))
    return look


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "[0, 0, :, :]"),
        ("[]", "[0, 0, :, :]"),
        ("2", "[2, 0, :, :]"),
        ("[2, 1]", "[2, 1, :, :]"),
        (" [ 2,1 , : ,3:6] ", "[2, 1, :, 3:]"),
        ("2, 1, 1:4, 0", "[2, 1, 1:4, 0]"),
        ("-1, -1, ::2", "[7, 2, ::2, :]"),
        ("..., 4", "[0, :, :, 4]"),
        ("1, ..., 2:4", "[1, 0, :, 2:4]"),
        ("1, 1, 1, 1", "[1, 1, 1, 1]"),
        ("1, 1, -3:-1,", "[1, 1, 2:4, :]"),
        ("0, 0, :99", "[0, 0, :, :]"),
    ],
)
def test_a_slice_is_parsed_like_python(words: str, text: str) -> None:
    assert look_at(words).text == text


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("1, 2, 3, 4, 5", "Too many indices: 5 for 4 dimensions"),
        ("9", "index 9 is out of range: dimension 0 has size 8"),
        ("0, -4", "index -4 is out of range: dimension 1 has size 3"),
        ("0, x", "“x” is not an index"),
        ("0,,1", "“” is not an index"),
        ("1.5", "“1.5” is not an index"),
        ("4:4", "“4:4” is empty: dimension 0 has size 8"),
        ("::0", "the step in “::0” must be 1 or more"),
        ("::-1", "the step in “::-1” must be 1 or more"),
        ("..., ...", "Use “...” only once"),
    ],
)
def test_an_invalid_slice_error_names_the_problem(words: str, problem: str) -> None:
    with pytest.raises(ValueError, match="^" + problem.replace(".", r"\.")):
        read_slice(words, SHAPE)


def test_a_scalar_tensor_has_no_dimensions() -> None:
    assert read_slice("", ()) == ()
    with pytest.raises(ValueError, match="Too many indices: 1 for 0 dimensions"):
        read_slice("0", ())


def test_the_last_two_slices_are_rows_and_columns_and_the_one_before_is_browsed() -> None:
    look = look_at("2:6:2, :, 0")

    assert (look.shown, look.moving) == ((1, 3), 0)
    assert look.position == (0, 2)
    look.browse(1)
    assert look.text == "[4, :, 0, :]"
    look.browse(1)
    assert look.text == "[2, :, 0, :]"


def test_row_and_column_indices_refer_to_the_tensor() -> None:
    look = look_at("2, 1, 1:4, ::2")

    assert look.sides == (range(1, 4), range(0, 6, 2))
    assert look.extent == (3, 3)


def test_a_tensor_without_rows_has_no_image() -> None:
    look = look_at("2")
    look.next_mode()

    look.take(read_slice("2, 1, 0", SHAPE))

    assert look.mode == "numbers"
    assert look.modes == ("numbers",)
    assert look.extent == (1, 6)


def test_axes_can_be_swapped_after_selecting_a_single_element() -> None:
    look = look_at("1, 1, 1, 1")

    look.turn()

    assert look.text == "[:, :, 1, 1]"


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        ((3, 32, 32), 0),
        ((4, 3, 8, 8), 1),
        ((32, 32, 3), 2),
        ((2, 16, 24, 3), 3),
        ((64, 64, 3, 3), None),
        ((32, 32), None),
        ((3,), None),
        ((4, 8, 8), None),
    ],
)
def test_the_rgb_dimension_can_be_first_or_last(
    shape: tuple[int, ...], channels: int | None
) -> None:
    assert channels_of(shape) == channels


def test_rgb_channels_are_shown_together_or_separately() -> None:
    look = TensorSlice((2, 16, 24, 3), colored=True)
    look.next_mode()

    assert (look.is_colored, look.text, look.seen) == (True, "[0, :, :, :]", (1, 2))
    assert look.modes == ("numbers", "picture", "sheet")
    look.turn_colors()
    assert (look.is_colored, look.text) == (False, "[0, 0, :, :]")


def test_toggling_rgb_on_values_switches_to_an_image() -> None:
    look = TensorSlice((3, 16, 24))

    look.turn_colors()

    assert (look.mode, look.is_colored, look.moving) == ("picture", True, None)
    assert look.modes == ("numbers", "picture")


def test_toggling_rgb_on_a_contact_sheet_switches_to_one_image() -> None:
    look = TensorSlice((3, 16, 24))
    look.next_mode()
    look.next_mode()

    look.turn_colors()

    assert (look.mode, look.is_colored) == ("picture", True)


def test_a_tensor_without_three_channels_is_not_shown_as_rgb() -> None:
    look = TensorSlice((4, 16, 24), colored=True)

    look.turn_colors()
    look.next_mode()

    assert not look.is_colored


def test_the_example_prints_what_it_says() -> None:
    assert doctest.testmod(tensor_slice).failed == 0


WHITE, BLACK, RED, MAGENTA = "#ffffff", "#000000", "#ff0000", "#ff00ff"


def painter(
    numbers: npt.NDArray[np.float32], *, dtype: str = "float32", shades: bool = False
) -> TensorPicture:
    look = TensorSlice(numbers.shape, colored=True)
    look.next_mode()

    def fetch(index: Index, tall: int, wide: int) -> npt.NDArray[np.float32]:
        parts = (slice(p.start, p.stop) if isinstance(p, range) else p for p in index)
        plane: npt.NDArray[np.float32] = numbers[tuple(parts)][:tall, :wide]
        return plane

    return TensorPicture(fetch, look, dtype, shades=shades)


def colors(rows: list[TextRow]) -> list[str]:
    """The pixels of the first line of cells, the upper ones first."""
    (cells,) = rows[0].pictures
    return [pixel for pixel, _ in cells] + [pixel for _, pixel in cells]


@pytest.mark.parametrize("last", [False, True])
def test_three_channels_are_red_green_and_blue(last: bool) -> None:
    numbers = np.zeros((3, 4, 4), np.float32)
    numbers[:, 0, 0] = 1
    numbers[0, 1, 0] = 1

    rows = painter(np.moveaxis(numbers, 0, -1) if last else numbers).picture(4, 2)

    assert colors(rows) == [WHITE, BLACK, BLACK, BLACK, RED, BLACK, BLACK, BLACK]
    assert text_of(rows[-1:]) == "0 … 1 as red, green and blue"


def test_uint8_values_are_used_as_colors_directly() -> None:
    rows = painter(np.full((3, 4, 4), 51, np.float32), dtype="uint8").picture(4, 2)

    assert set(colors(rows)) == {"#333333"}


def test_other_dtypes_are_scaled_to_the_color_range() -> None:
    numbers = np.full((3, 4, 4), -2, np.float32)
    numbers[:, 0, 0] = 3

    rows = painter(numbers).picture(4, 2)

    assert colors(rows)[:2] == [WHITE, BLACK]
    assert text_of(rows[-1:]).startswith("-2 … 3 as")


def test_nan_is_highlighted_in_rgb_images() -> None:
    numbers = np.zeros((3, 4, 4), np.float32)
    numbers[1, 0, 2] = np.nan

    assert colors(painter(numbers).picture(4, 2))[2] == MAGENTA


def test_negative_and_positive_values_differ_in_grayscale() -> None:
    numbers = np.array([[-1.0, 0.0, 1.0]] * 2, np.float32)

    colored = colors(painter(numbers).picture(3, 1))
    shaded = colors(painter(numbers, shades=True).picture(3, 1))

    brightness = [sum(bytes.fromhex(one[1:])) for one in shaded[:3]]
    assert brightness == sorted(brightness)
    assert colored != shaded


@pytest.mark.parametrize(
    ("shape", "room", "cells"),
    [
        ((40, 40), (30, 8), (16, 8)),
        ((40, 80), (30, 50), (30, 8)),
        ((400, 4), (30, 10), (4, 10)),
        ((4, 4), (30, 10), (20, 10)),
    ],
)
def test_an_image_keeps_its_aspect_ratio_if_legible(
    shape: tuple[int, int], room: tuple[int, int], cells: tuple[int, int]
) -> None:
    numbers = np.zeros(shape, np.float32)

    *rows, _ = painter(numbers).picture(*room)

    assert (len(rows[0].pictures[0]), len(rows)) == cells


def test_several_rgb_images_are_side_by_side() -> None:
    numbers = np.random.default_rng(0).random((4, 3, 4, 4), np.float32)
    paints = painter(numbers)
    paints._look.next_mode()

    rows = paints.sheet(19, 2)

    assert text_of(rows[-1:]) == "slices 0 – 3 of 4  0 … 1 as red, green and blue"
