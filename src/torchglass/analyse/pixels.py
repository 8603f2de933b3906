"""Matrices and series as colored pixels.

>>> half_blocks(paint(np.array([[0.0], [1.0]]), Scale(low=0.0, high=1.0)))
[[('#440154', '#fde725')]]
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.floating]
Picture = npt.NDArray[np.int32]
"""A color per pixel as 0xRRGGBB; NOTHING for an empty pixel."""

NOTHING = -1

NOT_A_NUMBER = 0xFF00FF
_RISING = (0x440154, 0x3B528B, 0x21918C, 0x5EC962, 0xFDE725)
"""From dark to bright, readable with any color vision and in grayscale (viridis)."""
_AROUND_ZERO = (0x2166AC, 0x67A9CF, 0xF7F7F7, 0xEF8A62, 0xB2182B)
"""From blue through white (zero) to red."""
_SHADES = 257
"""Odd, so that zero is the middle stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The values at the ends of the color scale."""

    low: float
    high: float

    @property
    def is_around_zero(self) -> bool:
        """Whether the scale is centered on zero."""
        return self.low < 0 < self.high


def finite_range(matrices: Sequence[Matrix]) -> tuple[float, float]:
    """The smallest and the largest finite value; 0 and 0 if there is none."""
    finite = [matrix[np.isfinite(matrix)] for matrix in matrices]
    low = min((float(one.min()) for one in finite if one.size), default=0.0)
    return low, max((float(one.max()) for one in finite if one.size), default=0.0)


def scale_of(matrices: Sequence[Matrix]) -> Scale:
    """A scale for matrices that are shown together, symmetric if it includes zero."""
    low, high = finite_range(matrices)
    if low < 0 < high:
        high = max(-low, high)
        low = -high
    return Scale(low=low, high=high)


def paint(matrix: Matrix, scale: Scale) -> Picture:
    """One pixel per value; NaN has its own color."""
    shades = _shades(_AROUND_ZERO if scale.is_around_zero else _RISING)
    span = scale.high - scale.low
    with np.errstate(invalid="ignore"):
        place = (matrix - scale.low) / span if span else np.zeros_like(matrix)
    at = np.clip(np.nan_to_num(place, posinf=1.0, neginf=0.0), 0, 1) * (_SHADES - 1)
    picture: Picture = shades[at.round().astype(np.int64)]
    picture[np.isnan(matrix)] = NOT_A_NUMBER
    return picture


def enlarge(picture: Picture, height: int, width: int) -> Picture:
    """The picture, enlarged by the largest whole factor that fits."""
    factor = max(min(height // max(picture.shape[0], 1), width // max(picture.shape[1], 1)), 1)
    return picture.repeat(factor, 0).repeat(factor, 1)


def sheet(pictures: Sequence[Picture], width: int, gap: int = 1) -> Picture:
    """Pictures of equal size side by side, in as many rows as needed."""
    height, each = pictures[0].shape
    across = max(min((width + gap) // (each + gap), len(pictures)), 1)
    down = math.ceil(len(pictures) / across)
    whole: Picture = np.full(
        (down * (height + gap) - gap, across * (each + gap) - gap), NOTHING, np.int32
    )
    for number, picture in enumerate(pictures):
        row, column = divmod(number, across)
        top, left = row * (height + gap), column * (each + gap)
        whole[top : top + height, left : left + each] = picture
    return whole


def half_blocks(picture: Picture) -> list[list[tuple[str, str]]]:
    """The colors of the upper and lower half of each terminal cell, "" for none."""
    if len(picture) % 2:
        picture = np.vstack([picture, np.full((1, picture.shape[1]), NOTHING, np.int32)])
    return [
        [(_hex(above), _hex(below)) for above, below in zip(upper, lower, strict=True)]
        for upper, lower in zip(picture[::2].tolist(), picture[1::2].tolist(), strict=True)
    ]


def png(picture: Picture) -> bytes:
    """A picture as a PNG file; empty pixels are transparent."""
    height, width = picture.shape
    channels = [picture >> shift & 0xFF for shift in (16, 8, 0)]
    channels.append(np.where(picture == NOTHING, 0, 0xFF))
    pixels = np.stack(channels, -1).astype(np.uint8).reshape(height, width * 4)
    # Each line begins with the number of its filter: 0 for none.
    lines = np.hstack([np.zeros((height, 1), np.uint8), pixels])
    size = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    parts = ((b"IHDR", size), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts)


def _chunk(name: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)


def _hex(color: int) -> str:
    return "" if color == NOTHING else f"#{color:06x}"


def _shades(stops: Sequence[int]) -> Picture:
    """Colors interpolated evenly between the stops."""
    places = np.linspace(0, len(stops) - 1, _SHADES)
    known = range(len(stops))
    parts = (
        np.interp(places, known, [stop >> shift & 0xFF for stop in stops]).round().astype(np.int32)
        << shift
        for shift in (16, 8, 0)
    )
    red, green, blue = parts
    shades: Picture = red | green | blue
    return shades


Numbers = npt.NDArray[np.float64]


def squeeze(values: Numbers, width: int) -> list[float]:
    """At most `width` values, each the mean of a range of equal length."""
    if len(values) <= width:
        return list(map(float, values))
    edges = np.linspace(0, len(values), width + 1).astype(int)
    sums = np.add.reduceat(values, edges[:-1])
    return list(map(float, sums / np.diff(edges)))


def draw_bands(
    lines: Sequence[Numbers], colors: Sequence[int], height: int
) -> tuple[Picture, float, float]:
    """The lines of a percentile plot, one pixel column per step, and their range.

    The space between the lines is filled: there is a color for each band, from the outermost
    inwards, and one for the line in the middle; five lines have two bands and a middle. A step that
    is not finite leaves a gap.
    """
    every = np.concatenate(lines)
    finite = every[np.isfinite(every)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    picture: Picture = np.full((height, len(lines[0])), NOTHING, np.int32)
    rows = [_rows(line, low, high, height) for line in lines]
    for number, color in enumerate(colors[:-1]):
        _fill(picture, rows[-1 - number], rows[number], color)
    middle = rows[len(rows) // 2]
    before = np.where(middle[:-1] < 0, middle[1:], middle[:-1])
    # A line that jumps is connected to its previous value.
    was = np.concatenate([middle[:1], before])
    _fill(picture, np.minimum(middle, was), np.maximum(middle, was), colors[-1])
    return picture, low, high


def _rows(line: Numbers, low: float, high: float, height: int) -> npt.NDArray[np.int64]:
    """The pixel row of each value, -1 for NaN and Inf."""
    share = (line - low) / (high - low) if high > low else np.full(len(line), 0.5)
    share = np.where(np.isfinite(line), share, 0)
    rows = ((1 - share) * (height - 1)).round().astype(np.int64)
    placed: npt.NDArray[np.int64] = np.where(np.isfinite(line), rows, -1)
    return placed


def _fill(
    picture: Picture,
    upper: npt.NDArray[np.int64],
    lower: npt.NDArray[np.int64],
    color: int,
) -> None:
    for column, (top, bottom) in enumerate(zip(upper.tolist(), lower.tolist(), strict=True)):
        if top >= 0 and bottom >= 0:
            picture[top : bottom + 1, column] = color
