"""JSON holds every number a summary has; CSV has one line a module."""

from __future__ import annotations

import csv
import io
import json

from tests import make, networks
from torchglass.records.model import Model
from torchglass.records.trace import CallRecord
from torchglass.results.summary import Summary


def test_a_module_has_its_counts_and_shapes() -> None:
    plain = Summary(networks.resnet(), networks.resnet_calls()).to_dict()

    conv = next(module for module in plain["modules"] if module["path"] == "conv1")
    assert conv["class"] == "torch.nn.modules.conv.Conv2d"
    assert conv["parameters"] == conv["own_parameters"] == 64 * 3 * 7 * 7
    assert conv["outputs"] == [{"place": "", "shape": [1, 64, 112, 112], "dtype": "float32"}]


def test_totals_count_a_tied_tensor_once_and_per_use() -> None:
    plain = Summary(networks.gpt()).to_dict()

    assert plain["totals"]["parameters_per_use"] - plain["totals"]["parameters"] == 100 * 32
    assert plain["tied"] == [["embed.weight", "head.weight"]]


def test_unmeasured_memory_is_null() -> None:
    memory = Summary(networks.gpt()).to_dict()["memory"]

    assert memory["activation_bytes"] is None
    assert memory["training_bytes"] == 4 * memory["weight_bytes"]


def test_a_folded_row_lists_its_members() -> None:
    plain = Summary(networks.gpt(), fold=True).to_dict()

    block = next(module for module in plain["modules"] if module["path"] == "blocks.0")
    assert block["repeats"] == ["blocks.1", "blocks.2"]


def test_any_module_name_round_trips_through_json() -> None:
    name = "new\nline \udc80 漢字"

    text = Summary(make.model({"children": {name: {}}})).to_json()

    assert text.isascii()
    assert json.loads(text)["modules"][1]["name"] == name


def csv_rows(model: Model, calls: list[CallRecord] | None = None) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(Summary(model, calls).to_csv())))


def test_each_module_is_a_csv_line_with_its_counts() -> None:
    found = csv_rows(networks.resnet(), networks.resnet_calls())

    conv = next(row for row in found if row["path"] == "conv1")
    assert conv["parameters"] == "9408"
    assert conv["output_shapes"] == "1x64x112x112"
    assert len(found) == len(networks.resnet().modules)


def test_commas_quotes_and_newlines_in_names_round_trip_through_csv() -> None:
    name = 'a,"b"\nc'

    assert csv_rows(make.model({"children": {name: {}}}))[1]["path"] == name
