"""Finding modules by what is typed."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.unit.views.tui.runs import tiny
from torchglass.records.model import Model, ModuleId
from torchglass.views.tui.tree.search import NONE, Finder, find_match, next_match


@pytest.fixture
def model() -> Model:
    return tiny()


def found(model: Model, text: str) -> list[str]:
    return [model[match].path for match in Finder(model).find(text).tolist()]


def test_a_name_is_found_wherever_it_is(model: Model) -> None:
    assert found(model, "qkv") == ["blocks.0.attention.qkv", "blocks.1.attention.qkv"]


def test_a_class_is_found_whatever_its_case(model: Model) -> None:
    assert found(model, "gelu") == ["blocks.0.mlp.1", "blocks.1.mlp.1"]


def test_a_match_in_the_parents_name_alone_is_no_match(model: Model) -> None:
    assert found(model, "attention") == ["blocks.0.attention", "blocks.1.attention"]


def test_a_text_with_a_dot_is_looked_for_in_whole_paths(model: Model) -> None:
    assert found(model, "0.attention.q") == ["blocks.0.attention.qkv"]


def test_a_path_is_found_once_and_not_with_all_that_is_inside_it(model: Model) -> None:
    assert found(model, "blocks.0") == ["blocks.0"]


def test_shapes_settings_and_names_of_tensors_are_found(model: Model) -> None:
    assert found(model, "192×64") == ["blocks.0.attention.qkv", "blocks.1.attention.qkv"]
    assert found(model, "192x64") == found(model, "192×64")
    assert found(model, "eps=1e-05") == ["norm", "last_norm"]
    assert "head" not in found(model, "bias ")


def test_a_regex_looks_at_paths_and_classes(model: Model) -> None:
    assert found(model, r"re:^blocks\.\d$") == ["blocks.0", "blocks.1"]
    assert found(model, "re:^Layer.*m$") == ["norm", "last_norm"]
    assert found(model, "re:") == []


def test_a_regex_that_is_none_says_why(model: Model) -> None:
    with pytest.raises(re.error, match="unterminated"):
        Finder(model).find("re:[a-")


@pytest.mark.parametrize("text", ["", "no such thing", "[/red]", "(("])
def test_what_is_not_there_is_not_found(model: Model, text: str) -> None:
    assert found(model, text) == []


def test_matches_are_walked_around_both_ends() -> None:
    matches = np.array([2, 5, 9])

    assert next_match(matches, ModuleId(5), 1) == 9
    assert next_match(matches, ModuleId(9), 1) == 2
    assert next_match(matches, ModuleId(5), -1) == 2
    assert next_match(matches, ModuleId(0), -1) == 9
    assert next_match(NONE, ModuleId(0), 1) is None


def test_a_match_knows_itself() -> None:
    matches = np.array([2, 5])

    assert find_match(matches, ModuleId(5)) == (1, True)
    assert find_match(matches, ModuleId(4)) == (1, False)
    assert find_match(matches, ModuleId(6)) == (2, False)
