"""The colours that the tree writes in, taken from the theme.

They are not component classes of the style sheet: applying forty of these to a widget takes longer
than drawing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rich.style import Style
from textual.color import Color


@dataclass(frozen=True, slots=True)
class Ink:
    """A colour of the theme, and how it is written."""

    colour: str
    """A variable of the theme."""
    opacity: float = 1.0
    bold: bool = False
    italic: bool = False
    underline: bool = False
    strike: bool = False


_PALE = Ink("foreground", 0.6)

INKS: Mapping[str, Ink] = {
    "plain": Ink("foreground"),
    "header": Ink("foreground", 0.6, bold=True),
    "sorted": Ink("text-accent", bold=True),
    "guide": Ink("foreground", 0.35),
    "gutter": Ink("glass-gutter"),
    "name": Ink("glass-name", bold=True),
    "match": Ink("text-accent", bold=True, underline=True),
    "mark": Ink("text-success"),
    "class": Ink("glass-class", bold=True),
    "args": Ink("glass-args", italic=True),
    "count": Ink("glass-count"),
    "own": Ink("glass-own"),
    "share": _PALE,
    "value": _PALE,
    "slot": _PALE,
    "shared": _PALE,
    "bytes": Ink("glass-bytes"),
    "time": Ink("glass-time"),
    "flops": Ink("glass-flops"),
    "in": Ink("glass-in", italic=True),
    "out": Ink("glass-out"),
    "calls": Ink("glass-calls", italic=True),
    "spark": Ink("glass-spark"),
    "device": Ink("glass-device", bold=True),
    "dtype": Ink("glass-dtype", italic=True),
    "shape": Ink("glass-shape"),
    "note": Ink("text-success"),
    "problem": Ink("text-error"),
    "added": Ink("text-success", bold=True),
    "removed": Ink("text-error", bold=True, strike=True),
    "changed": Ink("text-warning", bold=True),
    "heat0": Ink("glass-heat0"),
    "heat1": Ink("glass-heat1"),
    "heat2": Ink("glass-heat2"),
    "heat3": Ink("glass-heat3"),
    "heat4": Ink("glass-heat4"),
}
TONES: Mapping[str, str] = {
    "plain": "background",
    "header": "surface",
    "same": "glass-same",
    "cursor": "glass-cursor",
    "resting": "glass-resting",
}
"""What lies behind a line, by variables of the theme."""


def written(variables: Mapping[str, str], ink: str, behind: str) -> Style:
    """The style of an ink before a colour of the theme."""
    how = INKS[ink]
    return _style(variables[how.colour], variables[behind], how)


@lru_cache(maxsize=1 << 10)
def _style(colour: str, behind: str, how: Ink) -> Style:
    ground = Color.parse(behind)
    front = ground.blend(Color.parse(colour), how.opacity)
    return Style(
        color=front.rich_color,
        bgcolor=ground.rich_color,
        bold=how.bold,
        italic=how.italic,
        underline=how.underline,
        strike=how.strike,
    )
