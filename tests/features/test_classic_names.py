"""Someone who comes from rp's explorer finds the names they know, with right numbers."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

import torchglass as rp
from torchglass import errors


class Tied(nn.Module):
    """A language model's ends, sharing one weight; half of the rest is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 100, bias=False)
        self.head.weight = self.embed.weight
        self.norm.bias.requires_grad_(False)


def test_parameter_statistics_count_a_tied_weight_once() -> None:
    assert rp.get_parameter_statistics(Tied()) == {
        "total_params": 816,
        "trainable_params": 808,
        "non_trainable_params": 8,
        "memory_usage": 816 * 4,
    }


def test_parameter_statistics_use_the_element_size() -> None:
    model = nn.Linear(3, 4, dtype=torch.bfloat16)

    assert rp.get_parameter_statistics(model)["memory_usage"] == 16 * 2


def test_memory_is_reported_for_each_parameter() -> None:
    assert rp.analyze_memory_usage(Tied()) == {
        "embed.weight": 3200,
        "norm.weight": 32,
        "norm.bias": 32,
    }


@pytest.mark.parametrize("make", [Tied, lambda: nn.TransformerEncoderLayer(8, 2), nn.ReLU])
def test_parameter_counts_and_bytes_match_torch(make: Any) -> None:
    model: nn.Module = make()
    parameters = dict(model.named_parameters())

    assert rp.analyze_memory_usage(model) == {
        name: parameter.numel() * parameter.element_size() for name, parameter in parameters.items()
    }
    assert rp.get_parameter_statistics(model)["total_params"] == sum(
        parameter.numel() for parameter in parameters.values()
    )


def test_a_summary_is_exported_as_text_json_and_html() -> None:
    model = Tied()

    text = rp.export_model_summary(model)
    data = json.loads(rp.export_model_summary(model, format="json"))
    page = rp.export_model_summary(model, format="html")

    assert text == str(rp.summary(model))
    assert data == {"schema": "torchglass/summary", "version": 1, **rp.summary(model).to_dict()}
    assert "embed" in _text_of(page)


def test_an_unknown_format_is_refused_by_name() -> None:
    with pytest.raises(
        errors.ViewError, match="format must be 'text', 'json' or 'html', not 'pdf'"
    ):
        rp.export_model_summary(Tied(), format="pdf")  # type: ignore[arg-type]


@pytest.mark.parametrize("explore", [rp.explore, rp.explore_model, rp.explore_torch_module])
def test_without_a_terminal_the_explorers_say_what_to_do(explore: Any) -> None:
    with pytest.raises(errors.ViewError, match=r"terminal\. Use print\(tg.summary\(model\)\)"):
        explore(Tied())


def test_the_default_configuration_matches_the_specification() -> None:
    config = rp.ExplorerConfig()

    assert vars(config) == {
        "show_parameter_counts": True,
        "show_shapes": True,
        "show_timing": True,
        "show_memory": True,
        "compact_view": False,
        "color_scheme": "dark",
        "max_depth": None,
    }


def test_a_configuration_selects_the_contents_of_an_export() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    usual = rp.export_model_summary(model, config=rp.ExplorerConfig())

    compact = rp.ExplorerConfig(compact_view=True, show_memory=False)
    flat = rp.ExplorerConfig(max_depth=1, show_parameter_counts=False)

    assert "weight 2×2, bias 2" in usual
    assert "2 × Linear (0–1)" in rp.export_model_summary(model, config=compact)
    assert "Bytes" not in rp.export_model_summary(model, config=compact).splitlines()[1]
    assert "Linear" not in rp.export_model_summary(model, config=flat)
    assert "Parameters" not in rp.export_model_summary(model, config=flat).splitlines()[1]


@pytest.mark.parametrize("wrong", [{"color_scheme": "neon"}, {"max_depth": -1}])
def test_a_configuration_refuses_invalid_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.ViewError, match=next(iter(wrong))):
        rp.ExplorerConfig(**wrong)


def test_the_best_device_is_usable() -> None:
    device = rp.select_torch_device()

    assert torch.ones(2, device=device).sum().item() == 2


def _text_of(page: str) -> str:
    class Words(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.words: list[str] = []

        def handle_data(self, data: str) -> None:
            self.words.append(data)

    parser = Words()
    parser.feed(page)
    return " ".join(parser.words)


def test_a_configuration_shows_shapes_and_recorded_times() -> None:
    model = nn.Sequential(nn.Linear(2, 3))
    config = rp.ExplorerConfig(show_shapes=True, show_timing=True)
    before = rp.export_model_summary(model, config=config).splitlines()[1]

    with rp.record_torch_module_forward_stats(model):
        model(torch.ones(5, 2))
    lines = rp.export_model_summary(model, config=config).splitlines()
    plain = rp.ExplorerConfig(show_shapes=False, show_timing=False)
    bare = rp.export_model_summary(model, config=plain).splitlines()[1]

    assert before.split() == ["Module", "Class", "Shapes", "Parameters", "Share", "Bytes"]
    assert [*lines[1].split()] == [
        *("Module", "Class", "Shapes", "Output", "Parameters", "Share", "Bytes", "Time"),
    ]
    assert any("weight 3×2, bias 3  5×3" in line for line in lines)
    assert "Shapes" not in bare
    assert "Time" not in bare
