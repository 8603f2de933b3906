"""Someone wants to know what a model is made of."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import torchglass as tg


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(x)
        x = x + self.attention(hidden, hidden, hidden, need_weights=False)[0]
        result: torch.Tensor = x + self.mlp(self.norm(x))
        return result


class GPT(nn.Module):
    def __init__(self, width: int = 32, depth: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


def test_a_table_shows_shapes_parameters_and_tied_weights() -> None:
    model = GPT()

    text = str(tg.summary(model, torch.zeros(2, 7, dtype=torch.long)))

    assert f"{sum(parameter.numel() for parameter in model.parameters()):,}" in text
    assert "2×7×32 · 2 calls" in text
    assert "Linear ↗ embed.weight" in text
    assert "tied: embed.weight = head.weight" in text


def test_without_inputs_a_model_is_not_run() -> None:
    class Unfinished(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError("it ran")

    summary = tg.summary(nn.Sequential(nn.Linear(2, 3), Unfinished()))

    assert summary.calls is None
    assert summary.total_params == 9


def test_twelve_blocks_fold_to_one_row_on_request() -> None:
    text = str(tg.summary(GPT(), input_size=(2, 7), dtypes=[torch.long], fold=True))

    assert "12 × Block (0–11)" in text
    assert len(text.splitlines()) < 40


def test_the_tree_matches_the_first_specification() -> None:
    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
            self.bn1 = nn.BatchNorm2d(64)
            self.relu = nn.ReLU(inplace=True)
            self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
            self.fc = nn.Linear(2048, 1000)

    assert tg.summary(ResNet()).tree().splitlines() == [
        "ResNet(",
        "├── 2.1M parameters",
        "├── conv1: Conv2d(3→64, 7×7) [9.4K params]",
        "├── bn1: BatchNorm2d(64) [128 params]",
        "├── relu: ReLU(inplace=True) [0 params]",
        "├── maxpool: MaxPool2d(3×3, stride=2) [0 params]",
        "└── fc: Linear(2048→1000) [2.0M params]",
    ]


def test_a_batch_norm_has_its_parameters_and_its_buffers() -> None:
    totals = tg.summary(nn.BatchNorm2d(64)).to_dict()["totals"]

    assert (totals["parameters"], totals["buffers"]) == (128, 129)


def test_one_module_under_two_names_is_counted_once_and_marked() -> None:
    shared = nn.Linear(3, 3)

    summary = tg.summary(nn.ModuleDict({"first": shared, "second": shared}))

    assert summary.to_dict()["totals"]["parameters"] == 12
    assert summary.to_dict()["aliases"] == {"second": "first"}
    assert re.search("second +↗ first", str(summary))


def test_shapes_are_the_same_in_a_fake_forward() -> None:
    model = GPT()

    real, fake = (
        tg.summary(model, input_size=(2, 7), dtypes=[torch.long], fake=fake)
        for fake in (False, True)
    )

    assert str(fake) == str(real)


def test_a_summary_is_saved_as_json_csv_and_html(tmp_path: Path) -> None:
    summary = tg.summary(GPT(), input_size=(2, 7), dtypes=[torch.long])

    summary.to_html(tmp_path / "gpt.html")
    plain = json.loads(summary.to_json())

    assert (tmp_path / "gpt.html").read_text().startswith("<!doctype html>")
    assert plain["modules"][0]["outputs"][0]["shape"] == [2, 7, 100]
    assert summary.to_csv().count("\n") == 1 + len(plain["modules"])


def test_a_wrong_input_raises_the_original_error() -> None:
    with pytest.raises(IndexError):
        tg.summary(GPT(), torch.full((1, 1), 100))


def test_a_7b_language_model_is_summarized_without_memory() -> None:
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=32))

    summary = tg.summary(model, input_size=(1, 2048), dtypes=["int64"], fake=True, fold=True)

    assert "32 × LlamaDecoderLayer (0–31)" in str(summary)
    assert summary.to_dict()["totals"]["parameters"] == 6_738_415_616
    assert "1×2048×32000" in str(summary)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_frozen_modules_are_marked_and_the_trainable_share_is_shown() -> None:
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 1, bias=False))
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)

    found = tg.summary(model)
    lines = str(found).splitlines()

    assert found.total_params == 10_200
    assert found.trainable_params == 100
    assert found.frozen_params == 10_100
    assert found.total_buffers == 0
    assert found.total_bytes == 40_800
    assert any(line.split()[:3] == ["├─", "0", "Linear"] and " no " in line for line in lines)
    assert any(line.split()[:3] == ["└─", "1", "Linear"] and " yes " in line for line in lines)
    assert "  trainable  100, 0.98%" in lines
    assert "Trainable" not in str(tg.summary(model[1]))


def test_symbols_in_a_summary_are_explained_when_they_occur() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.unused = nn.LSTM(4, 4), nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.rnn(x)[0]
            return result

    text = str(tg.summary(Pair(), torch.ones(3, 4)))

    assert "\n–: not called in this forward\n+1: one more output tensor\n" in text
    assert "–:" not in str(tg.summary(Pair()))
