"""The panel that explains why a forward failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from torchglass.analyse.failure.failure import Failure
from torchglass.views.failure_text import Part, headline, parts
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.text_rows import (
    TableCell,
    TextRow,
    heading,
    line_width,
    paragraph,
    sections,
    table,
    text,
)

_STYLES = ("name", "shape", "dtype", "muted")


class ExplanationPanel(Panel):
    """Why the forward failed: where, with which tensors, what would fit, and what ran before."""

    key: ClassVar[str] = "E"
    title: ClassVar[str] = "Explanation"
    missing: ClassVar[str] = "No forward has failed"

    @classmethod
    def available(cls, state: ExplorerState) -> bool:
        return state.failure is not None

    def follow(self, moved: bool) -> None:
        if self.state.failure is not None:
            self.put(describe(self.state.failure, self.room))


def describe(failure: Failure, width: int) -> list[TextRow]:
    """The rows of a failed forward."""
    who, what = headline(failure)
    error = [row for line in what.splitlines() for row in paragraph(line, width, "problem")]
    return sections(
        [text(f"✗ {who}", "heading"), *error],
        *([heading(part.title), *_rows(part, width)] for part in parts(failure)),
    )


def _rows(part: Part, width: int) -> Iterator[TextRow]:
    cells = [row for row in part.rows if len(row) > 1]
    lines = iter(
        table([[TableCell(*one) for one in zip(row, _STYLES, strict=False)] for row in cells])
    )
    bullet = "• " if part.listed else ""
    for row in part.rows:
        if len(row) == 1:
            for words in row[0].split("\n"):
                indent = " " * (len(words) - len(words.lstrip()) + len(bullet))
                yield from paragraph(f"{bullet}{words}", width, "plain", indent)
            continue
        line = next(lines)
        if line_width(line) <= width:
            yield TextRow(line)
        else:
            # What does not fit beside the rest goes below it.
            *first, (last, style) = line
            yield TextRow(first)
            yield from paragraph(f"  {last.strip()}", width, style, "  ")
