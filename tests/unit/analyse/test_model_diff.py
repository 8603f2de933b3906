"""What changed from one model to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests import make
from torchglass.analyse.model_diff import ModelDiff, SlotChange, compare
from torchglass.records.model import Model

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


def test_what_only_one_of_them_has_is_added_or_removed() -> None:
    before = model(a=linear(2, 3), old=linear(2, 2))
    after = model(a=linear(2, 3), new=linear(2, 7))

    assert verdicts(compare(before, after)) == {"new": "added", "old": "removed"}


def test_both_stand_in_one_tree_at_their_places() -> None:
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


def test_a_shape_or_a_dtype_that_changed_is_told_with_both() -> None:
    (change,) = compare(model(a=linear(2, 3)), model(a=linear(2, 4))).changes.values()

    assert change.slots == (
        SlotChange(name="weight", before=make.spec(2, 3), after=make.spec(2, 4)),
    )


def test_a_move_to_another_device_is_no_change() -> None:
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


def test_values_that_moved_are_a_change_by_their_distance() -> None:
    same = model(a=linear(2, 3), b=linear(2, 3))

    found = compare(same, same, {"a.weight": 0.25, "b.weight": 0.0})

    assert verdicts(found) == {"a": "changed"}
    assert found.changes["a"].distance == 0.25


def test_another_class_or_setting_is_a_change() -> None:
    before = model(a={"class": LINEAR, "extra": "2, 3"}, b={"class": LINEAR})
    after = model(a={"class": LINEAR, "extra": "2, 4"}, b={"class": "torch.nn.ReLU"})

    changes = compare(before, after).changes

    assert changes["a"].extra_before == "2, 3"
    assert changes["b"].class_before == LINEAR


def test_a_closed_branch_knows_how_many_changes_are_inside() -> None:
    before = model(a={"children": {"b": {"children": {"c": linear(1), "d": linear(1)}}}})
    after = model(a={"children": {"b": {"children": {"c": linear(2), "d": linear(3)}}}})

    assert compare(before, after).below == {"": 2, "a": 2, "a.b": 2}


@pytest.mark.parametrize("side", ["before", "after"])
def test_tensors_of_the_two_models_are_never_taken_for_one(side: str) -> None:
    full, bare = model(a=linear(2, 3)), model(b=linear(4, 5))
    before, after = (full, bare) if side == "before" else (bare, full)

    joined = compare(before, after).model

    assert joined.tied == {}
