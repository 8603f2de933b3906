"""What a table column is, in text, CSV and HTML alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torchglass.errors import ViewError

R = TypeVar("R")


def _nothing(row: object) -> str:
    return ""


@dataclass(frozen=True)
class Column(Generic[R]):
    """One column of a table, for rows of one type."""

    key: str
    """What a user selects it by."""
    heading: str = ""
    """Heading in a table to read; "" for a column that only files have."""
    text: Callable[[R], str] = _nothing
    """Cell of a table to read."""
    right: bool = True
    """Whether cells are aligned right, as numbers are."""
    spare: int = 0
    """Where there is no room, columns with the highest number are left out first, those below 0
    only where names would be hard to tell apart. 0 stays."""
    usual: bool = True
    """Whether it is shown without being selected."""
    csv: str = ""
    """Heading in a CSV file; "" for a column that files do not have."""
    value: Callable[[R], Any] = _nothing
    """Cell of a CSV file."""
    bar: Callable[[R], float] | None = None
    """How much of its cell a bar fills in HTML, from 0 to 1."""


def number_column(
    key: str,
    heading: str,
    value: Callable[[R], float | None],
    format: Callable[[Any], str],
    *,
    spare: int = 0,
    usual: bool = True,
    csv: str = "",
) -> Column[R]:
    """A column whose cells are its formatted values; 0 and None are blank."""

    def text(row: R) -> str:
        number = value(row)
        return format(number) if number else ""

    return Column(key, heading, text, spare=spare, usual=usual, csv=csv, value=value)


def file_column(csv: str, value: Callable[[R], Any]) -> Column[R]:
    """A column that only files have."""
    return Column(csv, csv=csv, value=value)


def select_columns(columns: Iterable[Column[R]], keys: Iterable[str] | None) -> list[Column[R]]:
    """The columns of these keys; without keys the usual ones."""
    readable = {column.key: column for column in columns if column.heading}
    if keys is None:
        return [column for column in readable.values() if column.usual]
    found = []
    for key in keys:
        if key not in readable:
            raise ViewError(f"there is no column {key!r}; there are {', '.join(readable)}")
        found.append(readable[key])
    return found


def csv_rows(columns: Sequence[Column[R]], rows: Iterable[R]) -> tuple[list[str], list[list[Any]]]:
    """The headings and the cells of a CSV file."""
    kept = [column for column in columns if column.csv]
    cells = [[column.value(row) for column in kept] for row in rows]
    return [column.csv for column in kept], cells
