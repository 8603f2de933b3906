"""Themes, and styled text that fits the cells of a terminal."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.theme import BUILTIN_THEMES

from tests.unit.views.tui.panels.panel_app import text_of
from torchglass.analyse.pixels import squeeze
from torchglass.views.tui.panels.tensor_viewer import bar_lines
from torchglass.views.tui.styled_text import (
    DARK,
    LIGHT,
    LazyRows,
    TableCell,
    TextRow,
    bar,
    column_colors,
    fit,
    fit_path,
    gather,
    sections,
    table,
    text,
    theme_for,
    wrap,
)


@pytest.mark.parametrize("text", ["", "abc", "層が広い", "mixed 層 text", "🙂🙂🙂"])
@pytest.mark.parametrize("width", [0, 1, 2, 5, 20])
def test_fitted_text_takes_exactly_the_given_width(text: str, width: int) -> None:
    assert cell_len(fit(text, width)) == width


def test_truncated_text_is_marked() -> None:
    assert fit("attention", 5) == "atte…"


def test_numbers_are_right_aligned() -> None:
    assert fit("12", 4, right=True) == "  12"


def test_a_bar_and_its_remainder_fill_the_width() -> None:
    assert [len("".join(bar(share, 6))) for share in (0.0, 0.1, 0.5, 0.99, 1.0)] == [6] * 5


def test_a_small_share_still_shows() -> None:
    assert bar(0.0001, 6) == ("╸", "─────")


def test_a_full_share_fills_the_bar() -> None:
    assert bar(1.0, 6) == ("━━━━━━", "")


def test_few_values_are_not_averaged() -> None:
    assert squeeze(np.array([1.0, 2.0]), 8) == [1.0, 2.0]


def test_many_values_become_means_of_equal_intervals() -> None:
    assert squeeze(np.arange(8.0), 4) == [0.5, 2.5, 4.5, 6.5]


def test_a_nan_affects_only_its_own_interval() -> None:
    values = np.arange(8.0)
    values[2] = math.nan

    squeezed = squeeze(values, 4)

    assert math.isnan(squeezed[1])
    assert squeezed[2:] == [4.5, 6.5]


@pytest.mark.parametrize(
    ("path", "width", "short"),
    [
        ("blocks.0.attn.proj", 18, "blocks.0.attn.proj"),
        ("blocks.0.attn.proj", 15, "b.0.attn.proj"),
        ("blocks.10.attention.proj", 11, "b.10.a.proj"),
        ("encoder", 4, "e…er"),
        ("a.b", 5, "a.b"),
    ],
)
def test_a_long_path_abbreviates_its_first_names(path: str, width: int, short: str) -> None:
    assert fit_path(path, width) == short.ljust(width)


@given(st.text(), st.integers(0, 40))
def test_an_abbreviated_path_has_exactly_the_given_width(path: str, width: int) -> None:
    assert cell_len(fit_path(path, width)) == width


def wrapped(words: str, width: int, indent: str = "") -> list[str]:
    return ["".join(part for part, _ in line) for line in wrap([(words, "plain")], width, indent)]


def test_words_that_fit_are_not_broken() -> None:
    assert wrapped("one two three", 8, " ") == ["one two", " three"]


def test_a_word_longer_than_a_line_is_broken() -> None:
    assert wrapped("a bbbbbbbbbb c", 4) == ["a", "bbbb", "bbbb", "bb c"]


def test_a_group_of_words_goes_to_the_next_line_as_a_whole() -> None:
    groups = [[("mean ", "muted"), ("1.5", "number")], [("std ", "muted"), ("0.25", "number")]]

    assert ["".join(words for words, _ in line) for line in gather(groups, 18)] == [
        "mean 1.5  std 0.25"
    ]
    assert ["".join(words for words, _ in line) for line in gather(groups, 17)] == [
        "mean 1.5",
        "std 0.25",
    ]


def test_leading_space_of_a_segment_is_kept() -> None:
    (line,) = wrap([("ab", "name"), ("  cd", "plain")], 20, "  ")

    assert list(line) == [("ab", "name"), ("  cd", "plain")]


@given(st.text(max_size=60), st.integers(1, 20), st.sampled_from(["", "  "]))
def test_no_line_exceeds_the_requested_width(words: str, width: int, indent: str) -> None:
    # A character of two cells cannot be made to fit into one.
    least = max(width, len(indent) + 1, 2)

    assert all(cell_len(line) <= least + len(indent) for line in wrapped(words, width, indent))


def test_cells_are_aligned_in_columns() -> None:
    lines = table(
        [
            [TableCell("a"), TableCell("1", right=True)],
            [TableCell("bbb"), TableCell("22", right=True)],
        ]
    )

    assert ["".join(part for part, _ in line) for line in lines] == ["a     1  ", "bbb  22  "]


def test_empty_sections_leave_no_gap() -> None:
    assert text_of(sections([text("a")], [], [text("b")])) == "a\n\nb"


def test_rows_are_drawn_on_access() -> None:
    drawn: list[int] = []

    def draw(at: int) -> TextRow:
        drawn.append(at)
        return text(str(at))

    rows = LazyRows(1_000_000, draw)

    assert text_of(rows[5:7]) == "5\n6"
    assert text_of([rows[-1]]) == "999999"
    assert drawn == [5, 6, 999_999]
    with pytest.raises(IndexError):
        rows[1_000_000]


def test_bars_start_at_zero_and_small_values_are_visible() -> None:
    assert bar_lines([0, 1, 50, 100], 2) == ["   █", " ▁██"]


def test_bars_of_zero_and_nan_are_empty() -> None:
    assert bar_lines([0.0, float("nan")], 1) == ["  "]


@pytest.mark.parametrize(
    ("environment", "theme"),
    [
        ({}, "glass-dark"),
        ({"COLORFGBG": "15;0"}, "glass-dark"),
        ({"COLORFGBG": "0;15"}, "glass-light"),
        ({"COLORFGBG": "0;default;7"}, "glass-light"),
        ({"COLORFGBG": "0;15", "TEXTUAL_THEME": "nord"}, "nord"),
    ],
)
def test_the_theme_is_the_users_choice_or_fits_the_terminal(
    environment: dict[str, str], theme: str
) -> None:
    assert theme_for(environment) == theme


def test_every_theme_defines_all_column_colors() -> None:
    names = set(column_colors(DARK))

    assert all(set(column_colors(theme)) == names for theme in (LIGHT, *BUILTIN_THEMES.values()))
