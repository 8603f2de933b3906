"""Rules that were broken, told from records alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from tests import make
from torchglass.analyse.failure.failure import ExceptionContext, Failure
from torchglass.analyse.failure.operands import BrokenRule
from torchglass.records.model import Stats
from torchglass.records.trace import Operand, OpId, OpRecord, SourceLine, TraceRecord

Tensor = tuple[int, ...]


def given(place: str, *shape: int, op: int | None = None, **fields: Any) -> Operand:
    """A tensor among the arguments of an op."""
    dtype = fields.pop("dtype", "float32")
    device = fields.pop("device", "cpu")
    return Operand(
        place=place,
        spec=make.spec(*shape, dtype=dtype, device=device),
        op=None if op is None else OpId(op),
        **fields,
    )


def failed(function: str, *operands: Operand, id: int = 0, **fields: Any) -> OpRecord:
    """An op that raised."""
    return OpRecord(id=OpId(id), function=function, operands=operands, **fields)


def judged(
    op: OpRecord,
    *,
    error: str = "RuntimeError: no",
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> BrokenRule:
    """What is said of an op that failed alone, whose numbers lie in ranges by place."""
    numbers = {
        place: Stats(count=1, min=low, max=high, mean=0, std=0)
        for place, (low, high) in (ranges or {}).items()
    }
    record = make.trace([], error=error, failed=op)
    verdict = Failure(record, make.model(), ExceptionContext(stats=numbers)).verdict
    assert verdict is not None
    return verdict


def unexplained(op: OpRecord, error: str = "RuntimeError: no") -> bool:
    """Whether nothing is claimed of an op that failed."""
    return Failure(make.trace([], error=error, failed=op), make.model()).verdict is None


def settings(*texts: str, first: int = 1) -> tuple[tuple[str, str], ...]:
    """Arguments that are no tensors, one after the other."""
    return tuple((str(place), text) for place, text in enumerate(texts, first))


def test_flattening_is_suggested_for_a_linear_that_needs_it() -> None:
    verdict = judged(failed("linear", given("0", 2, 16, 5, 5), given("1", 10, 400)))

    assert verdict.why.startswith("this linear expects 400 features")
    assert verdict.fits[0] == "flatten it first: input.flatten(1) is 2×400"


def test_transposing_is_suggested_for_a_transposed_linear_input() -> None:
    verdict = judged(failed("linear", given("0", 2, 8, 3), given("1", 10, 8)))

    assert verdict.fits[0] == "transpose it: input.transpose(-2, -1) is 2×3×8"


def test_a_matmul_suggests_only_transposes_that_work() -> None:
    verdict = judged(failed("matmul", given("0", 2, 3), given("1", 4, 3)))

    assert verdict.fits == ("transpose the right one: left @ right.mT is 2×4",)
    assert verdict.sizes == (("left", -1), ("right", -2))


@pytest.mark.parametrize(
    ("left", "right", "why"),
    [
        ((2, 3, 4), (5, 4, 6), "the batches do not match"),
        ((2, 3), (2, 3), "bmm expects tensors with 3 dimensions"),
    ],
)
def test_a_batched_matmul_needs_matching_batch_sizes(left: Tensor, right: Tensor, why: str) -> None:
    assert judged(failed("bmm", given("0", *left), given("1", *right))).why.startswith(why)


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((2, 3), "this conv2d expects N×C×H×W"),
        ((2, 4, 8, 8), "this conv2d expects 3 channels"),
        ((2, 3, 4, 4), "the window of this conv2d covers 5×5, but its input is only 4×4"),
    ],
)
def test_a_convolution_checks_dimensions_channels_and_input_size(shape: Tensor, why: str) -> None:
    verdict = judged(failed("conv2d", given("0", *shape), given("1", 6, 3, 5, 5)))

    assert verdict.why.startswith(why)


def test_padding_counts_toward_the_input_size() -> None:
    op = failed(
        "conv2d",
        given("0", 2, 3, 4, 4),
        given("1", 6, 3, 9, 9),
        settings=settings("(1, 1)", "(2, 2)", "(1, 1)", "1", first=3),
    )

    verdict = judged(op)

    assert "but its input is only 4×4 (8×8 with padding)" in verdict.why
    assert verdict.fits == ("pass an input of at least 5×5", "pad it: padding=(3, 3) is enough")


def test_concatenating_along_another_dimension_is_suggested_only_if_all_sizes_match() -> None:
    three = [given("0.0", 2, 3), given("0.1", 2, 4), given("0.2", 5, 4)]

    two_fit = judged(failed("cat", *three[:2]))
    three_do_not = judged(failed("cat", *three))

    assert two_fit.fits == ("join them along dimension 1", "make tensors[1] 2×3")
    assert three_do_not.fits == ()


def test_unsqueeze_is_suggested_for_shapes_that_do_not_broadcast() -> None:
    verdict = judged(failed("__iadd__", given("0", 4, 3), given("1", 4)))

    assert "the last dimension is 3 in one and 4 in the other" in verdict.why
    assert verdict.fits == ("right.unsqueeze(1) is 4×1; the result 4×3",)


def test_an_in_place_op_cannot_grow_its_tensor() -> None:
    verdict = judged(failed("add_", given("0", 2, 3), given("1", 4, 2, 3), writes=True))

    assert verdict.why.endswith("2×3, but the result would be 4×2×3")


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (("4", "-1"), "not a multiple of 4"),
        (("(4, -1)",), "not a multiple of 4"),
        (("torch.Size([2, 4])",), "2×3 has 6 elements, but 2×4 has 8"),
    ],
)
def test_a_view_keeps_the_number_of_elements(texts: tuple[str, ...], why: str) -> None:
    verdict = judged(failed("view", given("0", 2, 3), settings=settings(*texts)))

    assert why in verdict.why
    assert verdict.fits == ("input.reshape(2, -1) is 2×3",)


def test_expanding_a_dimension_larger_than_one_is_refused() -> None:
    verdict = judged(failed("expand", given("0", 2, 3), settings=settings("4", "3")))

    assert "dimension -2 of 2×3 is 2 and cannot become 4" in verdict.why
    assert verdict.fits == ("keep that size: input.expand(-1, 3)",)


def test_an_einsum_index_must_have_one_size() -> None:
    op = failed("einsum", given("1", 2, 3), given("2", 2, 4), settings=(("0", "'ij,kj->ik'"),))

    assert judged(op).why.startswith('j in "ij,kj->ik" is 3 in operands[0] 2×3 and 4')


@pytest.mark.parametrize(
    ("function", "operands", "texts", "why"),
    [
        ("batch_norm", [given("0", 2, 4, 5), given("1", 8)], (), "num_features=8"),
        ("layer_norm", [given("0", 2, 4)], ("(8,)",), "normalizes over 8"),
        ("group_norm", [given("0", 2, 4, 5), given("weight", 8)], ("4",), "num_channels=8"),
        ("group_norm", [given("0", 2, 4, 5)], ("3",), "cannot be divided into 3 groups"),
    ],
)
def test_normalization_layers_check_their_channels(
    function: str, operands: list[Operand], texts: tuple[str, ...], why: str
) -> None:
    assert why in judged(failed(function, *operands, settings=settings(*texts))).why


def test_indices_are_checked_against_the_rows_of_an_embedding() -> None:
    op = failed("embedding", given("0", 2, dtype="int64"), given("1", 10, 4))

    assert "0 to 9, but the largest index is 12" in judged(op, ranges={"0": (0, 12)}).why
    assert "0 to 9, but the smallest index is -1" in judged(op, ranges={"0": (-1, 5)}).why
    assert unexplained(op)


@pytest.mark.parametrize(
    ("target", "dtype", "why"),
    [
        ((3,), "int64", "the target must be (2,) with class indices, or 2×4 with"),
        ((2,), "float32", "it must be int64"),
        ((2, 4), "int64", "so it must be floating point"),
    ],
)
def test_a_loss_target_is_checked_for_shape_and_dtype(target: Tensor, dtype: str, why: str) -> None:
    op = failed("cross_entropy", given("0", 2, 4), given("1", *target, dtype=dtype))

    assert why in judged(op).why


def test_flattening_is_suggested_for_predictions_with_classes_last() -> None:
    op = failed("cross_entropy", given("0", 2, 5, 9), given("1", 2, 5, dtype="int64"))

    assert "input.flatten(0, -2) is 10×9 and target.flatten() 10" in judged(op).fits[0]


def test_ignore_index_is_not_out_of_range() -> None:
    op = failed(
        "cross_entropy",
        given("0", 2, 4),
        given("1", 2, dtype="int64"),
        settings=(("ignore_index", "-1"),),
    )
    record = make.trace([], error="RuntimeError: no", failed=op)
    numbers = {"1": Stats(count=2, min=-1, max=3, mean=1, std=2)}

    assert Failure(record, make.model(), ExceptionContext(stats=numbers)).verdict is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(slice(None, None, None), 7)", "dimension 1 of 2×3 has indices 0 to 2, not 7"),
        ("(Ellipsis, 5)", "dimension 1 of 2×3 has indices 0 to 2, not 5"),
        ("(None, -3)", "dimension 0 of 2×3 has indices 0 to 1, not -3"),
        ("(0, 1, 2)", "2×3 has 2 dimensions, fewer than there are indices"),
    ],
)
def test_a_subscript_is_checked_per_dimension(text: str, why: str) -> None:
    op = failed("__getitem__", given("0", 2, 3), settings=settings(text))

    assert judged(op).why.startswith(why)


def test_an_index_tensor_in_a_subscript_is_checked() -> None:
    op = failed(
        "__getitem__",
        given("0", 2, 3),
        given("1.1", 4, dtype="int64"),
        settings=(("1.0", "slice(None, None, None)"),),
    )

    verdict = judged(op, ranges={"1.1": (0, 3)})

    assert verdict.why == "dimension 1 of 2×3 has indices 0 to 2, but index[1] has 3"


def test_a_device_mismatch_suggests_moving_the_input_first() -> None:
    op = failed(
        "linear",
        given("0", 2, 4),
        given("1", 3, 4, device="cuda:0", parameter="fc.weight"),
    )

    verdict = judged(op, error="RuntimeError: Expected all tensors to be on the same device")

    assert "input is on cpu, weight is on cuda:0" in verdict.why
    assert verdict.fits == ('input.to("cuda:0")', 'model.to("cpu")')


def test_a_dtype_mismatch_is_explained() -> None:
    op = failed(
        "linear", given("0", 2, 4, dtype="float16"), given("1", 3, 4, parameter="fc.weight")
    )

    verdict = judged(op, error="RuntimeError: mat1 and mat2 must have the same dtype")

    assert verdict.fits == ("input.to(torch.float32)", "model.to(torch.float16)")


@pytest.mark.parametrize("function", ["linear", "conv2d", "cat", "view", "add", "fancy_new_op"])
def test_an_error_without_a_matching_rule_is_unexplained(function: str) -> None:
    assert unexplained(failed(function, given("0", 2, 3)))


def _layered() -> TraceRecord:
    """A linear layer, relu and dropout of it, and a second layer that raises."""
    ops = [
        make.op(0, "x", kind="input", shape=(2, 10), outputs=(make.value(2, 10),)),
        OpRecord(
            id=OpId(1),
            function="linear",
            operands=(given("0", 2, 10, op=0), given("1", 4, 10, parameter="a.weight")),
            outputs=(make.value(2, 4),),
            site=1,
        ),
        make.op(2, "relu", 1, shape=(2, 4)),
        make.op(3, "dropout", 2, shape=(2, 4)),
    ]
    last = failed(
        "linear", given("0", 2, 4, op=3), given("1", 2, 8, parameter="b.weight"), id=4, site=4
    )
    return make.trace(ops, error="RuntimeError: no", failed=last)


def test_the_op_that_set_a_size_is_found_past_ops_that_keep_it() -> None:
    [found] = Failure(_layered(), make.model()).set_sizes

    assert (found.size, found.op.id) == (4, 1)


def test_an_earlier_run_of_an_op_is_found_by_its_parameters() -> None:
    record = _layered()
    assert record.failed is not None
    again = dataclasses.replace(
        record.failed,
        operands=(given("0", 2, 4, op=3), given("1", 4, 10, parameter="a.weight")),
    )

    assert Failure(record, make.model()).earlier == ()
    [earlier] = Failure(dataclasses.replace(record, failed=again), make.model()).earlier
    assert earlier.id == 1


def test_a_python_error_is_assigned_to_a_module_by_stack_depth() -> None:
    calls = [
        make.call(0),
        make.call(1, "a", parent=0, outputs=[(2, 3)]),
        make.call(2, "b", parent=0, inputs=[(2, 3)]),
    ]
    record = make.trace([], calls, error="KeyError: 'x'")
    source = SourceLine(file="net.py", line=3, function="forward")

    inner = Failure(record, make.model(), ExceptionContext(depth=2, source=source))
    outer = Failure(record, make.model(), ExceptionContext(depth=1))
    unknown = Failure(make.trace([], calls[:2], error="KeyError: 'x'"), make.model())

    assert inner.call is not None
    assert inner.call.path == "b"
    assert inner.source == source
    assert [tensor.shape for tensor in inner.tensors] == [(2, 3)]
    assert outer.call is not None
    assert outer.call.path == ""
    assert unknown.call is not None
    assert unknown.call.path == ""


def test_torchglass_lines_are_not_shown_as_user_code() -> None:
    import torchglass.analyse.failure.failure as ours

    source = SourceLine(file=ours.__file__, line=1, function="f")
    op = failed("relu", given("0", 2), source=source)

    assert Failure(make.trace([], error="E: e", failed=op), make.model()).source is None
