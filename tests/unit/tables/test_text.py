"""A table fits into the terminal that it is printed to, and says what it had no room for."""

from __future__ import annotations

import pytest

from torchglass.tables.text import (
    Fact,
    TextColumn,
    broken,
    fact_lines,
    fitted,
    framed,
    left_out,
    lined_up,
    note_lines,
    shortened,
    width,
    wrapped,
)

COLUMNS = [
    TextColumn(["Module", "├─ fc"], right=False),
    TextColumn(["Calls", "1,000"], spare=2),
    TextColumn(["Forward", "1.00ms"]),
    TextColumn(["share", "50%"], spare=1),
    TextColumn(["Backward", "2.00ms"]),
    TextColumn(["share", "50%"], spare=1),
]


def titles(columns: list[TextColumn]) -> list[str]:
    return [column.texts[0] for column in columns]


def test_a_table_that_fits_is_unchanged() -> None:
    assert fitted(COLUMNS, 46) == COLUMNS


def test_the_least_important_column_is_dropped_first() -> None:
    assert titles(fitted(COLUMNS, 45)) == ["Module", "Forward", "share", "Backward", "share"]


def test_columns_of_one_group_are_dropped_together() -> None:
    assert titles(fitted(COLUMNS, 38)) == ["Module", "Forward", "Backward"]


def test_a_required_column_stays_in_the_smallest_terminal() -> None:
    assert titles(fitted(COLUMNS, 3)) == ["Module", "Forward", "Backward"]


def test_long_names_are_shortened_before_a_column_is_dropped() -> None:
    columns = [
        TextColumn(["Module", "encoder.layers.11.attention"], right=False),
        TextColumn(["Calls", "1"], spare=1),
    ]

    names, calls = fitted(columns, 27)

    assert names.texts == ["Module", "encoder.l….attention"]
    assert calls == columns[1]


def test_names_are_shortened_further_when_no_column_can_be_dropped() -> None:
    columns = [
        TextColumn(["Module", "encoder.attention"], right=False),
        TextColumn(["Time", "1.00ms"]),
    ]

    assert fitted(columns, 20)[0].texts == ["Module", "encod…ention"]


def test_an_optional_column_is_dropped_before_names_become_unreadable() -> None:
    columns = [
        TextColumn(["Module", "encoder.layers.11.attention"], right=False),
        TextColumn(["Time", "1.00ms"]),
        TextColumn(["Share", "100%"], spare=-1),
    ]

    assert titles(fitted(columns, 27)) == ["Module", "Time", "Share"]
    assert titles(fitted(columns, 26)) == ["Module", "Time"]


def test_numbers_are_never_truncated() -> None:
    columns = [TextColumn(["Bytes", "123,456,789,012"])]

    assert fitted(columns, 5) == columns


def test_tree_lines_stay_in_front_of_a_shortened_name() -> None:
    assert shortened("│  ├─ normalisation_before", 18) == "│  ├─ norma…before"


def test_deep_in_a_tree_a_name_keeps_both_ends_and_its_branch() -> None:
    assert shortened("│  │  │  │  ├─ projection", 16) == "… │  ├─ pro…tion"
    assert shortened("│  │  │  │  ├─ fc", 9) == "…│  ├─ fc"
    assert shortened("│  │  │  │  ├─ projection", 8) == "pro…tion"


def test_wide_characters_count_as_two_cells_when_fitting() -> None:
    short = shortened("模型模型模型模型", 9)

    assert width(short) <= 9
    assert short.startswith("模")
    assert short.endswith("型")


def test_a_table_lists_each_dropped_column_once() -> None:
    lines = framed(COLUMNS, ["a fact"], room=38).splitlines()

    assert lines[5:] == [
        "a fact",
        "Note: hidden at 38 columns: Calls,",
        "      share; use a wider terminal or a",
        "      file.",
        "─" * 38,
    ]


def test_a_table_that_fits_has_no_note() -> None:
    assert framed(COLUMNS, room=80) == framed(COLUMNS)


@pytest.mark.parametrize("room", [25, 38, 60])
def test_no_line_of_a_table_exceeds_its_width(room: int) -> None:
    below = [*fact_lines([Fact("Peak", "so many bytes in so many places")], room), "a fact"]

    lines = framed(COLUMNS, below, note_lines(["a long story that goes on"], room), room=room)

    assert max(map(width, lines.splitlines())) <= room


def test_a_long_fact_wraps_under_its_value() -> None:
    assert fact_lines([Fact("Peak", "one two three"), Fact("Step", "four")], 14) == [
        "Peak  one two",
        "      three",
        "Step  four",
    ]


def test_a_text_that_fits_is_one_line() -> None:
    assert wrapped("one two", 20, before="• ") == ["• one two"]
    assert wrapped("one two", None) == ["one two"]


def test_a_long_line_wraps_with_extra_indentation() -> None:
    text = "Log:\n\tparents: conv2d_1_1, relu_1_2\n\n\tnone"

    assert broken(text, 24).splitlines() == [
        "Log:",
        "    parents:",
        "      conv2d_1_1,",
        "      relu_1_2",
        "",
        "    none",
    ]
    assert broken(text, None) == text


def test_a_deep_indent_leaves_room_for_the_words() -> None:
    lines = broken(" " * 60 + "some words that are too long", 30).splitlines()

    assert max(map(width, lines)) <= 30
    assert " ".join(" ".join(lines).split()) == "some words that are too long"


@pytest.mark.parametrize("room", [12, 20, 30])
def test_lines_wrap_by_display_width(room: int) -> None:
    text = "エンコーダーの長い名前, 頭.weight and\n\ta_name_that_is_longer_than_any_line_here"

    lines = broken(text, room).splitlines()

    assert max(map(width, lines)) <= room
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_numbers_are_right_aligned_and_lines_have_no_trailing_spaces() -> None:
    lines = lined_up(
        [TextColumn(["Name", "a", "long"], right=False), TextColumn(["Size", "1", "100"])]
    )

    assert lines == ["Name  Size", "a        1", "long   100"]


def test_wide_characters_count_as_two_cells() -> None:
    lines = lined_up(
        [TextColumn(["Name", "模型"], right=False), TextColumn(["Size", "1"], right=False)]
    )

    assert lines == ["Name  Size", "模型  1"]


def test_rules_are_as_long_as_the_longest_line() -> None:
    columns = [TextColumn(["A", "1"])]

    assert framed(columns) == "─\nA\n─\n1\n─"
    assert framed(columns, ["below"]) == "─────\nA\n─────\n1\n─────\nbelow\n─────"


def test_facts_are_aligned_below_each_other() -> None:
    assert fact_lines([Fact("Peak", "1 MB"), Fact("", "all of it")]) == [
        "Peak  1 MB",
        "      all of it",
    ]


def test_hidden_rows_are_counted() -> None:
    assert left_out(range(1200), range(100)) == ["… and 1,100 more"]
    assert left_out([1], [1]) == []
