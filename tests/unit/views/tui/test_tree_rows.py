"""Which modules have a row: folds, filter, order and repeats."""

from __future__ import annotations

import numpy as np
import pytest

from tests import make
from tests.unit.views.tui.runs import tiny
from torchglass.records.model import Model, ModuleId
from torchglass.records.run import RunRecord
from torchglass.views.tui import tree_rows
from torchglass.views.tui.explorer_state import ExplorerState, count_model
from torchglass.views.tui.tree_columns import SortOrder
from torchglass.views.tui.tree_rows import TreeRows

INNER = {"class": "t.Inner", "children": {"leaf": {"class": "t.Leaf"}}}
BLOCK = {"class": "t.Block", "children": {"a": INNER, "b": INNER, "c": {"class": "t.Leaf"}}}


@pytest.fixture
def model() -> Model:
    return make.model({"children": {"x": BLOCK, "y": BLOCK, "z": {"class": "t.Leaf"}}})


@pytest.fixture
def outline(model: Model) -> tree_rows.Outline:
    return tree_rows.Outline(model)


def at(model: Model, path: str) -> ModuleId:
    module = model.find(path)
    assert module is not None
    return module.id


def folds(model: Model, *paths: str) -> tree_rows.Folds:
    return frozenset(at(model, path) for path in paths)


def shown(model: Model, open_folds: tree_rows.Folds) -> list[str]:
    return [
        model[row].path
        for row in tree_rows.visible(tree_rows.Outline(model).order, open_folds).tolist()
    ]


def test_a_closed_root_is_one_row(model: Model) -> None:
    assert shown(model, frozenset()) == [""]


def test_rows_are_in_tree_order(model: Model) -> None:
    open_folds = folds(model, "", "x", "x.b")

    assert shown(model, open_folds) == ["", "x", "x.a", "x.b", "x.b.leaf", "x.c", "y", "z"]


def test_open_modules_below_a_closed_fold_have_no_row(model: Model) -> None:
    assert shown(model, folds(model, "", "x.a")) == ["", "x", "y", "z"]


def test_space_toggles_one_fold(model: Model, outline: tree_rows.Outline) -> None:
    once = tree_rows.toggle(outline, frozenset(), at(model, "x"), "one")

    assert once == folds(model, "x")
    assert tree_rows.toggle(outline, once, at(model, "x"), "one") == frozenset()


def test_a_leaf_cannot_be_folded(model: Model, outline: tree_rows.Outline) -> None:
    assert tree_rows.toggle(outline, frozenset(), at(model, "z"), "one") == frozenset()


def test_z_toggles_a_whole_branch(model: Model, outline: tree_rows.Outline) -> None:
    root = folds(model, "")

    opened = tree_rows.toggle(outline, root, at(model, "x"), "branch")

    assert opened == folds(model, "", "x", "x.a", "x.b")
    assert tree_rows.toggle(outline, opened, at(model, "x"), "branch") == root


def test_capital_z_opens_everything_then_closes_all_but_the_root(
    model: Model, outline: tree_rows.Outline
) -> None:
    opened = tree_rows.toggle(outline, folds(model, ""), at(model, "z"), "all")

    assert len(shown(model, opened)) == len(model.modules)
    assert tree_rows.toggle(outline, opened, at(model, "z"), "all") == folds(model, "")


def test_s_toggles_all_siblings_like_the_selected_one(
    model: Model, outline: tree_rows.Outline
) -> None:
    one_open = folds(model, "", "y")

    assert tree_rows.toggle(outline, one_open, at(model, "x"), "siblings") == folds(
        model, "", "x", "y"
    )
    assert tree_rows.toggle(outline, one_open, at(model, "y"), "siblings") == folds(model, "")


def test_s_on_a_leaf_follows_the_first_foldable_sibling(
    model: Model, outline: tree_rows.Outline
) -> None:
    opened = tree_rows.toggle(outline, folds(model, ""), at(model, "z"), "siblings")

    assert opened == folds(model, "", "x", "y")


def test_capital_s_includes_descendants_of_siblings(
    model: Model, outline: tree_rows.Outline
) -> None:
    opened = tree_rows.toggle(outline, folds(model, ""), at(model, "x"), "sibling branches")

    assert opened == outline.foldable


def test_o_opens_modules_of_the_class_in_closed_branches(
    model: Model, outline: tree_rows.Outline
) -> None:
    opened = tree_rows.toggle(outline, folds(model, "", "x"), at(model, "x.a"), "class")

    assert "y.b.leaf" in shown(model, opened)


def test_o_closes_all_of_the_class_and_nothing_else(
    model: Model, outline: tree_rows.Outline
) -> None:
    closed = tree_rows.toggle(outline, outline.foldable, at(model, "x.a"), "class")

    assert closed == folds(model, "", "x", "y")


def test_o_on_a_leaf_reveals_all_modules_of_its_class(
    model: Model, outline: tree_rows.Outline
) -> None:
    opened = tree_rows.toggle(outline, folds(model, ""), at(model, "z"), "class")

    assert shown(model, opened).count("y.a.leaf") == 1


def test_capital_o_also_opens_descendants_of_the_class(
    model: Model, outline: tree_rows.Outline
) -> None:
    opened = tree_rows.toggle(outline, folds(model, ""), at(model, "x"), "class branches")

    assert opened == outline.foldable


def test_initially_as_many_whole_levels_are_open_as_fit(
    model: Model, outline: tree_rows.Outline
) -> None:
    assert outline.first_folds(room=3) == folds(model, "")
    assert outline.first_folds(room=12) == folds(model, "", "x", "y")
    assert outline.first_folds(room=100) == outline.foldable


def test_a_model_of_depth_5000_folds_without_recursion() -> None:
    modules = list(make.model().modules)
    from dataclasses import replace

    deep = [
        replace(
            modules[0],
            id=ModuleId(level),
            path=".".join(["a"] * min(level, 3)),
            parent=ModuleId(level - 1) if level else None,
            children=(ModuleId(level + 1),) if level < 4_999 else (),
        )
        for level in range(5_000)
    ]
    model = Model(name="Deep", modules=tuple(deep))
    outline = tree_rows.Outline(model)

    opened = tree_rows.toggle(outline, frozenset(), ModuleId(0), "branch")

    assert len(tree_rows.visible(outline.order, opened)) == 5_000
    assert outline.depths[-1] == 4_999


def test_siblings_can_be_reordered(model: Model, outline: tree_rows.Outline) -> None:
    backwards = [-float(module.id) for module in model.modules]

    order = outline.ordered(backwards)

    shown = [model[row].path for row in tree_rows.visible(order, folds(model, "", "x")).tolist()]
    assert shown == ["", "z", "y", "x", "x.c", "x.b", "x.a"]


def test_the_ancestors_of_modules_are_found(model: Model, outline: tree_rows.Outline) -> None:
    above = outline.above(np.array([at(model, "y.a.leaf"), at(model, "z")]))

    assert [module.path for module in model.modules if above[module.id]] == ["", "y", "y.a"]


def test_a_filter_shows_only_kept_rows(model: Model, outline: tree_rows.Outline) -> None:
    keep = np.zeros(len(model.modules), np.bool_)
    keep[[at(model, ""), at(model, "y"), at(model, "z")]] = True

    shown = tree_rows.visible(outline.order, outline.foldable, keep).tolist()

    assert [model[row].path for row in shown] == ["", "y", "z"]


def test_branches_include_all_descendants(model: Model, outline: tree_rows.Outline) -> None:
    inside = outline.branches([at(model, "x.a"), at(model, "z")])

    assert [module.path for module in model.modules if inside[module.id]] == [
        *("x.a", "x.a.leaf"),
        "z",
    ]


def test_a_requested_number_of_levels_is_opened_regardless_of_space(
    model: Model, outline: tree_rows.Outline
) -> None:
    assert outline.first_folds(room=3, most=2) == folds(model, "", "x", "y")
    assert outline.first_folds(room=3, most=0) == frozenset()


@pytest.fixture
def arrangement() -> TreeRows:
    state = ExplorerState(RunRecord(name="run", created_ns=0), tiny())
    state.contents = count_model(state.model)
    return TreeRows(state)


def at_tree_rows(arrangement: TreeRows, path: str) -> ModuleId:
    module = arrangement.state.model.find(path)
    assert module is not None
    return module.id


def paths(arrangement: TreeRows) -> list[str]:
    return [arrangement.module(place).path for place in range(len(arrangement))]


def test_siblings_are_sorted_by_value_largest_first(arrangement: TreeRows) -> None:
    arrangement.fold(frozenset({at_tree_rows(arrangement, "")}))

    arrangement.sort(SortOrder("params").ranks(arrangement.state))
    assert paths(arrangement)[:3] == ["", "blocks", "embed"]

    arrangement.sort(SortOrder("params", upwards=True).ranks(arrangement.state))
    assert paths(arrangement)[1:3] == ["broken", "norm"]


def test_children_stay_below_their_parents_when_sorted(arrangement: TreeRows) -> None:
    arrangement.fold(arrangement.state.outline.foldable)

    arrangement.sort(SortOrder("class").ranks(arrangement.state))

    shown = paths(arrangement)
    assert all(shown.index(path.rpartition(".")[0]) < shown.index(path) for path in shown[1:])


def test_selecting_a_sort_column_again_reverses_then_clears_it() -> None:
    once = SortOrder().then("params")

    assert once == SortOrder("params")
    assert once.then("params") == SortOrder("params", upwards=True)
    assert once.then("params").then("params") == SortOrder()
    assert once.then("class") == SortOrder("class")


def test_numbers_in_names_are_sorted_numerically(arrangement: TreeRows) -> None:
    arrangement.fold(arrangement.state.outline.foldable)

    arrangement.sort(SortOrder("name").ranks(arrangement.state))

    assert paths(arrangement)[1] == "blocks"


def test_identical_blocks_share_a_row(arrangement: TreeRows) -> None:
    arrangement.fold(arrangement.state.outline.foldable)
    rows = len(arrangement)

    arrangement.fold_repeats(True)

    blocks = arrangement.state.model.find("blocks.0")
    assert blocks is not None
    assert [one.path for one in arrangement.row(blocks)] == ["blocks.0", "blocks.1"]
    assert len(arrangement) == rows - 8


def test_going_into_a_folded_repeat_unfolds_it(arrangement: TreeRows) -> None:
    arrangement.fold_repeats(True)

    arrangement.show(at_tree_rows(arrangement, "blocks.1.mlp"))

    assert "blocks.1.mlp" in paths(arrangement)
    assert not arrangement.repeats_folded


def test_a_filter_keeps_and_opens_ancestors(arrangement: TreeRows) -> None:
    arrangement.arrange(frozenset(), np.array([at_tree_rows(arrangement, "blocks.1.mlp.1")]))

    assert paths(arrangement) == ["", "blocks", "blocks.1", "blocks.1.mlp", "blocks.1.mlp.1"]

    arrangement.arrange(frozenset())
    assert arrangement.filter is None


def test_a_hidden_module_is_found_at_its_visible_ancestor(arrangement: TreeRows) -> None:
    arrangement.fold(frozenset({at_tree_rows(arrangement, "")}))

    place = arrangement.place_of(at_tree_rows(arrangement, "blocks.1.mlp"))

    assert arrangement.module(place).path == "blocks"
