"""Numbers as bars and lines of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchglass.views.formats import SPARKS

_EIGHTHS = len(SPARKS)


def columns(values: Sequence[float], height: int) -> list[str]:
    """Bars side by side, `height` lines high, that stand on zero; what is above it can be seen."""
    highest = max((value for value in values if math.isfinite(value)), default=0.0)
    steps = [_eighths(value, highest, height) for value in values]
    return [
        "".join(_part(step - level * _EIGHTHS) for step in steps)
        for level in reversed(range(height))
    ]


def _eighths(value: float, highest: float, height: int) -> int:
    if not math.isfinite(value) or value <= 0 or highest <= 0:
        return 0
    return max(round(value / highest * height * _EIGHTHS), 1)


def _part(step: int) -> str:
    """The part of a bar in one line, of which it fills so many eighths."""
    return " " if step <= 0 else SPARKS[min(step, _EIGHTHS) - 1]
