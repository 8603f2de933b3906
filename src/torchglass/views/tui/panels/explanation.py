"""The panel that tells why the forward raised, and what would fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from torchglass.analyse.failure.failure import Failure
from torchglass.views.failure_words import Part, headline, parts
from torchglass.views.tui.explorer_state import Subject
from torchglass.views.tui.panel_keys import panel_bindings
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.panels.text_rows import (
    Cell,
    Row,
    heading,
    line_width,
    paragraph,
    sections,
    table,
    text,
)

_STYLES = ("name", "shape", "dtype", "muted")


class ExplanationPanel(Panel):
    """Where the forward failed, what met there, why, what would fit, and what ran before."""

    key: ClassVar[str] = "E"
    title: ClassVar[str] = "Explanation"
    missing: ClassVar[str] = "No forward has failed"
    BINDINGS: ClassVar = panel_bindings("panel:explanation")

    @classmethod
    def available(cls, subject: Subject) -> bool:
        """Whether a forward raised."""
        return subject.failure is not None

    def follow(self, moved: bool) -> None:
        """Draw the explanation, which is the same for all modules."""
        if self.subject.failure is None:
            self.say(f"{self.missing}.")
        else:
            self.put(describe(self.subject.failure, self.room))


def describe(failure: Failure, width: int) -> list[Row]:
    """The story of a forward that raised, line by line."""
    who, what = headline(failure)
    error = [row for line in what.splitlines() for row in paragraph(line, width, "problem")]
    return sections(
        [text(f"✗ {who}", "heading"), *error],
        *([heading(part.title), *_rows(part, width)] for part in parts(failure)),
    )


def _rows(part: Part, width: int) -> Iterator[Row]:
    cells = [row for row in part.rows if len(row) > 1]
    lines = iter(table([[Cell(*one) for one in zip(row, _STYLES, strict=False)] for row in cells]))
    bullet = "• " if part.listed else ""
    for row in part.rows:
        if len(row) == 1:
            for words in row[0].split("\n"):
                indent = " " * (len(words) - len(words.lstrip()) + len(bullet))
                yield from paragraph(f"{bullet}{words}", width, "plain", indent)
            continue
        line = next(lines)
        if line_width(line) <= width:
            yield Row(line)
        else:
            # What does not fit beside the rest stands below it.
            *first, (last, style) = line
            yield Row(first)
            yield from paragraph(f"  {last.strip()}", width, style, "  ")
