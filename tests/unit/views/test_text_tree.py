"""The tree reads as it was drawn for us."""

from __future__ import annotations

from typing import Any

import pytest

from tests import make
from torchglass.analyse.summary import summarize
from torchglass.records.model import Model
from torchglass.tables.text import width
from torchglass.views.model_text import tree_text


def tree(model: Model, *, fold: bool = False) -> list[str]:
    return tree_text(summarize(model, fold=fold)).splitlines()


def test_lines_connect_each_module_to_its_children() -> None:
    leaf = {"class": "ReLU"}

    lines = tree(make.model({"children": {"a": {"children": {"x": leaf, "y": leaf}}, "b": leaf}}))

    assert lines == [
        "Net(",
        "├── 0 parameters",
        "├── a: Sequential [0 params]",
        "│   ├── x: ReLU [0 params]",
        "│   └── y: ReLU [0 params]",
        "└── b: ReLU [0 params]",
    ]


def test_a_model_without_children_is_two_lines() -> None:
    assert tree(make.model({"weight": (2, 3)})) == ["Net(", "└── 6 parameters"]


def test_tied_weights_are_marked() -> None:
    head = {"class": "Linear", "weight": (2, 3), "tied": {"weight": "embed.weight"}}

    lines = tree(make.model({"children": {"embed": {"weight": (2, 3)}, "head": head}}))

    assert lines[-1] == "└── head: Linear [6 params, tied to embed.weight]"


def test_identical_blocks_fold_to_one_line() -> None:
    block = {"class": "net.Block", "weight": (2, 3)}

    lines = tree(make.model({"children": {str(i): block for i in range(12)}}), fold=True)

    assert lines[-1] == "└── 12 × Block (0–11) [72 params]"


def test_a_problem_is_shown_after_its_module() -> None:
    lines = tree(make.model({"children": {"bad": {"problem": "hooks: KeyError"}}}))

    assert lines[-1] == "└── bad: Sequential [0 params]  ! hooks: KeyError"


def test_a_narrow_tree_shortens_details_and_says_what_it_omits() -> None:
    conv = {"class": "Conv2d", "extra": "3, 64, kernel_size=(7, 7)", "weight": (64, 3, 7, 7)}
    model = make.model({"children": {"conv1": conv, "act": {"class": "ReLU"}}})

    assert tree_text(summarize(model), 33).splitlines() == [
        "Net(",
        "├── 9.4K parameters",
        "├── conv1: Conv2d [9.4K params]",
        "└── act: ReLU [0 params]",
        "Note: hidden at 33 columns:",
        "      settings; use a wider",
        "      terminal or a file.",
    ]


def test_a_tree_that_fits_has_no_note() -> None:
    model = make.model({"children": {"act": {"class": "ReLU"}}})

    assert tree_text(summarize(model), 24) == tree_text(summarize(model))


def test_the_name_of_a_tied_weight_is_dropped_before_the_module_settings() -> None:
    head = {"class": "Linear", "weight": (2, 3), "tied": {"weight": "embed.weight"}}
    model = make.model({"children": {"embed": {"weight": (2, 3)}, "head": head}})

    lines = tree_text(summarize(model), 40).splitlines()

    assert lines[3] == "└── head: Linear [6 params, tied]"
    assert "hidden at 40 columns: tied names;" in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("room", [16, 30, 50])
def test_names_are_readable_at_any_depth(room: int) -> None:
    spec: dict[str, Any] = {"class": "Linear"}
    for _ in range(12):
        spec = {"children": {"projection": spec}}

    lines = tree_text(summarize(make.model(spec)), room).splitlines()

    assert max(map(width, lines)) <= room
    assert all("pro" in line and "tion" in line for line in lines[2:14])
