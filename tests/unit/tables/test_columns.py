"""One specification of columns makes tables to read and files."""

from __future__ import annotations

import pytest

from torchglass.errors import ViewError
from torchglass.tables.text import (
    Column,
    csv_rows,
    number_column,
    select_columns,
    table_text,
)

COLUMNS: list[Column[int]] = [
    Column("number", value=lambda number: number),
    number_column("double", "Double", lambda number: 2 * number, str, csv="twice"),
    Column("share", "Share", lambda number: f"{number / 4:.0%}", usual=False),
]


def test_columns_are_found_by_their_keys() -> None:
    titles = [column.heading for column in select_columns(COLUMNS, ["share", "double"])]

    assert titles == ["Share", "Double"]
    with pytest.raises(ViewError, match="no column 'half'; the columns are double, share"):
        select_columns(COLUMNS, ["half"])


def test_without_keys_the_default_columns_are_shown() -> None:
    assert [column.key for column in select_columns(COLUMNS, None)] == ["double"]


def test_zero_is_blank_in_text_and_0_in_csv() -> None:
    lines = table_text(select_columns(COLUMNS, ["double"]), [0, 3]).splitlines()

    assert [line.strip() for line in lines if "─" not in line] == ["Double", "", "6"]
    assert csv_rows(COLUMNS, [0, 3]) == (["number", "twice"], [[0, 0], [3, 6]])
