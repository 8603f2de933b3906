"""Tables of plain text."""

from __future__ import annotations

import pytest

from torchglass.errors import ViewError
from torchglass.tables.column import Column, find_columns
from torchglass.tables.text import Cells, fact_lines, framed, left_out, lined_up

COLUMNS: dict[str, Column[int, int]] = {
    "double": Column("Double", lambda number, _: str(2 * number)),
    "share": Column("Share", lambda number, whole: f"{number / whole:.0%}"),
}


def test_numbers_end_at_the_right_and_no_line_ends_in_spaces() -> None:
    lines = lined_up([Cells(["Name", "a", "long"], right=False), Cells(["Size", "1", "100"])])

    assert lines == ["Name  Size", "a        1", "long   100"]


def test_wide_characters_take_two_cells() -> None:
    lines = lined_up([Cells(["Name", "模型"], right=False), Cells(["Size", "1"], right=False)])

    assert lines == ["Name  Size", "模型  1"]


def test_rules_are_as_long_as_the_longest_line() -> None:
    columns = [Cells(["A", "1"])]

    assert framed(columns) == "─\nA\n─\n1\n─"
    assert framed(columns, ["below"]) == "─────\nA\n─────\n1\n─────\nbelow\n─────"


def test_facts_stand_below_each_other() -> None:
    assert fact_lines([("Peak", "1 MB"), ("", "all of it")]) == ["Peak  1 MB", "      all of it"]


def test_what_is_not_shown_is_counted() -> None:
    assert left_out(range(1200), range(100)) == ["… and 1,100 more"]
    assert left_out([1], [1]) == []


def test_columns_are_found_by_their_names() -> None:
    titles = [column.title for column in find_columns(["share", "double"], COLUMNS)]

    assert titles == ["Share", "Double"]
    with pytest.raises(ViewError, match="no column 'half'; there are double, share"):
        find_columns(["half"], COLUMNS)
