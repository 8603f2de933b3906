"""Numbers, shapes and tables as people read them, the same in every view."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from torchglass.errors import ViewError

if TYPE_CHECKING:
    from torchglass.records.model import TensorSpec

NOT_RUN = "–"
SAME_AS = "↗"
SPARKS = "▁▂▃▄▅▆▇█"
_ROUNDING = 1e-9
"""Values that differ by less than this share of their size are equal."""

_ONE_CELL_EACH = re.compile(r"[ -~─-╿×·–…→↗≈]*")


def format_shape(shape: Iterable[int] | None) -> str:
    """A shape with multiplication signs.

    Args:
        shape: The sizes. None or an empty shape gives "".

    Returns:
        The text.

    Example:
        >>> format_shape((3, 224, 224))
        '3×224×224'
    """
    return "×".join(str(size) for size in shape) if shape else ""


class Shaped(Protocol):
    """Anything with a tensor's shape."""

    @property
    def spec(self) -> TensorSpec:
        """The tensor's shape and dtype."""


def shape_text(spec: TensorSpec) -> str:
    """The shape of any tensor: "scalar" without dimensions, "?" if it is not known."""
    if spec.shape is None:
        return "?"
    return format_shape(spec.shape) or "scalar"


def first_shape(tensors: Sequence[Shaped]) -> str:
    """The shape of the first tensor and how many more follow: "8×16 +1"; "" for none."""
    if not tensors:
        return ""
    more = f" +{len(tensors) - 1}" if len(tensors) > 1 else ""
    return shape_text(tensors[0].spec) + more


def format_count(count: int) -> str:
    """A count in K, M or B.

    Args:
        count: The count.

    Returns:
        The text.

    Example:
        >>> format_count(1_700_000)
        '1.7M'
    """
    if count < 1_000:
        return f"{count}"
    for limit, unit in ((1_000_000, "K"), (1_000_000_000, "M")):
        if count < limit:
            return f"{count * 1_000 / limit:.1f}{unit}"
    return f"{count / 1_000_000_000:.1f}B"


def format_flops(count: float) -> str:
    """A number of operations with three digits and a unit: 3628146688 is "3.63 G"."""
    if count < 1000:
        return f"{count:.0f}"
    for unit in "KMGTP":
        count /= 1000
        # Rounded, 999.7 would be 1000.
        if count < 999.5:
            digits = 2 if count < 9.995 else 1 if count < 99.95 else 0
            return f"{count:.{digits}f} {unit}"
    return f"{count / 1000:.2f} E"


def format_bytes(count: float, *, step: int = 1024) -> str:
    """An amount of memory in steps of 1024, or of 1000: 253.5 KB."""
    if count < step:
        return f"{count:.0f} B"
    for unit in ("KB", "MB", "GB"):
        count /= step
        if count < step:
            return f"{count:.1f} {unit}"
    return f"{count / step:.1f} TB"


def format_time(seconds: float) -> str:
    """A duration in the unit that suits it.

    Args:
        seconds: The duration.

    Returns:
        The text.

    Example:
        >>> format_time(0.00123)
        '1.23ms'
    """
    if seconds < 1e-6:
        return f"{seconds * 1e9:.1f}ns"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.2f}μs"
    if seconds < 1.0:
        return f"{seconds * 1e3:.2f}ms"
    if seconds < 60.0:
        return f"{seconds:.4f}s" if seconds < 10.0 else f"{seconds:.2f}s"
    minutes = seconds / 60.0
    return f"{minutes:.1f}min" if minutes < 60.0 else f"{minutes / 60.0:.1f}h"


def format_ns(nanoseconds: float) -> str:
    """A duration that was measured in nanoseconds."""
    return format_time(nanoseconds / 1e9)


def format_share(part: float, whole: float) -> str:
    """A share in percent; "<1%" instead of a rounded 0%."""
    if not whole:
        return ""
    percent = 100 * part / whole
    return "<1%" if 0 < percent < 1 else f"{percent:.0f}%"


def share_text(part: float, whole: float) -> str:
    """A share in percent, "" for nothing."""
    return format_share(part, whole) if part else ""


def sparkline(values: Sequence[float], width: int) -> str:
    """A row of bars for the last `width` values; what is not finite leaves a gap."""
    shown = values[-width:]
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return " " * len(shown)
    low, high = min(finite), max(finite)
    # Values that differ only by rounding are drawn at the same height.
    is_flat = high - low <= _ROUNDING * max(abs(low), abs(high))
    scale = 0.0 if is_flat else (len(SPARKS) - 1) / (high - low)
    return "".join(
        SPARKS[round((value - low) * scale)] if math.isfinite(value) else " " for value in shown
    )


def harmless(text: str) -> str:
    r"""The text with control characters as visible escapes: "\n", "\x1b"."""
    if text.isprintable() and text.isascii():
        return text
    return "".join(_escape(char) if _is_control(char) else char for char in text)


def plural(count: int, noun: str) -> str:
    """A count and its noun: "1 op", "1,200 ops"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def shorten(text: str, limit: int) -> str:
    """A text shortened in the middle to `limit` characters: names differ at their ends."""
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def width(text: str) -> int:
    """The terminal cells that a text takes: wide characters take two, combining ones none."""
    if _ONE_CELL_EACH.fullmatch(text):
        return len(text)
    visible = (char for char in text if not unicodedata.combining(char))
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in visible)


def pad(text: str, cells: int, *, right: bool = False) -> str:
    """The text padded with spaces to this many cells; with `right` they come first."""
    space = " " * (cells - width(text))
    return space + text if right else text + space


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def _is_control(char: str) -> bool:
    # Variation selectors are marks, but terminals disagree on their width.
    is_control = unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return is_control or "\ufe00" <= char <= "\ufe0f"


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
    """Without enough room, columns with the highest number are left out first, those below 0
    only if names would become too short. 0 is never left out."""
    usual: bool = True
    """Whether it is shown without being selected."""
    csv: str = ""
    """Heading in a CSV file, if it is not the key."""
    value: Callable[[R], Any] | None = None
    """Cell of a CSV file; None for a column that files do not have."""
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
    """A column whose cells are its formatted values; 0 and None are blank. In files with `csv`."""

    def text(row: R) -> str:
        number = value(row)
        return format(number) if number else ""

    in_file = value if csv else None
    return Column(key, heading, text, spare=spare, usual=usual, csv=csv, value=in_file)


def select_columns(columns: Iterable[Column[R]], keys: Iterable[str] | None) -> list[Column[R]]:
    """The columns of these keys; without keys the usual ones."""
    readable = {column.key: column for column in columns if column.heading}
    if keys is None:
        return [column for column in readable.values() if column.usual]
    found = []
    for key in keys:
        if key not in readable:
            raise ViewError(f"no column {key!r}; the columns are {', '.join(readable)}")
        found.append(readable[key])
    return found


def csv_rows(columns: Sequence[Column[R]], rows: Iterable[R]) -> tuple[list[str], list[list[Any]]]:
    """The headings and the cells of a CSV file."""
    values = [(column.csv or column.key, column.value) for column in columns if column.value]
    return [name for name, _ in values], [[value(row) for _, value in values] for row in rows]


GAP = "  "
_READABLE = 20
"""Optional columns are left out before names are cut shorter than this."""
_TIGHT = 12
"""Columns below 0 are left out rather than cutting names shorter than this."""
_LEAST = 8
_LONGEST_NAME = 60
_MOST_ROWS = 100
"""In a table without a chosen depth."""
_LEAST_LINES = 5
"""The lines that a shortened part of a text keeps at least."""
BRIEF_LINES = 40
"""The maximum number of lines of a brief text."""
_TAB = 4
_GUIDES = "│├└─ "


@dataclass(frozen=True)
class TextColumn:
    """The texts of one column of a table."""

    texts: Sequence[str]
    """Its heading, then a cell for each line."""
    right: bool = True
    """Whether cells are aligned right, as numbers are; others may be shortened in the middle."""
    spare: int = 0
    """As in `Column`."""

    @cached_property
    def width(self) -> int:
        """The terminal cells that the longest of its texts takes."""
        return max(map(width, self.texts))


class TreeRow(Protocol):
    """A row with a place in a tree."""

    @property
    def depth(self) -> int:
        """How far it is below the root."""

    @property
    def last(self) -> bool:
        """Whether no sibling follows."""


class Fact(NamedTuple):
    """One quantity of a whole report."""

    label: str
    text: str
    meaning: str = ""
    """What it includes, if the label does not say."""


def column_texts(columns: Iterable[Column[R]], rows: Sequence[R]) -> list[TextColumn]:
    """The columns with a cell for each row."""
    return [
        TextColumn([column.heading, *map(column.text, rows)], column.right, column.spare)
        for column in columns
    ]


def table_text(
    columns: Iterable[Column[R]], rows: Sequence[R], *below: Sequence[str], room: int | None = None
) -> str:
    """A table between rules, with blocks of lines below it."""
    return framed(column_texts(columns, rows), *below, room=room)


def name_column(rows: Sequence[TreeRow], names: Iterable[str]) -> TextColumn:
    """The names of modules behind the guides of their tree."""
    shown = (
        guide + shorten(name, _LONGEST_NAME)
        for guide, name in zip(guides(rows, "─"), names, strict=True)
    )
    return TextColumn(["Module", *shown], right=False)


def name_text(name: str) -> str:
    """A name from the user's code that is safe to print and not too long."""
    return shorten(harmless(name), _LONGEST_NAME)


def readable_depth(depths: Sequence[int]) -> int:
    """The depth down to which a tree has about a hundred rows; 0 if its first level has more."""
    levels = range(max(depths, default=0), 0, -1)
    return next((level for level in levels if sum(d <= level for d in depths) <= _MOST_ROWS), 0)


def fitted(columns: Sequence[TextColumn], room: int) -> list[TextColumn]:
    """The columns that fit into this many terminal cells."""
    shown = list(columns)
    for spare in sorted({column.spare for column in columns if column.spare}, reverse=True):
        if _taken(shown, _READABLE if spare > 0 else _TIGHT) <= room:
            break
        shown = [column for column in shown if column.spare != spare]
    limits = range(max(column.width for column in shown), _LEAST, -1)
    limit = next((limit for limit in limits if _taken(shown, limit) <= room), _LEAST)
    return [column if column.right else _cut(column, limit) for column in shown]


def wrapped(text: str, room: int | None, *, before: str = "") -> list[str]:
    """A text in lines of this many cells, indented by the width of `before`."""
    if room is None or width(before + text) <= room:
        return [before + text]
    first, *others = _folded(text, max(room - width(before), _LEAST))
    return [before + first, *(" " * width(before) + line for line in others)]


def broken(text: str, room: int | None) -> str:
    """A text with its long lines wrapped."""
    if room is None:
        return text
    return "\n".join(part for line in text.splitlines() for part in _parts(line, room))


def shortened(text: str, limit: int) -> str:
    """A text shortened to this many terminal cells; its tree guides are cut at the left."""
    if width(text) <= limit:
        return text
    name = text.lstrip(_GUIDES)
    guide = text[: len(text) - len(name)]
    if guide:
        room = max(limit - min(width(name), _LEAST), 0)
        before = guide if len(guide) <= room else f"…{guide[len(guide) - room + 1 :]}" * (room > 1)
        return before + shortened(name, limit - len(before))
    # Some characters take two cells.
    return next(
        short for length in range(limit, 0, -1) if width(short := shorten(text, length)) <= limit
    )


def _parts(line: str, room: int) -> list[str]:
    """One line wrapped, with its indent as long as that leaves room."""
    line = line.expandtabs(_TAB)
    if width(line) <= room:
        return [line]
    text = line.lstrip(" ")
    indent = line[: min(len(line) - len(text), max(room - _READABLE, 0))]
    first, *others = _folded(text, max(room - len(indent + GAP), _LEAST))
    return [indent + first, *(indent + GAP + other for other in others)]


def _folded(text: str, room: int) -> list[str]:
    """A text in lines of this many terminal cells; a word is broken only if it is longer."""
    lines = [""]
    for word, spaces in re.findall(r"(\S+)(\s*)", text.replace("\n", " ")):
        rest = word
        if lines[-1] and width(lines[-1] + word) > room:
            lines.append("")
        while width(rest) > room:
            part = next(rest[:end] for end in range(room, 0, -1) if width(rest[:end]) <= room)
            lines[-1:] = [part, ""]
            rest = rest[len(part) :]
        lines[-1] += rest + spaces
    return [line.rstrip() for line in lines]


def _taken(columns: Sequence[TextColumn], limit: int) -> int:
    """The width of a table in which no name is longer than the limit."""
    widths = (column.width if column.right else min(column.width, limit) for column in columns)
    return sum(widths) + len(GAP) * (len(columns) - 1)


def _cut(column: TextColumn, limit: int) -> TextColumn:
    return replace(column, texts=[shortened(text, limit) for text in column.texts])


def framed(columns: Iterable[TextColumn], *below: Sequence[str], room: int | None = None) -> str:
    """A table between rules, with blocks of lines below it."""
    every = list(columns)
    shown = every if room is None else fitted(every, room)
    heading, *lines = lined_up(shown)
    *blocks, last = [block for block in below if block] or [()]
    kept = {column.spare for column in shown}
    missing = (column.texts[0] for column in every if column.spare not in kept)
    blocks.append([*last, *missing_note(missing, room)])
    rule = rule_for([heading, *lines, *(line for block in blocks for line in block)])
    parts = [[heading], lines, *(block for block in blocks if block)]
    return "\n".join([rule, *(line for part in parts for line in (*part, rule))])


def lined_up(columns: Iterable[TextColumn]) -> list[str]:
    """The lines of a table, headings first."""
    aligned = [_align(column.texts, right=column.right) for column in columns]
    return [GAP.join(line).rstrip() for line in zip(*aligned, strict=True)]


def aligned_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with aligned columns."""
    return lined_up(TextColumn(column, right=False) for column in zip(*rows, strict=True))


def rule_for(lines: Iterable[str]) -> str:
    """A rule as long as the longest line."""
    return "─" * max(map(width, lines))


def fact_lines(facts: Sequence[Fact], room: int | None = None) -> list[str]:
    """Facts below each other, their labels aligned."""
    labels = _align([fact.label for fact in facts], right=False)
    return [
        line
        for label, (_, text, meaning) in zip(labels, facts, strict=True)
        for line in wrapped(f"{text}: {meaning}" if meaning else text, room, before=label + GAP)
    ]


def note_lines(notes: Iterable[str], room: int | None = None) -> list[str]:
    """Notes, wrapped."""
    return [line for note in notes for line in wrapped(f"{note}.", room, before="Note: ")]


def ends(items: Sequence[R], most: int) -> tuple[Sequence[R], int, Sequence[R]]:
    """The start of a long list, the number of items left out of its middle, and its end."""
    if len(items) <= most:
        return items, 0, ()
    half = most // 2
    return items[:half], len(items) - 2 * half, items[-half:]


def shortened_lines(text: str, most: int) -> str:
    """A text in at most this many lines: the longest parts between rules and blank lines end early.

    A line says how many are missing.
    """
    lines = text.splitlines()
    parts = [list(part) for _, part in groupby(lines, key=lambda line: bool(line.strip("─ ")))]
    for part in sorted(parts, key=len, reverse=True):
        excess = sum(map(len, parts)) - most
        # One line more than that, for the line that says so.
        cut = min(excess + 1, len(part) - _LEAST_LINES)
        if excess > 0 and cut > 1:
            part[-cut:] = [_missing_lines(cut, len(lines))]
    kept = [line for part in parts for line in part]
    if len(kept) > most:
        kept = [*lines[: most - 1], _missing_lines(len(lines) - most + 1, len(lines))]
    return "\n".join(kept)


def _missing_lines(count: int, total: int) -> str:
    return f"… {count:,} of {total:,} lines left out; to_json() (--json) has everything"


def left_out(every: Sequence[object], shown: Sequence[object]) -> list[str]:
    """A line that says how many are not shown, if any."""
    count = len(every) - len(shown)
    return [f"… and {count:,} more"] if count else []


def missing_note(what: Iterable[str], room: int | None) -> list[str]:
    """A note on what did not fit, if anything."""
    names = ", ".join(dict.fromkeys(what))
    note = f"hidden at {room} columns: {names}; use a wider terminal or a file"
    return note_lines([note], room) if names else []


def _align(cells: Sequence[str], *, right: bool) -> list[str]:
    widths = [width(cell) for cell in cells]
    longest = max(widths)
    spaces = [" " * (longest - taken) for taken in widths]
    return [
        space + cell if right else cell + space for cell, space in zip(cells, spaces, strict=True)
    ]


def guides(rows: Iterable[TreeRow], arm: str) -> Iterator[str]:
    """The guide before each row of a tree; with "──" as an arm "├── ", "│   └── ", …"""
    blank = " " * len(arm)
    # What the rows below each open level begin with.
    open_levels = [""]
    for row in rows:
        if row.depth == 0:
            yield ""
            continue
        del open_levels[row.depth :]
        before = open_levels[-1]
        yield f"{before}{'└' if row.last else '├'}{arm} "
        open_levels.append(f"{before}{' ' if row.last else '│'}{blank} ")
