"""Gradients by layer, from what a training recorded."""

from __future__ import annotations

import numpy as np
import pytest

from tests import make
from torchglass.analyse.gradient_flow import gradient_norms, layers, update_ratios
from torchglass.records.run import Points, Series, SeriesId
from torchglass.records.step_points import FIELDS

MODEL = make.model(
    {"children": {"b": {"weight": (2, 2), "bias": (2,)}, "a": {"weight": (2,)}, "c": {}}}
)


def series(path: str, name: str, kind: str = "stats", id: int = 0) -> Series:
    return Series(id=SeriesId(id), path=path, name=name, kind=kind)  # type: ignore[arg-type]


def points(of: Series, *rows: dict[str, float]) -> Points:
    fields = FIELDS[of.kind]
    values = np.array([[row.get(field, 0.0) for field in fields] for row in rows]).reshape(
        -1, len(fields)
    )
    return Points(series=of, steps=np.arange(len(rows), dtype=np.int64), values=values)


def test_layers_are_in_model_order() -> None:
    found = layers(
        MODEL,
        [
            series("a", "weight.grad"),
            series("b", "bias.grad"),
            series("b", "weight.update", "scalar"),
            series("b", "weight.grad"),
        ],
    )

    assert [layer.path for layer in found] == ["b", "a"]
    assert [one.name for one in found[0].gradients] == ["bias.grad", "weight.grad"]
    assert [one.name for one in found[0].updates] == ["weight.update"]


def test_gradients_of_non_parameters_are_excluded() -> None:
    assert layers(MODEL, [series("b", "output.grad"), series("gone", "weight.grad")]) == []


def test_the_gradient_norm_of_a_layer_covers_all_its_values() -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(3.0, 2.0, 12), rng.normal(-1.0, 0.5, 5)
    (layer,) = layers(MODEL, [series("b", "weight.grad", id=0), series("b", "bias.grad", id=1)])
    known = {
        one.id: points(
            one, {"count": len(values), "mean": values.mean(), "std": values.std(ddof=1)}
        )
        for one, values in zip(layer.gradients, (weight, bias), strict=True)
    }

    norms = gradient_norms(layer, lambda one: known[one.id])

    assert norms[-1] == pytest.approx(np.linalg.norm(np.concatenate([weight, bias])))


def test_a_gradient_with_a_nan_has_no_norm() -> None:
    (layer,) = layers(MODEL, [series("a", "weight.grad")])
    found = points(layer.gradients[0], {"count": 2, "std": 1.0}, {"count": 2, "std": 1.0, "nan": 1})

    norms = gradient_norms(layer, lambda _: found)

    assert norms.tolist() == [1.0, pytest.approx(float("nan"), nan_ok=True)]


def test_the_norm_of_a_scalar_gradient_is_its_absolute_value() -> None:
    (layer,) = layers(MODEL, [series("a", "weight.grad", "scalar")])

    assert gradient_norms(layer, lambda one: points(one, {"value": 3.0})).tolist() == [3.0]


def test_the_update_of_a_layer_is_its_largest() -> None:
    (layer,) = layers(
        MODEL,
        [series("b", "weight.update", "scalar", 0), series("b", "bias.update", "scalar", 1)],
    )
    known = {0: (0.1, 0.2, 0.3), 1: (0.5, 0.1)}

    ratios = update_ratios(
        layer, lambda one: points(one, *({"value": value} for value in known[one.id]))
    )

    assert ratios.tolist() == [0.5, 0.3]


def test_series_that_were_not_read_give_no_values() -> None:
    (layer,) = layers(MODEL, [series("a", "weight.grad")])

    assert len(gradient_norms(layer, lambda _: None)) == 0
    assert len(update_ratios(layer, lambda _: None)) == 0
