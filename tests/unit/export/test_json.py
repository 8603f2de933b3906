"""JSON holds every number a summary has, under names that stay."""

from __future__ import annotations

import json

from tests import make, networks
from torchglass.analyse.summary import summarize
from torchglass.export.summary import summary_dict, summary_json


def test_a_module_has_its_numbers_and_shapes() -> None:
    plain = summary_dict(summarize(networks.resnet(), networks.resnet_calls()))

    conv = next(module for module in plain["modules"] if module["path"] == "conv1")
    assert conv["class"] == "torch.nn.modules.conv.Conv2d"
    assert conv["parameters"] == conv["own_parameters"] == 64 * 3 * 7 * 7
    assert conv["outputs"] == [{"place": "", "shape": [1, 64, 112, 112], "dtype": "float32"}]


def test_totals_count_a_tied_tensor_once_and_per_use() -> None:
    plain = summary_dict(summarize(networks.gpt()))

    assert plain["totals"]["parameters_per_use"] - plain["totals"]["parameters"] == 100 * 32
    assert plain["tied"] == [["embed.weight", "head.weight"]]


def test_memory_that_was_not_measured_is_null() -> None:
    memory = summary_dict(summarize(networks.gpt()))["memory"]

    assert memory["activation_bytes"] is None
    assert memory["training_bytes"] == 4 * memory["weight_bytes"]


def test_a_folded_row_names_those_it_stands_for() -> None:
    plain = summary_dict(summarize(networks.gpt(), fold=True))

    block = next(module for module in plain["modules"] if module["path"] == "blocks.0")
    assert block["repeats"] == ["blocks.1", "blocks.2"]


def test_any_name_survives() -> None:
    name = "new\nline \udc80 漢字"

    text = summary_json(summarize(make.model({"children": {name: {}}})))

    assert text.isascii()
    assert json.loads(text)["modules"][1]["name"] == name
