"""What changed from one model to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests import make
from torchglass.analyse.model_diff import ModelDiff, SlotChange, compare
from torchglass.records.model import Model, Module

LINEAR = "torch.nn.Linear"


def model(**children: make.Tree) -> Model:
    return make.model({"children": children})


def linear(*shape: int) -> make.Tree:
    return {"class": LINEAR, "weight": shape}


def verdicts(comparison: ModelDiff) -> Mapping[str, str]:
    return {path: change.verdict for path, change in comparison.changes.items()}


def test_a_model_does_not_differ_from_itself() -> None:
    same = model(a=linear(2, 3))

    assert verdicts(compare(same, same)) == {}


def test_modules_in_only_one_model_are_added_or_removed() -> None:
    before = model(a=linear(2, 3), old=linear(2, 2))
    after = model(a=linear(2, 3), new=linear(2, 7))

    assert verdicts(compare(before, after)) == {"new": "added", "old": "removed"}


def test_both_models_are_merged_in_one_tree() -> None:
    inner = {"children": {"x": linear(1), "y": linear(1)}}
    before = model(a=inner, b={"children": {"z": linear(2)}})
    after = model(a={"children": {"x": linear(1), "w": linear(5)}})

    joined = compare(before, after).model

    assert [module.path for module in joined.modules] == [
        *("", "a", "a.x", "a.w", "a.y"),
        *("b", "b.z"),
    ]
    assert [module.id for module in joined.modules] == list(range(7))
    assert all(
        joined[child].parent == module.id for module in joined.modules for child in module.children
    )


def test_a_changed_shape_or_dtype_shows_old_and_new() -> None:
    (change,) = compare(model(a=linear(2, 3)), model(a=linear(2, 4))).changes.values()

    assert change.slots == (
        SlotChange(name="weight", before=make.spec(2, 3), after=make.spec(2, 4)),
    )


def test_a_different_device_is_not_a_change() -> None:
    before = model(a=linear(2, 3))
    on_gpu = [
        replace(
            module,
            slots=tuple(
                replace(slot, spec=replace(slot.spec, device="cuda:0")) for slot in module.slots
            ),
        )
        for module in before.modules
    ]

    assert verdicts(compare(before, replace(before, modules=tuple(on_gpu)))) == {}


def test_changed_values_are_a_change_with_their_distance() -> None:
    same = model(a=linear(2, 3), b=linear(2, 3))

    found = compare(same, same, {"a.weight": 0.25, "b.weight": 0.0})

    assert verdicts(found) == {"a": "changed"}
    assert found.changes["a"].distance == 0.25


def test_a_different_class_or_setting_is_a_change() -> None:
    before = model(a={"class": LINEAR, "extra": "2, 3"}, b={"class": LINEAR})
    after = model(a={"class": LINEAR, "extra": "2, 4"}, b={"class": "torch.nn.ReLU"})

    changes = compare(before, after).changes

    assert changes["a"].extra_before == "2, 3"
    assert changes["b"].class_before == LINEAR


def test_a_collapsed_branch_counts_the_changes_inside() -> None:
    before = model(a={"children": {"b": {"children": {"c": linear(1), "d": linear(1)}}}})
    after = model(a={"children": {"b": {"children": {"c": linear(2), "d": linear(3)}}}})

    assert compare(before, after).below == {"": 2, "a": 2, "a.b": 2}


@pytest.mark.parametrize("side", ["before", "after"])
def test_tensors_of_two_models_are_never_tied(side: str) -> None:
    full, bare = model(a=linear(2, 3)), model(b=linear(4, 5))
    before, after = (full, bare) if side == "before" else (bare, full)

    joined = compare(before, after).model

    assert joined.tied == {}


def sides(comparison: ModelDiff) -> list[tuple[int, str | None, str | None]]:
    def path(module: Module | None) -> str | None:
        return None if module is None else module.path

    return [(row.depth, path(row.before), path(row.after)) for row in comparison.side_by_side]


def test_in_a_merged_tree_each_module_is_next_to_its_counterpart() -> None:
    before = model(a=linear(2, 3), gone={"children": {"x": linear(7)}}, b=linear(4, 4))
    after = model(new=linear(5, 5), a=linear(2, 3), renamed=linear(4, 4))

    found = compare(before, after, pairs={"": "", "a": "a", "renamed": "b"})

    assert sides(found) == [
        (0, "", ""),
        (1, None, "new"),
        (1, "a", "a"),
        (1, "gone", None),
        (2, "gone.x", None),
        (1, "b", "renamed"),
    ]
    verdicts = [row.change and row.change.verdict for row in found.side_by_side]
    assert verdicts == [None, "added", None, "removed", "removed", "changed"]


def test_a_removed_module_keeps_its_row_if_its_path_was_reused() -> None:
    before, after = model(a=linear(2, 3)), model(a=linear(9, 9))

    found = compare(before, after, pairs={"": ""})

    assert sides(found) == [(0, "", ""), (1, "a", None), (1, None, "a")]
    assert found.changed_paths == ("a",)


def test_changes_are_listed_in_the_order_of_the_tree() -> None:
    inner = {"children": {"z": linear(2), "a": linear(2)}}
    same = model(b=inner, a=linear(2, 3))

    found = compare(same, same, {"a.weight": 0.1, "b.a.weight": 0.1, "b.z.weight": 0.1})

    assert found.changed_paths == ("b.z", "b.a", "a")
