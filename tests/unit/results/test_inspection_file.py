"""The file of an inspection, from records made by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import pytest

from tests.inspections import call, inspected, tensor
from torchglass.errors import StoreError
from torchglass.records.calls import CallCost, InspectedModel, InspectedModule
from torchglass.records.model import Stats
from torchglass.results.inspection import SCHEMA_FILE, Inspection, inspection_dict, read_json


def test_units_are_decimal_megabytes_and_milliseconds() -> None:
    info = inspection_dict(inspected())["Net"]["children"]["fc"]["info"]

    assert info["param_memory_usage"] == 0.0001
    assert info["gradient_memory_usage"] == 0.00005
    assert info["input_memory_usage"] == [0.000024]
    assert info["total_memory"] == 0.000174
    assert info["forward_latency"] == 2.5
    assert info["backward_latency"] == 4.0
    assert info["effective_additional_memory_fwd"] == 0.000016
    assert info["effective_additional_memory_bwd"] == -0.000016


def test_the_file_matches_its_schema_and_round_trips() -> None:
    record = inspected()

    text = Inspection(record).to_json()

    jsonschema.validate(json.loads(text), json.loads(SCHEMA_FILE.read_text()))
    assert read_json(text) == record


def test_nan_is_null_in_the_file_and_nan_after_loading() -> None:
    nothing = Stats(count=2, min=math.nan, max=math.nan, mean=math.nan, std=math.nan, nan=2)
    root = InspectedModule(
        path="", name="", class_name="Net", calls=(call(1, outputs=(tensor(2, stats=nothing),)),)
    )
    record = InspectedModel(name="Net", modules=(root,))

    text = Inspection(record).to_json()

    assert "NaN" not in text
    assert read_json(text) == record
    assert json.loads(text)["Net"]["info"]["forward_nan_count"] == 2


def test_latencies_are_from_the_latest_pass_and_nan_flags_from_any() -> None:
    bad = Stats(count=2, min=0, max=0, mean=0, std=0, nan=1)
    calls = (
        call(1, outputs=(tensor(2, stats=bad),), forward=CallCost(total_ns=9, self_ns=9)),
        call(2, forward_pass=2, forward=CallCost(total_ns=10, self_ns=6)),
        call(3, forward_pass=2, forward=CallCost(total_ns=4, self_ns=4), nested=True),
        call(4, forward_pass=2, forward=CallCost(total_ns=20, self_ns=20)),
    )
    root = InspectedModule(path="", name="", class_name="Net", call_count=4, calls=calls)

    info = inspection_dict(InspectedModel(name="Net", modules=(root,)))["Net"]["info"]

    assert info["forward_latency"] == 30 / 1e6
    assert info["forward_self_latency"] == 30 / 1e6
    assert info["forward_nan"]
    assert info["output_shapes"] == []
    assert info["num_calls"] == 4


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a": {}, "b": {}}', '{"a": {"info": {}}}'])
def test_a_file_that_is_not_an_inspection_is_refused(text: str) -> None:
    with pytest.raises(StoreError, match="not an inspection"):
        read_json(text)


def test_the_schema_refuses_missing_and_unknown_keys() -> None:
    schema: Any = json.loads(SCHEMA_FILE.read_text())
    short, long = inspection_dict(inspected()), inspection_dict(inspected())
    del short["Net"]["children"]["fc"]["info"]["forward_nan"]
    long["Net"]["children"]["fc"]["info"]["mine"] = 1

    for tree in (short, long):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(tree, schema)
