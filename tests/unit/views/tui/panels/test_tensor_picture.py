"""Tensors as pictures."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.unit.views.tui.panels.panel_app import text_of
from torchglass.records.attributes import Index
from torchglass.views.tui.panels.slices import TensorSlice
from torchglass.views.tui.panels.tensor_viewer import TensorPicture
from torchglass.views.tui.text_rows import TextRow

WHITE, BLACK, RED, MAGENTA = "#ffffff", "#000000", "#ff0000", "#ff00ff"


def painter(
    numbers: npt.NDArray[np.float32], *, dtype: str = "float32", shades: bool = False
) -> TensorPicture:
    look = TensorSlice(numbers.shape, coloured=True)
    look.next_mode()

    def fetch(index: Index, tall: int, wide: int) -> npt.NDArray[np.float32]:
        parts = (slice(p.start, p.stop) if isinstance(p, range) else p for p in index)
        plane: npt.NDArray[np.float32] = numbers[tuple(parts)][:tall, :wide]
        return plane

    return TensorPicture(fetch, look, dtype, shades=shades)


def colours(rows: list[TextRow]) -> list[str]:
    """The pixels of the first line of cells, the upper ones first."""
    (cells,) = rows[0].pictures
    return [pixel for pixel, _ in cells] + [pixel for _, pixel in cells]


@pytest.mark.parametrize("last", [False, True])
def test_three_channels_are_red_green_and_blue(last: bool) -> None:
    numbers = np.zeros((3, 4, 4), np.float32)
    numbers[:, 0, 0] = 1
    numbers[0, 1, 0] = 1

    rows = painter(np.moveaxis(numbers, 0, -1) if last else numbers).picture(4, 2)

    assert colours(rows) == [WHITE, BLACK, BLACK, BLACK, RED, BLACK, BLACK, BLACK]
    assert text_of(rows[-1:]) == "0 … 1 as red, green and blue"


def test_bytes_are_colours_as_they_are() -> None:
    rows = painter(np.full((3, 4, 4), 51, np.float32), dtype="uint8").picture(4, 2)

    assert set(colours(rows)) == {"#333333"}


def test_other_numbers_are_stretched_to_all_colours() -> None:
    numbers = np.full((3, 4, 4), -2, np.float32)
    numbers[:, 0, 0] = 3

    rows = painter(numbers).picture(4, 2)

    assert colours(rows)[:2] == [WHITE, BLACK]
    assert text_of(rows[-1:]).startswith("-2 … 3 as")


def test_what_is_no_number_stands_out_among_colours() -> None:
    numbers = np.zeros((3, 4, 4), np.float32)
    numbers[1, 0, 2] = np.nan

    assert colours(painter(numbers).picture(4, 2))[2] == MAGENTA


def test_the_ends_around_a_zero_are_told_apart_in_shades() -> None:
    numbers = np.array([[-1.0, 0.0, 1.0]] * 2, np.float32)

    coloured = colours(painter(numbers).picture(3, 1))
    shaded = colours(painter(numbers, shades=True).picture(3, 1))

    brightness = [sum(bytes.fromhex(one[1:])) for one in shaded[:3]]
    assert brightness == sorted(brightness)
    assert coloured != shaded


@pytest.mark.parametrize(
    ("shape", "room", "cells"),
    [
        ((40, 40), (30, 8), (16, 8)),
        ((40, 80), (30, 50), (30, 8)),
        ((400, 4), (30, 10), (4, 10)),
        ((4, 4), (30, 10), (20, 10)),
    ],
)
def test_a_picture_keeps_its_shape_as_far_as_it_can_be_seen(
    shape: tuple[int, int], room: tuple[int, int], cells: tuple[int, int]
) -> None:
    numbers = np.zeros(shape, np.float32)

    *rows, _ = painter(numbers).picture(*room)

    assert (len(rows[0].pictures[0]), len(rows)) == cells


def test_many_coloured_pictures_lie_side_by_side() -> None:
    numbers = np.random.default_rng(0).random((4, 3, 4, 4), np.float32)
    paints = painter(numbers)
    paints._look.next_mode()

    rows = paints.sheet(19, 2)

    assert text_of(rows[-1:]) == "slices 0 – 3 of 4  0 … 1 as red, green and blue"
