"""Rows by folds, filter, order and repeats, all at once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.views.tui.runs import tiny
from torchglass.records.model import ModuleId
from torchglass.records.run import RunRecord
from torchglass.views.tui.explorer_state import ExplorerState, count_model
from torchglass.views.tui.tree.columns import SortOrder
from torchglass.views.tui.tree.rows import TreeRows


@pytest.fixture
def arrangement() -> TreeRows:
    state = ExplorerState(RunRecord(name="run", created_ns=0), tiny())
    state.contents = count_model(state.model)
    return TreeRows(state)


def at(arrangement: TreeRows, path: str) -> ModuleId:
    module = arrangement.state.model.find(path)
    assert module is not None
    return module.id


def paths(arrangement: TreeRows) -> list[str]:
    return [arrangement.module(place).path for place in range(len(arrangement))]


def test_siblings_are_sorted_by_a_number_the_largest_first(arrangement: TreeRows) -> None:
    arrangement.fold(frozenset({at(arrangement, "")}))

    arrangement.sort(SortOrder("params").ranks(arrangement.state))
    assert paths(arrangement)[:3] == ["", "blocks", "embed"]

    arrangement.sort(SortOrder("params", upwards=True).ranks(arrangement.state))
    assert paths(arrangement)[1:3] == ["broken", "norm"]


def test_children_stay_below_their_parents_when_sorted(arrangement: TreeRows) -> None:
    arrangement.fold(arrangement.state.outline.foldable)

    arrangement.sort(SortOrder("class").ranks(arrangement.state))

    shown = paths(arrangement)
    assert all(shown.index(path.rpartition(".")[0]) < shown.index(path) for path in shown[1:])


def test_asking_again_for_a_column_turns_the_order_and_then_ends_it() -> None:
    once = SortOrder().then("params")

    assert once == SortOrder("params")
    assert once.then("params") == SortOrder("params", upwards=True)
    assert once.then("params").then("params") == SortOrder()
    assert once.then("class") == SortOrder("class")


def test_numbers_in_names_are_sorted_as_numbers(arrangement: TreeRows) -> None:
    arrangement.fold(arrangement.state.outline.foldable)

    arrangement.sort(SortOrder("name").ranks(arrangement.state))

    assert paths(arrangement)[1] == "blocks"


def test_blocks_that_are_alike_share_a_row(arrangement: TreeRows) -> None:
    arrangement.fold(arrangement.state.outline.foldable)
    rows = len(arrangement)

    arrangement.fold_repeats(True)

    blocks = arrangement.state.model.find("blocks.0")
    assert blocks is not None
    assert [one.path for one in arrangement.row(blocks)] == ["blocks.0", "blocks.1"]
    assert len(arrangement) == rows - 8


def test_going_into_a_folded_repeat_unfolds_it(arrangement: TreeRows) -> None:
    arrangement.fold_repeats(True)

    arrangement.show(at(arrangement, "blocks.1.mlp"))

    assert "blocks.1.mlp" in paths(arrangement)
    assert not arrangement.repeats_folded


def test_a_filter_keeps_what_is_above_and_opens_it(arrangement: TreeRows) -> None:
    arrangement.arrange(frozenset(), np.array([at(arrangement, "blocks.1.mlp.1")]))

    assert paths(arrangement) == ["", "blocks", "blocks.1", "blocks.1.mlp", "blocks.1.mlp.1"]

    arrangement.arrange(frozenset())
    assert not arrangement.filtered


def test_a_module_without_a_row_is_found_at_the_one_above_it(arrangement: TreeRows) -> None:
    arrangement.fold(frozenset({at(arrangement, "")}))

    place = arrangement.place_of(at(arrangement, "blocks.1.mlp"))

    assert arrangement.module(place).path == "blocks"
