"""Someone opens what quantization, pruning, estimate and batch_size found in the explorer."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as tg
from tests.explorer import Explorer, drive, shown


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.mlp(self.norm(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.blocks(self.first(x)))


X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


@functools.cache
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@functools.cache
def quantized() -> Any:
    return tg.quantization(net(), X, quality=30)


@functools.cache
def batch_size() -> Any:
    return tg.batch_size(net(), X, memory="1MB", check=False)


def line_of(text: str, name: str) -> str:
    """The first line of the tree with this module."""
    lines = text.splitlines()[2:]
    return next(line for line in lines if line[1:].strip("│▾▸▌ ").startswith(name))


def test_a_quantization_report_adds_columns_to_the_tree() -> None:
    text = shown(quantized(), size=(80, 24))

    title, header = text.splitlines()[:2]
    assert title.startswith(" Net · Storing ")
    assert header.split()[:6] == ["name", "int8", "int4", "fp8", "suggested", "saves"]
    best = max(one.sqnr_db for one in quantized()["first.weight"] if one.format == "int4")
    assert f"{best:.0f} dB" in line_of(text, "first")
    # A module shows the worst weight below it.
    below = [
        max(one.sqnr_db for one in quantized()[name] if one.format == "fp8")
        for name in ("blocks.0.mlp.0.weight", "blocks.0.mlp.2.weight")
    ]
    assert f"{min(below):.0f} dB" in line_of(text, "0 ")
    saved = quantized().mix.original_bytes - quantized().mix.bytes
    assert f"{saved / 1024:.1f} KB" in line_of(text, "Net")


def test_report_columns_sort_the_tree_and_are_exported_as_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def story(explorer: Explorer) -> None:
        # Column 3 is int4; the second time the most sensitive comes first.
        await explorer.press("3", "3", "x", "down", "enter")
        assert "Wrote Net.json" in explorer.text

    drive(story, quantized(), size=(140, 40))

    rows = json.loads((tmp_path / "Net.json").read_text())["modules"]
    children = [one for one in rows if one["path"] in ("first", "blocks", "head")]
    values = [one["Quantization_int4"] for one in children]
    assert values == sorted(values)
    assert values[0] == pytest.approx(
        min(
            max(one.sqnr_db for one in quantized()[f"{name}.weight"] if one.format == "int4")
            for name in ("first", "head")
        )
    )


def test_the_panel_has_the_answer_and_the_rows_of_the_module() -> None:
    async def story(explorer: Explorer) -> None:
        assert "R Reports" in explorer.text
        assert "measured with all of them at once" in " ".join(explorer.text.split())
        await explorer.press("Z", "end")
        assert explorer.selected == "head"
        assert "Quantization  of head" in explorer.text
        assert explorer.text.count("head.weight") == 6
        # The suggestion is marked.
        marked = [line for line in explorer.text.splitlines() if "✓ " in line]
        assert len(marked) == 1
        chosen = next(one for one in quantized().mix.layers if one.name == "head.weight")
        assert chosen.format in marked[0]

    drive(story, quantized(), size=(160, 40))


def test_a_row_of_the_panel_links_to_its_module() -> None:
    async def story(explorer: Explorer) -> None:
        most_sensitive = quantized().entries[0].name
        panel = [line.rpartition("│")[2] for line in explorer.text.splitlines()[2:]]
        row = next(at for at, line in enumerate(panel) if most_sensitive in line)
        await explorer.press("tab", *["down"] * row, "enter")
        assert explorer.selected == most_sensitive.rpartition(".")[0]

    drive(story, quantized(), size=(160, 40))


def test_a_pruning_report_shows_the_removed_channels() -> None:
    found = tg.pruning(net(), X, timed=False)
    text = shown(found, size=(180, 40))

    assert text.splitlines()[0].startswith(" Net · Removing ")
    for share in ("−25%", "−50%", "−75%"):
        assert share in text.splitlines()[1]
    group = next(one for one in found.measured if found.removed.get(one.group) == one.removed)
    assert f"{group.removed} of {group.channels}" in line_of(text, "0 ")


@pytest.mark.slow
def test_an_estimate_adds_columns_to_the_tree() -> None:
    text = shown(tg.estimate(net(), X), size=(160, 30))

    assert "Forward ≥" in text.splitlines()[1]
    assert "fits in one A100" in text.splitlines()[0]


@pytest.mark.slow
def test_a_batch_size_report_has_a_panel() -> None:
    found = batch_size()
    planned = shown(found, size=(80, 24))
    assert f"Batch size {found.batch:,} fits in 1.0 MB" in planned.splitlines()[0]
    assert "Batch size  of the whole model" in planned


@pytest.mark.slow
def test_several_reports_can_be_shown_with_a_forward() -> None:
    text = shown(net(), X, reports=[quantized(), batch_size()], press=("R", "R"), size=(180, 40))

    assert "suggested" in text.splitlines()[1]
    words = " ".join(part for line in text.splitlines() for part in line.split("│")[-1].split())
    assert "Storing" in words
    assert "Batch size" in words
    # The forward ran, too.
    assert "8×10" in shown(net(), X, reports=[batch_size()], press=("f",), size=(180, 40))


def test_columns_of_a_report_are_not_remembered(tmp_path: Path) -> None:
    shown(quantized(), home=tmp_path)

    later = shown(net(), home=tmp_path)

    assert "int4" not in later
    assert "params" in later.splitlines()[1]


def test_report_columns_can_be_hidden() -> None:
    async def story(explorer: Explorer) -> None:
        await explorer.press("L", "down", "space")
        assert "int8" not in explorer.text.splitlines()[1].partition("│")[0]
        assert "Quantization: int8" in explorer.text

    drive(story, quantized(), size=(160, 40))


def test_an_object_that_is_not_a_report_is_refused() -> None:
    with pytest.raises(tg.errors.TargetError, match="a dict cannot be laid over the tree"):
        shown(net(), reports=[{}])


def test_the_help_lists_the_report_panel() -> None:
    text = shown(quantized(), press=("question_mark",), size=(180, 60))

    assert "Reports" in text
