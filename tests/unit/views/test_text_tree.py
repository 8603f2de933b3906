"""The tree reads as it was drawn for us."""

from __future__ import annotations

from tests import make
from torchglass.analyse.model.summary import summarize
from torchglass.records.model import Model
from torchglass.views.text.tree import tree_text


def tree(model: Model, *, fold: bool = False) -> list[str]:
    return tree_text(summarize(model, fold=fold)).splitlines()


def test_lines_lead_from_each_module_to_those_below_it() -> None:
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


def test_blocks_that_are_alike_fold_to_one_line() -> None:
    block = {"class": "net.Block", "weight": (2, 3)}

    lines = tree(make.model({"children": {str(i): block for i in range(12)}}), fold=True)

    assert lines[-1] == "└── 12 × Block (0–11) [72 params]"


def test_a_problem_stands_behind_its_module() -> None:
    lines = tree(make.model({"children": {"bad": {"problem": "hooks: KeyError"}}}))

    assert lines[-1] == "└── bad: Sequential [0 params]  ! hooks: KeyError"
