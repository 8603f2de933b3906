"""Numbers are written as the seeds write them."""

import math

import pytest

from torchglass.tables.text import (
    format_bytes,
    format_count,
    format_shape,
    format_share,
    format_time,
    harmless,
    pad,
    shorten,
    sparkline,
    width,
)


def test_a_shape_is_written_with_multiplication_signs() -> None:
    assert format_shape((3, 224, 224)) == "3×224×224"
    assert format_shape(()) == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (9_408, "9.4K"),
        (1_700_000, "1.7M"),
        (5_400_000_000, "5.4B"),
        (70_000_000_000, "70.0B"),
    ],
)
def test_a_count_is_written_with_its_magnitude(count: int, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (259_584, "253.5 KB"), (2**30, "1.0 GB"), (2**41, "2.0 TB")],
)
def test_memory_is_written_in_steps_of_1024(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5e-9, "5.0ns"),
        (1.5e-6, "1.50μs"),
        (0.00123, "1.23ms"),
        (2.5, "2.5000s"),
        (12.5, "12.50s"),
        (90, "1.5min"),
        (5400, "1.5h"),
    ],
)
def test_a_time_is_written_in_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert format_time(seconds) == text


def test_a_share_too_small_for_a_percent_is_not_rounded_away() -> None:
    assert [format_share(part, 1000) for part in (0, 1, 250, 1000)] == ["0%", "<1%", "25%", "100%"]
    assert format_share(0, 0) == ""


def test_a_sparkline_shows_the_last_values_and_leaves_gaps_for_nan() -> None:
    assert sparkline([9, 0, math.nan, 7], 3) == "▁ █"
    assert sparkline([math.inf], 3) == " "
    assert sparkline([2, 2], 3) == "▁▁"


def test_a_sparkline_does_not_magnify_rounding_errors() -> None:
    assert sparkline([0.1 + 0.2, 0.3], 3) == "▁▁"
    assert sparkline([-1e-12, 1e-12], 3) == "▁█"


def test_control_characters_are_shown_escaped() -> None:
    assert harmless("conv\x1b[2J\n\u202e\udc80") == r"conv\x1b[2J\n\u202e\udc80"
    assert harmless("café 漢字 →") == "café 漢字 →"


def test_long_text_is_shortened_in_the_middle() -> None:
    assert shorten("abcdefghij", 5) == "ab…ij"
    assert shorten("abcde", 5) == "abcde"


def test_padding_uses_the_display_width_of_text() -> None:
    assert [width(text) for text in ("abc", "├─ a", "漢字", "e\u0301")] == [3, 4, 4, 1]
    assert pad("漢", 4) == "漢  "
    assert pad("1", 3, right=True) == "  1"
