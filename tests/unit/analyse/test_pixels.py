"""Matrices as colored pixels."""

from __future__ import annotations

import doctest
import math

import numpy as np

from torchglass.analyse import pixels
from torchglass.analyse.pixels import NOTHING, Scale, enlarge, half_blocks, paint, scale_of, sheet


def test_a_scale_that_contains_zero_is_symmetric() -> None:
    scale = scale_of([np.array([[-1.0, 4.0]])])

    assert scale == Scale(low=-4.0, high=4.0)
    assert paint(np.zeros((1, 1)), scale).item() == 0xF7F7F7


def test_a_scale_without_zero_inside_is_the_range() -> None:
    assert scale_of([np.array([[1.0]]), np.array([[3.0]])]) == Scale(low=1.0, high=3.0)


def test_non_finite_values_do_not_affect_the_scale() -> None:
    matrix = np.array([[math.nan, math.inf, 0.0, 2.0]])

    scale = scale_of([matrix])
    picture = paint(matrix, scale)

    assert scale == Scale(low=0.0, high=2.0)
    assert picture[0, 0] == 0xFF00FF
    assert picture[0, 1] == picture[0, 3]


def test_a_matrix_of_one_value_has_one_color() -> None:
    assert len(np.unique(paint(np.full((2, 2), 5.0), scale_of([np.full((2, 2), 5.0)])))) == 1


def test_a_matrix_without_finite_values_is_painted() -> None:
    matrix = np.full((1, 2), math.nan)

    assert paint(matrix, scale_of([matrix])).tolist() == [[0xFF00FF, 0xFF00FF]]


def test_small_images_are_enlarged_by_an_integer_factor() -> None:
    picture = np.array([[1, 2], [3, 4]], np.int32)

    assert enlarge(picture, 9, 5).tolist() == [
        [1, 1, 2, 2],
        [1, 1, 2, 2],
        [3, 3, 4, 4],
        [3, 3, 4, 4],
    ]
    assert enlarge(picture, 1, 1).shape == (2, 2)


def test_a_contact_sheet_has_as_many_columns_as_fit() -> None:
    tiles = [np.full((2, 3), number, np.int32) for number in range(5)]

    whole = sheet(tiles, width=11)

    assert whole.shape == (5, 11)
    assert whole[0].tolist() == [0, 0, 0, NOTHING, 1, 1, 1, NOTHING, 2, 2, 2]
    assert whole[4, -1] == NOTHING


def test_an_odd_height_leaves_the_last_half_blocks_empty() -> None:
    rows = half_blocks(np.array([[1], [2], [3]], np.int32))

    assert rows == [[("#000001", "#000002")], [("#000003", "")]]


def test_the_example_prints_what_it_says() -> None:
    assert doctest.testmod(pixels).failed == 0
