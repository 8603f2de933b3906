"""The memory of a step as an area of text, with its phases below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from torchglass.analyse.memory.report import Moment
from torchglass.views.formats import SPARKS, format_bytes, pad, width

_LEVELS = len(SPARKS)


def area_text(timeline: Sequence[Moment], before_bytes: int, cells: int, height: int) -> list[str]:
    """Lines of an area of so many rows, in all so many cells wide; none for an empty timeline.

    Every column shows the most of the changes that fall into it. The lowest row begins with what
    was there before the step, or with less if some of that is freed.
    """
    if not timeline:
        return []
    low = min(before_bytes, *(moment.live_bytes for moment in timeline))
    high = max(moment.live_bytes for moment in timeline)
    labels = {0: format_bytes(high), height - 1: format_bytes(low)}
    margin = max(map(width, labels.values()))
    columns = max(cells - margin - 2, 8)
    levels = _levels([moment.live_bytes for moment in timeline], low, high, columns, height)
    lines = []
    for row in range(height):
        floor = (height - 1 - row) * _LEVELS
        bars = "".join(_bar(level - floor) for level in levels)
        lines.append(f"{pad(labels.get(row, ''), margin, right=True)} ┤{bars}".rstrip())
    phases = _phases([moment.phase for moment in timeline], columns)
    return [*lines, f"{' ' * margin} └{phases}"]


def _levels(values: Sequence[int], low: int, high: int, columns: int, height: int) -> list[int]:
    """How high each column is, in eighths of a row."""
    scale = (height * _LEVELS - 1) / max(high - low, 1)
    return [
        1 + round((max(values[first:last]) - low) * scale)
        for first, last in _pieces(len(values), columns)
    ]


def _pieces(count: int, columns: int) -> Iterable[tuple[int, int]]:
    """Which of some values each column stands for; with few of them several stand for one."""
    for column in range(columns):
        first = column * count // columns
        yield first, max(first + 1, (column + 1) * count // columns)


def _bar(level: int) -> str:
    if level <= 0:
        return " "
    return SPARKS[min(level, _LEVELS) - 1]


def _phases(phases: Sequence[str], columns: int) -> str:
    """The names of the phases below the columns where they are; a short one has no room for its."""
    shown = [phases[first] for first, _ in _pieces(len(phases), columns)]
    parts = []
    for phase, group in groupby(shown):
        room = len(list(group))
        name = f" {phase} " if room >= len(phase) + 3 else ""
        parts.append(f"{name:─<{room - 1}}┴" if room else "")
    return "".join(parts)[:-1]
