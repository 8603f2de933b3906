from __future__ import annotations

import pytest

from tests import make
from torchglass.analyse.trace import OpLabels
from torchglass.records.trace import OpRecord


def names(*ops: OpRecord) -> list[str]:
    return [str(label) for label in OpLabels(ops)]


def test_a_label_counts_the_ops_of_its_type_and_all_layers() -> None:
    ops = (
        make.op(0, "x", kind="input"),
        make.op(1, "conv2d", 0),
        make.op(2, "relu", 1),
        make.op(3, "conv2d", 2),
        make.op(4, "", 3, kind="output"),
    )

    assert names(*ops) == ["input_1_0", "conv2d_1_1", "relu_1_2", "conv2d_2_3", "output_1_4"]


def test_underscores_are_removed_from_an_op_type() -> None:
    ops = (make.op(0, "max_pool2d"), make.op(1, "__add__"), make.op(2, "relu_"))

    assert names(*ops) == ["maxpool2d_1_0", "add_1_1", "relu_1_2"]


def test_the_passes_of_a_layer_share_its_label_numbers() -> None:
    weight = {"fc.weight": (3, 3)}
    ops = (
        make.op(0, "linear", parameters=weight),
        make.op(1, "sigmoid", 0),
        make.op(2, "linear", 1, parameters=weight),
        make.op(3, "tanh", 2),
    )

    assert names(*ops) == ["linear_1_0:1", "sigmoid_1_1", "linear_1_0:2", "tanh_1_2"]


def test_an_op_that_ran_once_is_also_its_layers_first_pass() -> None:
    (label,) = OpLabels((make.op(0, "conv2d"),))

    assert list(label.keys()) == ["conv2d_1", "conv2d_1:1", "conv2d_1_0", "conv2d_1_0:1"]


def test_a_layer_with_several_passes_has_no_key_without_a_pass() -> None:
    first, second = OpLabels((make.op(0, "relu", site=5), make.op(1, "relu", 0, site=5)))

    assert list(first.keys()) == ["relu_1:1", "relu_1_0:1"]
    assert list(second.keys()) == ["relu_1:2", "relu_1_0:2"]


def test_no_ops_have_no_labels() -> None:
    assert not OpLabels(())


def test_layers_have_a_long_and_a_short_name() -> None:
    layers = OpLabels((make.op(0, "relu", site=5), make.op(1, "relu", 0, site=5))).layers

    assert dict(layers) == {"relu_1_0": (0, 1), "relu_1": (0, 1)}
    assert len(layers) == 2


@pytest.mark.parametrize("name", ["relu", "relu_2", "relu_0", "relu_01", "relu_1_7", "relu_1_0_0"])
def test_a_partial_name_is_not_a_layer(name: str) -> None:
    assert name not in OpLabels((make.op(0, "relu"),)).layers


def test_labels_support_slices_and_negative_indices() -> None:
    found = OpLabels((make.op(0, "conv2d"), make.op(1, "relu", 0)))

    assert str(found[-1]) == "relu_1_1"
    assert [str(label) for label in found[:1]] == ["conv2d_1_0"]
