"""Slices that are typed, and looks that are browsed."""

from __future__ import annotations

import doctest

import pytest

from torchglass.views.tui.panels import slices
from torchglass.views.tui.panels.slices import TensorSlice, channels_of, read_slice

SHAPE = (8, 3, 5, 6)


def look_at(words: str, shape: tuple[int, ...] = SHAPE) -> TensorSlice:
    look = TensorSlice(shape)
    look.take(read_slice(words, shape))
    return look


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "[0, 0, :, :]"),
        ("[]", "[0, 0, :, :]"),
        ("2", "[2, 0, :, :]"),
        ("[2, 1]", "[2, 1, :, :]"),
        (" [ 2,1 , : ,3:6] ", "[2, 1, :, 3:]"),
        ("2, 1, 1:4, 0", "[2, 1, 1:4, 0]"),
        ("-1, -1, ::2", "[7, 2, ::2, :]"),
        ("..., 4", "[0, :, :, 4]"),
        ("1, ..., 2:4", "[1, 0, :, 2:4]"),
        ("1, 1, 1, 1", "[1, 1, 1, 1]"),
        ("1, 1, -3:-1,", "[1, 1, 2:4, :]"),
        ("0, 0, :99", "[0, 0, :, :]"),
    ],
)
def test_a_slice_is_read_as_python_reads_it(words: str, text: str) -> None:
    assert look_at(words).text == text


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("1, 2, 3, 4, 5", "5 indices for 4 dimensions"),
        ("9", "index 9 is out of range: dimension 0 has size 8"),
        ("0, -4", "index -4 is out of range: dimension 1 has size 3"),
        ("0, x", "“x” is not an index"),
        ("0,,1", "“” is not an index"),
        ("1.5", "“1.5” is not an index"),
        ("4:4", "“4:4” is empty: dimension 0 has size 8"),
        ("::0", "the step in “::0” must be 1 or more"),
        ("::-1", "the step in “::-1” must be 1 or more"),
        ("..., ...", "Use “...” only once"),
    ],
)
def test_what_is_wrong_with_a_slice_is_said(words: str, problem: str) -> None:
    with pytest.raises(ValueError, match="^" + problem.replace(".", r"\.")):
        read_slice(words, SHAPE)


def test_a_number_has_no_dimensions() -> None:
    assert read_slice("", ()) == ()
    with pytest.raises(ValueError, match="1 index for no dimensions"):
        read_slice("0", ())


def test_the_last_two_stretches_are_rows_and_columns_and_the_one_before_is_browsed() -> None:
    look = look_at("2:6:2, :, 0")

    assert (look.shown, look.moving) == ((1, 3), 0)
    assert look.position == (0, 2)
    look.browse(1)
    assert look.text == "[4, :, 0, :]"
    look.browse(1)
    assert look.text == "[2, :, 0, :]"


def test_sides_are_places_in_the_tensor() -> None:
    look = look_at("2, 1, 1:4, ::2")

    assert look.sides == (range(1, 4), range(0, 6, 2))
    assert look.extent == (3, 3)


def test_what_has_no_rows_has_no_picture() -> None:
    look = look_at("2")
    look.next_mode()

    look.take(read_slice("2, 1, 0", SHAPE))

    assert look.mode == "numbers"
    assert look.modes == ("numbers",)
    assert look.extent == (1, 6)


def test_axes_are_turned_after_a_slice_with_none() -> None:
    look = look_at("1, 1, 1, 1")

    look.turn()

    assert look.text == "[:, :, 1, 1]"


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        ((3, 32, 32), 0),
        ((4, 3, 8, 8), 1),
        ((32, 32, 3), 2),
        ((2, 16, 24, 3), 3),
        ((64, 64, 3, 3), None),
        ((32, 32), None),
        ((3,), None),
        ((4, 8, 8), None),
    ],
)
def test_red_green_and_blue_come_before_the_picture_or_after_it(
    shape: tuple[int, ...], channels: int | None
) -> None:
    assert channels_of(shape) == channels


def test_colours_are_seen_together_or_one_by_one() -> None:
    look = TensorSlice((2, 16, 24, 3), coloured=True)
    look.next_mode()

    assert (look.is_coloured, look.text, look.seen) == (True, "[0, :, :, :]", (1, 2))
    assert look.modes == ("numbers", "picture", "sheet")
    look.turn_colours()
    assert (look.is_coloured, look.text) == (False, "[0, 0, :, :]")


def test_colours_of_numbers_are_a_picture() -> None:
    look = TensorSlice((3, 16, 24))

    look.turn_colours()

    assert (look.mode, look.is_coloured, look.moving) == ("picture", True, None)
    assert look.modes == ("numbers", "picture")


def test_channels_side_by_side_become_one_picture() -> None:
    look = TensorSlice((3, 16, 24))
    look.next_mode()
    look.next_mode()

    look.turn_colours()

    assert (look.mode, look.is_coloured) == ("picture", True)


def test_what_has_no_three_channels_is_not_coloured() -> None:
    look = TensorSlice((4, 16, 24), coloured=True)

    look.turn_colours()
    look.next_mode()

    assert not look.is_coloured


def test_the_example_prints_what_it_says() -> None:
    assert doctest.testmod(slices).failed == 0
