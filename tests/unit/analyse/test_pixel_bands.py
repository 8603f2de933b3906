"""Numbers over steps as pixels."""

from __future__ import annotations

import math

import numpy as np

from torchglass.analyse.pixels import NOTHING, draw_bands

N = NOTHING


def test_a_line_spans_from_its_highest_to_its_lowest_pixel() -> None:
    picture, low, high = draw_bands([np.array([2.0, 1.0, 0.0])], [7], 3)

    assert (low, high) == (0.0, 2.0)
    assert picture.tolist() == [[7, 7, N], [N, 7, 7], [N, N, 7]]


def test_a_jump_is_drawn_as_one_line() -> None:
    picture, *_ = draw_bands([np.array([0.0, 9.0])], [7], 4)

    assert picture[:, 1].tolist() == [7, 7, 7, 7]


def test_bands_surround_the_line() -> None:
    lines = [np.array([float(level)]) for level in range(5)]

    picture, *_ = draw_bands(lines, [1, 2, 3], 5)

    assert picture[:, 0].tolist() == [1, 2, 3, 2, 1]


def test_a_non_finite_step_leaves_a_gap() -> None:
    picture, low, high = draw_bands([np.array([0.0, math.nan, 1.0, math.inf])], [7], 2)

    assert (low, high) == (0.0, 1.0)
    assert picture[:, 1].tolist() == [N, N]
    assert picture[:, 2].tolist() == [7, N]
    assert picture[:, 3].tolist() == [N, N]


def test_a_constant_line_is_centered() -> None:
    picture, *_ = draw_bands([np.array([3.0, 3.0])], [7], 3)

    assert picture.tolist() == [[N, N], [7, 7], [N, N]]


def test_no_finite_values_give_an_empty_plot() -> None:
    picture, low, high = draw_bands([np.array([math.nan])], [7], 2)

    assert (low, high) == (0.0, 0.0)
    assert picture.tolist() == [[N], [N]]
