"""Rows of coloured text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.unit.views.tui.panels.panel_app import text_of
from torchglass.views.tui.panels.tensor_viewer import bar_lines
from torchglass.views.tui.text_rows import (
    LazyRows,
    TableCell,
    TextRow,
    gather,
    sections,
    table,
    text,
    wrap,
)


def wrapped(words: str, width: int, indent: str = "") -> list[str]:
    return ["".join(part for part, _ in line) for line in wrap([(words, "plain")], width, indent)]


def test_words_are_kept_whole_where_they_fit() -> None:
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


def test_space_at_the_start_of_a_piece_stays() -> None:
    (line,) = wrap([("ab", "name"), ("  cd", "plain")], 20, "  ")

    assert list(line) == [("ab", "name"), ("  cd", "plain")]


@given(st.text(max_size=60), st.integers(1, 20), st.sampled_from(["", "  "]))
def test_no_line_is_wider_than_asked_for(words: str, width: int, indent: str) -> None:
    # A character of two cells cannot be made to fit into one.
    least = max(width, len(indent) + 1, 2)

    assert all(cell_len(line) <= least + len(indent) for line in wrapped(words, width, indent))


def test_cells_stand_below_each_other() -> None:
    lines = table(
        [
            [TableCell("a"), TableCell("1", right=True)],
            [TableCell("bbb"), TableCell("22", right=True)],
        ]
    )

    assert ["".join(part for part, _ in line) for line in lines] == ["a     1  ", "bbb  22  "]


def test_parts_that_say_nothing_leave_no_gap() -> None:
    assert text_of(sections([text("a")], [], [text("b")])) == "a\n\nb"


def test_rows_are_drawn_when_they_are_looked_at() -> None:
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


def test_bars_stand_on_zero_and_what_is_there_can_be_seen() -> None:
    assert bar_lines([0, 1, 50, 100], 2) == ["   █", " ▁██"]


def test_bars_of_nothing_are_empty() -> None:
    assert bar_lines([0.0, float("nan")], 1) == ["  "]
