"""The colours of a picture, light and dark, told apart by people with any colour vision.

Outlines differ in lightness as well as in hue; shapes and words say the same things again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ink:
    """The colours of one kind of thing."""

    fill: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """All colours of a picture."""

    ground: str
    text: str
    dim: str
    """For what is read second: shapes, module paths, titles of classes."""
    edge: str
    op: Ink
    parameters: Ink
    """An op that has parameters, and a closed module that has some."""
    input: Ink
    output: Ink
    buffer: Ink
    failure: Ink
    boxes: tuple[str, ...]
    """Fills of module boxes by how deep they are, then again from the first."""
    box_line: str
    repeat: str
    """The outline of what is drawn once and ran several times."""
    ramp: tuple[str, str]
    """From little to much."""


LIGHT = Palette(
    ground="#ffffff",
    text="#1b1f24",
    dim="#4d5661",
    edge="#5c6470",
    op=Ink(fill="#ffffff", line="#7a838f"),
    parameters=Ink(fill="#dfe3e9", line="#59626e"),
    input=Ink(fill="#cdeee2", line="#008a70"),
    output=Ink(fill="#fcdcc8", line="#93400f"),
    buffer=Ink(fill="#fbf3d0", line="#8a8000"),
    failure=Ink(fill="#fbd3e6", line="#7a0a4e"),
    boxes=("#f5f7fa", "#e9eef5"),
    box_line="#a3adba",
    repeat="#0a5f9c",
    ramp=("#f2f7fd", "#0b4f94"),
)
DARK = Palette(
    ground="#14171c",
    text="#e8eaed",
    dim="#aab3bf",
    edge="#98a2b0",
    op=Ink(fill="#1d2229", line="#8792a1"),
    parameters=Ink(fill="#3a424e", line="#a4afbd"),
    input=Ink(fill="#0d4335", line="#5fe0bb"),
    output=Ink(fill="#56290c", line="#f3a04e"),
    buffer=Ink(fill="#443b0d", line="#f7e34a"),
    failure=Ink(fill="#5a0f3a", line="#f9429e"),
    boxes=("#1a1e25", "#21262f"),
    box_line="#566070",
    repeat="#3fa9ec",
    ramp=("#1b222c", "#8cc8ff"),
)


def mix(palette: Palette, share: float) -> str:
    """The colour at a place of the ramp, 0 to 1."""
    low, high = (_channels(colour) for colour in palette.ramp)
    mixed = (round(a + (b - a) * share) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def text_on(fill: str) -> str:
    """The colour of letters that can be read on a fill."""
    return max(("#000000", "#ffffff"), key=lambda colour: contrast(colour, fill))


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours as WCAG defines it, 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    linear = [
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
        for channel in (value / 255 for value in _channels(colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
