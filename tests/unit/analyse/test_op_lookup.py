from __future__ import annotations

import pytest

from tests import make
from torchglass.analyse.trace import Lookup, OpLabels
from torchglass.errors import LookupFailedError

OPS = (
    make.op(0, "x", kind="input"),
    make.op(1, "conv2d", 0),
    make.op(2, "linear", 1, parameters={"fc.weight": (3, 3)}),
    make.op(3, "linear", 2, parameters={"fc.weight": (3, 3)}),
    make.op(4, "softmax", 3),
    make.op(5, "b.0", 4, kind="output"),
)
CALLS = (
    make.call(0, outputs=[make.value(2, op=4)]),
    make.call(1, "features.0", parent=0, outputs=[make.value(2, op=1)]),
    make.call(2, "fc", parent=0, outputs=[make.value(2, op=2)]),
    make.call(3, "fc", parent=0, number=2, outputs=[make.value(2, op=3)]),
    make.call(4, "nothing", parent=0),
)


@pytest.fixture
def lookup() -> Lookup:
    return Lookup(OPS, CALLS, OpLabels(OPS))


@pytest.mark.parametrize(
    "key", ["conv2d_1_1", "conv2d_1", "conv2d_1_1:1", "features.0", "features.0:1", 1, -5, "CONV2D"]
)
def test_every_name_of_an_op_finds_it(lookup: Lookup, key: int | str) -> None:
    assert lookup.find(key) == 1


@pytest.mark.parametrize("key", ["linear_1_2:2", "linear_1:2", "fc:2", 3])
def test_a_pass_is_named_with_its_number(lookup: Lookup, key: int | str) -> None:
    assert lookup.find(key) == 3


@pytest.mark.parametrize(("key", "op"), [("input.x", 0), ("input_1", 0), ("output.b.0", 5)])
def test_inputs_and_outputs_are_found_by_address(lookup: Lookup, key: str, op: int) -> None:
    assert lookup.find(key) == op


def test_a_unique_part_of_a_name_is_enough(lookup: Lookup) -> None:
    assert lookup.find("softm") == 4


def test_an_exact_name_is_preferred_over_partial_matches() -> None:
    ops = [make.op(number, "relu") for number in range(12)]

    assert Lookup(ops, (), OpLabels(ops)).find("relu_1") == 0


@pytest.mark.parametrize("key", ["linear_1_2", "linear_1", "fc", "lin"])
def test_a_layer_without_a_pass_number_lists_the_passes(lookup: Lookup, key: str) -> None:
    with pytest.raises(LookupFailedError, match=r"2 ops: linear_1_2:1, linear_1_2:2"):
        lookup.find(key)


def test_an_unknown_name_error_names_the_closest_names(lookup: Lookup) -> None:
    with pytest.raises(
        LookupFailedError, match=r"no op is called 'conv2d_9'; did you mean .*conv2d_1"
    ):
        lookup.find("conv2d_9")


@pytest.mark.parametrize("ordinal", [6, -7])
def test_an_out_of_range_ordinal_says_how_many_ops_exist(lookup: Lookup, ordinal: int) -> None:
    with pytest.raises(LookupFailedError, match=f"no layer {ordinal}: the trace has 6"):
        lookup.find(ordinal)


def test_the_keys_of_an_op_all_find_it_and_no_other(lookup: Lookup) -> None:
    for op in OPS:
        keys = lookup.keys(op.id)

        assert len(set(keys)) == len(keys)
        assert {lookup.find(key) for key in keys} == {op.id}


def test_ordinals_come_first_among_the_keys(lookup: Lookup) -> None:
    assert lookup.keys(OPS[1].id) == (
        -5,
        1,
        "conv2d_1",
        "conv2d_1:1",
        "conv2d_1_1",
        "conv2d_1_1:1",
        "features.0",
        "features.0:1",
    )


def test_an_error_is_a_key_error_with_a_readable_message(lookup: Lookup) -> None:
    with pytest.raises(KeyError) as caught:
        lookup.find("zzz")

    assert str(caught.value) == "no op is called 'zzz'; print the trace to see its names"
