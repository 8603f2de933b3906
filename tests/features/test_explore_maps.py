"""Someone looks at maps, receptive fields and the block diagram in the explorer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchglass as tg
from tests.explorer import Explorer, drive, shown


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Conv2d(6, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.pool(self.conv(x)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> Any:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v)


IMAGE = torch.linspace(-1, 1, 256).reshape(1, 1, 16, 16)


def blocks(text: str) -> int:
    """How many cells of pictures are on the screen, in colors or in shades."""
    return sum(text.count(cell) for cell in "▀▄░▒▓█")


def test_an_opened_op_shows_its_feature_maps() -> None:
    async def story(explorer: Explorer) -> None:
        await explorer.press("down", "w")
        assert not blocks(explorer.text)
        await explorer.press("tab", "enter", "M", "end")
        assert "conv2d_1_1: 6 of 16×16" in explorer.text
        # Six maps of 16 × 16 pixels, two pixels in a cell; without colors, dark cells are blank.
        assert 3 * 16 * 8 < blocks(explorer.text) <= 6 * 16 * 8 + 16

    drive(story, Net(), IMAGE, size=(140, 50))


def test_a_trace_that_was_made_before_has_maps_too() -> None:
    async def story(explorer: Explorer) -> None:
        await explorer.press("tab", "down", "enter", "M")
        assert "conv2d_1_1: 6 of 16×16" in explorer.text
        assert blocks(explorer.text)

    drive(story, tg.trace(Net(), IMAGE), size=(140, 50))


def test_a_trace_without_tensors_has_no_maps() -> None:
    async def story(explorer: Explorer) -> None:
        await explorer.press("tab", "down", "enter", "M")
        assert "Used by" in explorer.text
        assert "Maps" not in explorer.text

    drive(story, tg.trace(Net(), IMAGE, save=None), size=(140, 50))


def test_attention_shows_a_map_for_each_head() -> None:
    async def story(explorer: Explorer) -> None:
        await explorer.press("w", "tab", "end", "up", "enter", "M")
        words = " ".join(explorer.text.split())
        assert "2 of 9×9" in words
        assert "recomputed from query and key" in words
        assert blocks(explorer.text)

    torch.manual_seed(0)
    drive(story, Attention(), torch.randn(1, 9, 8), size=(140, 50))


def test_the_details_of_a_module_say_what_it_sees_of_the_input() -> None:
    async def story(explorer: Explorer) -> None:
        await explorer.press("end")
        assert explorer.selected == "last"
        # 3×3 after a pooling of 2 after 3×3: 8 × 8 positions, two apart.
        words = " ".join(line.partition("│")[2].strip(" │") for line in explorer.text.splitlines())
        assert "receptive field 1×1×8×8 of x (1×1×16×16), stride 2×2" in words

    drive(story, Net(), IMAGE, size=(140, 50))


def test_a_key_writes_the_block_diagram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def story(explorer: Explorer) -> None:
        await explorer.press("D")
        assert "Wrote Net-diagram.svg" in explorer.text

    drive(story, Net(), IMAGE)

    svg = (tmp_path / "Net-diagram.svg").read_text()
    assert svg.startswith(("<svg", "<?xml"))
    assert "Conv2d" in svg


def test_without_a_forward_the_key_says_what_is_missing() -> None:
    assert "No traced forward" in shown(Net(), press=("D",), size=(100, 24))
