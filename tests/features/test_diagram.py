"""The structure of a model on one page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.architectures import LanguageModel, MixtureOfExperts, ResNet, UNet
from tests.command_line import main

_SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ET.fromstring(svg).iter(f"{_SVG}text")]


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    """The rectangles of a page: left, top, right, bottom."""
    found = []
    for one in ET.fromstring(svg).iter(f"{_SVG}rect"):
        if "x" in one.attrib:
            x, y, width, height = (float(one.attrib[key]) for key in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    return found


def blocks(drawn: Any, *, panel: int = 0) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = drawn.to_dict()["panels"][panel]["blocks"]
    return listed


def test_transformer_blocks_are_drawn_as_one_block_with_count_and_residuals() -> None:
    drawn = tg.diagram(LanguageModel(12).eval(), torch.zeros(1, 16, dtype=torch.long))
    [repeated] = [one for one in blocks(drawn) if one["times"] == 12]
    assert [one["title"] for one in repeated["blocks"]] == [
        "LayerNorm",
        "CausalAttention",
        "+",
        "LayerNorm",
        "FeedForward",
        "+",
    ]
    first, second = (one for one in repeated["blocks"] if one["title"] == "+")
    # The first sum takes the input of the block and the attention, the second the first sum.
    assert first["from"] == [1]
    assert second["from"] == [2, 4]
    shown = texts(drawn.to_svg())
    assert "× 12" in shown
    assert shown.count("+") == 3
    assert {"1×16×96", "1×16×288", "1×16×384", "1×16×1000"} <= set(shown)


def test_a_block_used_in_several_places_is_drawn_once_beside_the_model() -> None:
    drawn = tg.diagram(ResNet(), torch.randn(1, 3, 64, 64))
    panels = [panel["title"] for panel in drawn.to_dict()["panels"]]
    assert panels == ["", "Bottleneck A", "Bottleneck B"]
    with_projection, plain = blocks(drawn, panel=1), blocks(drawn, panel=2)
    assert [one["title"] for one in plain] == [
        "1×1 Conv2d, 64",
        "3×3 Conv2d, 64",
        "1×1 Conv2d, 256",
        "+",
        "ReLU",
    ]
    assert plain[0]["then"] == ["BatchNorm2d", "ReLU"]
    assert len(with_projection) == len(plain) + 1
    stages = [one["blocks"] for one in blocks(drawn) if one["blocks"]]
    assert [[one["times"] for one in stage] for stage in stages] == [[1, 2], [1, 3], [1, 5], [1, 2]]


def test_parallel_experts_are_drawn_as_one_block() -> None:
    drawn = tg.diagram(MixtureOfExperts(16, 8), torch.randn(2, 16))
    [experts] = [one for one in blocks(drawn) if one["title"] == "experts"]
    assert experts["times"] == 8
    assert [one["title"] for one in blocks(drawn)].count("+") == 1


def test_a_unet_skip_connection_ends_at_the_block_that_concatenates_it() -> None:
    drawn = tg.diagram(UNet(4, 3), torch.randn(1, 3, 16, 16))
    listed = blocks(drawn)
    ups = [number for number, one in enumerate(listed) if one["title"] == "Up"]
    for depth, number in enumerate(ups):
        # The block before it, and the way down at the same level.
        assert listed[number]["from"] == [3 - depth, number - 1]


def test_blocks_do_not_overlap() -> None:
    models = [
        (ResNet((2, 2)), torch.randn(1, 3, 32, 32)),
        (UNet(4, 3), torch.randn(1, 3, 16, 16)),
        (LanguageModel(3, experts=8), torch.zeros(1, 8, dtype=torch.long)),
    ]
    for model, x in models:
        found = boxes(tg.diagram(model.eval(), x).to_svg())
        for number, one in enumerate(found):
            for other in found[number + 1 :]:
                apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1]
                apart = apart or other[3] <= one[1]
                inside = one[0] <= other[0] and other[2] <= one[2] and one[1] <= other[1]
                inside = inside and other[3] <= one[3]
                stacked = abs(one[0] - other[0]) <= 6 and abs(one[1] - other[1]) <= 6
                assert apart or inside or stacked, (type(model).__name__, one, other)


def test_the_file_extension_selects_the_format(tmp_path: Path) -> None:
    drawn = tg.diagram(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(2, 4))
    drawn.save(tmp_path / "new" / "net.svg")
    drawn.save(tmp_path / "net.pdf")
    assert "Linear, 3" in texts((tmp_path / "new" / "net.svg").read_text(encoding="utf-8"))
    page = (tmp_path / "net.pdf").read_bytes()
    assert page.startswith(b"%PDF-1.4")
    assert b"(Linear, 3) Tj" in page
    # The table at the end says where each object begins.
    start = int(re.findall(rb"startxref\n(\d+)", page)[0])
    for number, place in enumerate(re.findall(rb"(\d{10}) 00000 n", page[start:]), 1):
        assert page[int(place) :].startswith(b"%d 0 obj" % number)
    with pytest.raises(tg.TorchglassError, match=r"\.svg or \.pdf, not 'net.bmp'"):
        drawn.save("net.bmp")


def test_depth_collapses_inner_modules_and_a_trace_can_be_drawn() -> None:
    model, x = LanguageModel(2).eval(), torch.zeros(1, 8, dtype=torch.long)
    shallow = tg.diagram(tg.trace(model, x, save=None), depth=1)
    [repeated] = [one for one in blocks(shallow) if one["times"] == 2]
    assert repeated["title"] == "DecoderBlock"
    assert repeated["blocks"] == []
    with pytest.raises(tg.TorchglassError, match="depth must be 1 or more"):
        tg.diagram(model, x, depth=0)


def test_names_with_markup_and_special_characters_stay_text() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu()

    Net.__name__ = "A<b>&ü→"
    drawn = tg.diagram(Net(), torch.randn(2, 2))
    assert "A<b>&ü→" in texts(drawn.to_svg())
    assert drawn.to_pdf().startswith(b"%PDF")


def test_drawing_does_not_change_the_model_or_the_random_state() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    tg.diagram(model, torch.zeros(2, 3, 8, 8) + 2)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_command_prints_the_blocks_or_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = tmp_path / "net.py"
    net.write_text(
        "from torch import nn\ndef Net():\n    return nn.Sequential(nn.Linear(4, 3), nn.ReLU())\n",
        encoding="utf-8",
    )
    command = ["diagram", f"{net}:Net", "--input", "2x4"]
    main(command)
    assert capsys.readouterr().out.splitlines()[1] == "Linear, 3 · ReLU → 2×3"
    main([*command, "--out", str(tmp_path / "a.pdf")])
    assert "wrote " in capsys.readouterr().err
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
