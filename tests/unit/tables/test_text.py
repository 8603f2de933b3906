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


def test_what_fits_stays_as_it_is() -> None:
    assert fitted(COLUMNS, 46) == COLUMNS


def test_the_least_telling_column_is_left_out_first() -> None:
    assert titles(fitted(COLUMNS, 45)) == ["Module", "Forward", "share", "Backward", "share"]


def test_columns_of_one_kind_are_left_out_together() -> None:
    assert titles(fitted(COLUMNS, 38)) == ["Module", "Forward", "Backward"]


def test_a_column_that_cannot_be_spared_stays_in_the_smallest_terminal() -> None:
    assert titles(fitted(COLUMNS, 3)) == ["Module", "Forward", "Backward"]


def test_long_names_lose_their_middle_before_a_column_is_left_out() -> None:
    columns = [
        TextColumn(["Module", "encoder.layers.11.attention"], right=False),
        TextColumn(["Calls", "1"], spare=1),
    ]

    names, calls = fitted(columns, 27)

    assert names.texts == ["Module", "encoder.l….attention"]
    assert calls == columns[1]


def test_names_are_cut_further_when_nothing_is_left_to_spare() -> None:
    columns = [
        TextColumn(["Module", "encoder.attention"], right=False),
        TextColumn(["Time", "1.00ms"]),
    ]

    assert fitted(columns, 20)[0].texts == ["Module", "encod…ention"]


def test_a_column_that_is_missed_goes_where_names_would_be_hard_to_tell() -> None:
    columns = [
        TextColumn(["Module", "encoder.layers.11.attention"], right=False),
        TextColumn(["Time", "1.00ms"]),
        TextColumn(["Share", "100%"], spare=-1),
    ]

    assert titles(fitted(columns, 27)) == ["Module", "Time", "Share"]
    assert titles(fitted(columns, 26)) == ["Module", "Time"]


def test_numbers_are_never_cut() -> None:
    columns = [TextColumn(["Bytes", "123,456,789,012"])]

    assert fitted(columns, 5) == columns


def test_the_lines_of_a_tree_stay_before_a_name_that_is_cut() -> None:
    assert shortened("│  ├─ normalisation_before", 18) == "│  ├─ norma…before"


def test_deep_in_a_tree_both_ends_of_the_name_and_its_own_line_stay() -> None:
    assert shortened("│  │  │  │  ├─ projection", 16) == "… │  ├─ pro…tion"
    assert shortened("│  │  │  │  ├─ fc", 9) == "…│  ├─ fc"
    assert shortened("│  │  │  │  ├─ projection", 8) == "pro…tion"


def test_wide_characters_take_two_cells_of_the_room() -> None:
    short = shortened("模型模型模型模型", 9)

    assert width(short) <= 9
    assert short.startswith("模")
    assert short.endswith("型")


def test_a_table_says_what_it_left_out_and_each_title_once() -> None:
    lines = framed(COLUMNS, ["a fact"], room=38).splitlines()

    assert lines[5:] == [
        "a fact",
        "Note: hidden at 38 columns: Calls,",
        "      share; use a wider terminal or a",
        "      file.",
        "─" * 38,
    ]


def test_a_table_with_room_for_all_says_nothing() -> None:
    assert framed(COLUMNS, room=80) == framed(COLUMNS)


@pytest.mark.parametrize("room", [25, 38, 60])
def test_no_line_of_a_table_is_longer_than_its_room(room: int) -> None:
    below = [*fact_lines([Fact("Peak", "so many bytes in so many places")], room), "a fact"]

    lines = framed(COLUMNS, below, note_lines(["a long story that goes on"], room), room=room)

    assert max(map(width, lines.splitlines())) <= room


def test_a_fact_goes_on_below_its_first_word() -> None:
    assert fact_lines([Fact("Peak", "one two three"), Fact("Step", "four")], 14) == [
        "Peak  one two",
        "      three",
        "Step  four",
    ]


def test_a_text_that_fits_is_one_line() -> None:
    assert wrapped("one two", 20, before="• ") == ["• one two"]
    assert wrapped("one two", None) == ["one two"]


def test_a_line_without_room_goes_on_below_itself() -> None:
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
def test_lines_are_broken_by_the_cells_that_they_take(room: int) -> None:
    text = "エンコーダーの長い名前, 頭.weight and\n\ta_name_that_is_longer_than_any_line_here"

    lines = broken(text, room).splitlines()

    assert max(map(width, lines)) <= room
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_numbers_end_at_the_right_and_no_line_ends_in_spaces() -> None:
    lines = lined_up(
        [TextColumn(["Name", "a", "long"], right=False), TextColumn(["Size", "1", "100"])]
    )

    assert lines == ["Name  Size", "a        1", "long   100"]


def test_wide_characters_take_two_cells() -> None:
    lines = lined_up(
        [TextColumn(["Name", "模型"], right=False), TextColumn(["Size", "1"], right=False)]
    )

    assert lines == ["Name  Size", "模型  1"]


def test_rules_are_as_long_as_the_longest_line() -> None:
    columns = [TextColumn(["A", "1"])]

    assert framed(columns) == "─\nA\n─\n1\n─"
    assert framed(columns, ["below"]) == "─────\nA\n─────\n1\n─────\nbelow\n─────"


def test_facts_stand_below_each_other() -> None:
    assert fact_lines([Fact("Peak", "1 MB"), Fact("", "all of it")]) == [
        "Peak  1 MB",
        "      all of it",
    ]


def test_what_is_not_shown_is_counted() -> None:
    assert left_out(range(1200), range(100)) == ["… and 1,100 more"]
    assert left_out([1], [1]) == []
