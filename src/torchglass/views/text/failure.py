"""A forward that raised, as a note to its exception and as a story."""

from __future__ import annotations

from collections.abc import Iterator

from torchglass.analyse.failure.story import Clues, Failure
from torchglass.records.model import Model
from torchglass.records.trace import Trace
from torchglass.views.failure_words import Part, digest, headline, parts
from torchglass.views.formats import pad, width

_INDENT = "  "


def failure_note(record: Trace, model: Model, clues: Clues | None = None) -> str:
    """What an exception can be told to add: the op, its module, its line, its operands and why."""
    told = [part for part in parts(Failure(record, model, clues)) if part.in_note]
    lines = [line for part in told for line in _lines(part)]
    return f"\n{_INDENT}".join([f"torchglass: {lines[0]}", *lines[1:]])


def failure_text(failure: Failure) -> str:
    """The whole story of a forward that raised."""
    who, what = headline(failure)
    blocks = [f"{who} {what}", *("\n".join(_block(part)) for part in parts(failure))]
    return "\n\n".join(blocks)


def digest_text(failure: Failure) -> str:
    """Two lines on a forward that did not raise."""
    return "\n".join(digest(failure.anatomy))


def _block(part: Part) -> Iterator[str]:
    yield f"{_INDENT}{part.title}"
    yield from (f"{_INDENT * 2}{line}" for line in _lines(part))


def _lines(part: Part) -> Iterator[str]:
    """The rows of a part, with their cells below each other."""
    tables = [row for row in part.rows if len(row) > 1]
    widths = [max(map(width, column)) for column in zip(*tables, strict=True)]
    bullet = "• " if part.listed else ""
    for row in part.rows:
        cells = row if len(row) == 1 else map(pad, row, widths)
        yield from f"{bullet}{'  '.join(cells)}".rstrip().split("\n")
