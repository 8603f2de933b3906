"""Neighbors fold only where nothing is lost by it."""

from __future__ import annotations

from tests import make
from torchglass.analyse.sibling_order import alike, builds
from torchglass.records.model import Model

LINEAR = {"class": "Linear", "extra": "2, 3", "weight": (3, 2)}


def runs(model: Model) -> list[list[str]]:
    found = alike(model, model.root.children, builds(model))
    return [[model[member].name for member in run] for run in found]


def test_identical_neighbors_are_one_group() -> None:
    model = make.model({"children": {"0": LINEAR, "1": LINEAR, "2": LINEAR}})

    assert runs(model) == [["0", "1", "2"]]


def test_a_different_neighbor_ends_a_group() -> None:
    wide = {**LINEAR, "weight": (9, 2)}

    model = make.model({"children": {"0": LINEAR, "1": wide, "2": LINEAR, "3": LINEAR}})

    assert runs(model) == [["0"], ["1"], ["2", "3"]]


def test_descendants_must_be_identical_too() -> None:
    block = {"children": {"mlp": {"children": {"0": LINEAR}}}}
    other = {"children": {"mlp": {"children": {"0": {**LINEAR, "extra": "2, 3, bias=False"}}}}}

    model = make.model({"children": {"0": block, "1": block, "2": other}})

    assert runs(model) == [["0", "1"], ["2"]]


def test_names_that_differ_in_more_than_a_number_are_not_grouped() -> None:
    model = make.model({"children": {"query": LINEAR, "key": LINEAR, "fc1": LINEAR, "fc2": LINEAR}})

    assert runs(model) == [["query"], ["key"], ["fc1", "fc2"]]
