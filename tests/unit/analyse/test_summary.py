"""What a summary counts, selects and estimates."""

from __future__ import annotations

from tests import make
from torchglass.analyse.summary import SummaryReport, summarize

SMALL = {"class": "Linear", "weight": (1, 2)}
LARGE = {"class": "Linear", "weight": (30, 40)}


def shown(report: SummaryReport) -> list[str]:
    return [row.module.path for row in report.rows]


def test_rows_stop_at_the_requested_depth() -> None:
    model = make.model({"children": {"a": {"children": {"b": SMALL}}}})

    assert shown(summarize(model, depth=0)) == [""]
    assert shown(summarize(model, depth=1)) == ["", "a"]
    assert shown(summarize(model)) == ["", "a", "a.b"]


def test_siblings_are_sorted_and_children_stay_with_their_parents() -> None:
    model = make.model({"children": {"a": {"children": {"x": SMALL, "y": LARGE}}, "b": SMALL}})

    assert shown(summarize(model, sort="params")) == ["", "a", "a.y", "a.x", "b"]


def test_names_are_sorted_by_the_numbers_in_them() -> None:
    model = make.model({"children": {"10": SMALL, "9": SMALL, "b": SMALL}})

    assert shown(summarize(model, sort="name")) == ["", "9", "10", "b"]


def test_the_last_sibling_is_marked_after_sorting() -> None:
    model = make.model({"children": {"small": SMALL, "large": LARGE}})

    rows = summarize(model, sort="bytes").rows

    assert [(row.module.name, row.last) for row in rows[1:]] == [("large", False), ("small", True)]


def test_a_folded_row_has_the_sum_of_its_members() -> None:
    model = make.model({"children": {"0": LARGE, "1": LARGE, "2": LARGE}})

    _, row = summarize(model, fold=True).rows

    assert len(row.members) == 3
    assert row.total.parameters == 3 * 1200
    assert row.own.parameters == 1200


def test_a_tensor_shared_by_folded_blocks_is_counted_once() -> None:
    tied = {**LARGE, "tied": {"weight": "shared"}}
    model = make.model({"children": {"0": tied, "1": tied}})

    _, row = summarize(model, fold=True).rows

    assert row.total.parameters == 1200


def test_the_second_owner_of_a_tensor_names_the_first() -> None:
    head = {**LARGE, "tied": {"weight": "embed.weight"}}
    model = make.model({"children": {"embed": LARGE, "head": head}})

    rows = summarize(model).rows

    assert [row.tied_to for row in rows] == [(), (), ("embed.weight",)]


def test_outputs_sharing_storage_are_counted_once_for_the_backward() -> None:
    model = make.model({"children": {"norm": SMALL, "relu": {"class": "ReLU"}}})
    calls = [
        make.call(0, inputs=[make.value(4, memory=1)], outputs=[make.value(8, memory=2)]),
        make.call(1, "norm", parent=0, outputs=[make.value(8, memory=2)]),
        make.call(2, "relu", parent=0, outputs=[make.value(8, memory=2)]),
    ]

    assert summarize(model, calls).memory.activation_bytes == 8 * 4


def test_an_output_that_is_the_input_takes_no_memory() -> None:
    calls = [make.call(0, inputs=[make.value(4, memory=1)], outputs=[make.value(4, memory=1)])]

    assert summarize(make.model(), calls).memory.activation_bytes == 0


def test_inference_memory_is_weights_plus_the_largest_innermost_call() -> None:
    model = make.model({"children": {"a": SMALL, "b": SMALL}})
    calls = [
        make.call(0, inputs=[(1000,)], outputs=[(1000,)]),
        make.call(1, "a", parent=0, inputs=[(10,)], outputs=[(20,)]),
        make.call(2, "b", parent=0, inputs=[(20,)], outputs=[(5,)]),
    ]

    memory = summarize(model, calls).memory

    assert memory.inference_bytes == memory.weight_bytes + (10 + 20) * 4


def test_training_memory_includes_gradients_and_adam_moments() -> None:
    memory = summarize(make.model({"children": {"a": LARGE}})).memory

    assert memory.activation_bytes is None
    assert memory.training_bytes == 4 * memory.weight_bytes == 4 * 1200 * 4


def test_a_branch_shows_the_dtypes_of_its_parameters() -> None:
    report = summarize(make.model({"children": {"a": LARGE, "relu": {"class": "ReLU"}}}))

    assert [row.dtypes for row in report.rows] == [("float32",), ("float32",), ()]
