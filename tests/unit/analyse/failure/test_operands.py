"""Where a size was set."""

from __future__ import annotations

import pytest

from tests import make
from torchglass.analyse.failure.operands import fitting_images, set_by
from torchglass.records.trace import Operand, OpId, OpRecord

Shape = tuple[int, ...]


def passing(
    function: str, before: Shape, after: Shape, weight: Shape | None = None, *texts: str
) -> tuple[list[OpRecord], Operand]:
    """An input that one op made a tensor of, and that tensor."""
    operands = [Operand(place="0", spec=make.spec(*before), op=OpId(0))]
    if weight is not None:
        operands.append(Operand(place="1", spec=make.spec(*weight), parameter="weight"))
    ops = [
        make.op(0, "x", kind="input", shape=before),
        OpRecord(
            id=OpId(1),
            function=function,
            operands=tuple(operands),
            outputs=(make.value(*after),),
            settings=tuple((str(place), text) for place, text in enumerate(texts, len(operands))),
        ),
    ]
    return ops, Operand(place="0", spec=make.spec(*after), op=OpId(1))


@pytest.mark.parametrize(
    ("function", "before", "after", "weight", "texts", "setters"),
    [
        ("relu", (2, 3), (2, 3), None, (), [0, 0]),
        ("linear", (2, 5, 3), (2, 5, 7), (7, 3), (), [0, 0, 1]),
        ("conv2d", (2, 3, 8, 8), (2, 6, 6, 6), (6, 3, 3, 3), (), [0, 1, 1, 1]),
        ("conv2d", (3, 8, 8), (6, 6, 6), (6, 3, 3, 3), (), [1, 1, 1]),
        ("max_pool2d", (2, 3, 8, 8), (2, 3, 4, 4), None, ("2",), [0, 0, 1, 1]),
        ("transpose", (2, 3), (3, 2), None, ("0", "1"), [0, 0]),
        ("permute", (2, 3, 4), (4, 2, 3), None, ("(2, 0, 1)",), [0, 0, 0]),
        ("flatten", (2, 3, 4), (2, 12), None, ("1",), [1, 1]),
    ],
)
def test_each_dimension_is_traced_to_the_op_that_set_it(
    function: str,
    before: Shape,
    after: Shape,
    weight: Shape | None,
    texts: tuple[str, ...],
    setters: list[int],
) -> None:
    ops, operand = passing(function, before, after, weight, *texts)

    assert [set_by(ops, operand, dim) for dim in range(len(after))] == setters
    assert [set_by(ops, operand, dim) for dim in range(-len(after), 0)] == setters


def test_the_size_of_a_parameter_comes_from_no_op() -> None:
    assert set_by([], Operand(place="0", spec=make.spec(2), parameter="weight"), 0) is None


def test_fitting_image_sizes_are_computed_through_a_pool() -> None:
    ops, operand = passing("max_pool2d", (2, 3, 9, 9), (2, 3, 4, 4), None, "2")

    images = fitting_images(ops, operand, lambda side: side == 5)

    assert images is not None
    assert images.shapes == ((2, 3, 10, 10), (2, 3, 11, 11))


def test_image_sizes_are_not_guessed_through_an_unknown_op() -> None:
    ops, operand = passing("interpolate", (2, 3, 8, 8), (2, 3, 4, 4))

    assert fitting_images(ops, operand, lambda side: side == 5) is None


def test_no_image_size_is_suggested_if_the_computed_size_is_wrong() -> None:
    ops, operand = passing("max_pool2d", (2, 3, 8, 8), (2, 3, 5, 5), None, "2")

    assert fitting_images(ops, operand, lambda side: side == 5) is None
