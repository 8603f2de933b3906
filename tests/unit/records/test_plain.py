"""Records survive the way to JSON and back."""

import json
import math

from tests import make
from torchglass.records.json_data import from_json_data, nan_as_none, to_json_data
from torchglass.records.model import ClassSource, Model, TensorSpec


def test_a_model_round_trips_through_json() -> None:
    model = make.model(
        {"children": {"0": {"class": "torch.nn.Linear", "weight": (3, 2), "extra": "2, 3"}}}
    )
    model = Model(
        name=model.name,
        modules=model.modules,
        classes={"torch.nn.Linear": ClassSource(file="linear.py", forward_line=7)},
    )

    again = from_json_data(Model, json.loads(json.dumps(to_json_data(model))))

    assert again == model
    assert again.modules[1].slots[0].spec.shape == (3, 2)


def test_fields_with_default_values_are_omitted() -> None:
    assert to_json_data(TensorSpec(shape=(), dtype="float32")) == {"shape": [], "dtype": "float32"}


def test_an_unknown_shape_stays_unknown() -> None:
    lazy = TensorSpec(shape=None, dtype="float32")

    assert from_json_data(TensorSpec, to_json_data(lazy)) == lazy


def test_a_newer_writers_fields_are_ignored() -> None:
    plain = {"shape": [1], "dtype": "float32", "color": "blue"}

    assert from_json_data(TensorSpec, plain) == TensorSpec(shape=(1,), dtype="float32")


def test_non_finite_values_become_none() -> None:
    plain = {"mean": math.nan, "range": [-math.inf, 1.5], "count": 3, "name": "nan"}

    assert nan_as_none(plain) == {"mean": None, "range": [None, 1.5], "count": 3, "name": "nan"}
