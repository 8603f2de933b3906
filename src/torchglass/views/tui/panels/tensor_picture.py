"""A tensor as a picture: one slice, or many side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

import numpy as np
import numpy.typing as npt

from torchglass.analyse.pixels import (
    Matrix,
    Picture,
    Scale,
    enlarge,
    half_blocks,
    paint,
    scale_of,
    sheet,
)
from torchglass.records.attributes import Index
from torchglass.views.tui.panels.slices import RGB, Look
from torchglass.views.tui.panels.text_rows import Row

Fetch = Callable[[Index, int, int], npt.NDArray[np.float32]]
"""Gives two dimensions of a tensor in at most so many rows and columns of pixels."""

_MOST_TILES = 256
_LEAST_TILE = 8
_GAP = 1
_RAMP = 16
_BYTE = "uint8"


class Painter:
    """Paints what a look at a tensor sees."""

    def __init__(self, fetch: Fetch, look: Look, dtype: str, *, shades: bool = False) -> None:
        """`shades` is for terminals on which colours cannot be told apart."""
        self._fetch = fetch
        self._look = look
        self._dtype = dtype
        self._shades = shades

    def picture(self, width: int, height: int) -> list[Row]:
        """The slice in so many cells, with what its colours mean below."""
        side = _shrunk(self._look.extent, max(height * 2, 2), width)
        channels = self._channels(self._look.index, *side)
        scale = self._scale([channels])
        pixels = enlarge(self._paint(channels, scale), height * 2, width)
        return [*_rows(pixels), self._legend(scale)]

    def sheet(self, width: int, height: int) -> list[Row]:
        """The slices along the browsed dimension side by side, as many as are large enough."""
        look = self._look
        if look.moving is None or look.position is None:
            return self.picture(width, height)
        first, count = look.position
        side = _tile_side(min(count - first, _MOST_TILES), look.extent, width, height * 2)
        look.tiles = min(_tiles_that_fit(side, width, height * 2), _MOST_TILES)
        places = look.stretches[look.moving][first : first + look.tiles]
        tiles = [self._channels(look.index_with(look.moving, place), *side) for place in places]
        scale = self._scale(tiles)
        pixels = sheet([enlarge(self._paint(one, scale), *side) for one in tiles], width, _GAP)
        legend = self._legend(scale)
        told = f"slices {places[0]:,} – {places[-1]:,} of {look.shape[look.moving]:,}  "
        return [*_rows(pixels), Row([(told, "muted"), *legend.pieces], pictures=legend.pictures)]

    def _channels(self, index: Index, height: int, width: int) -> list[Matrix]:
        """The pixels of a slice: one matrix, or one for each of three colours."""
        channels = self._look.channels
        if channels is None or not self._look.is_coloured:
            return [self._fetch(index, height, width)]
        around = index[:channels], index[channels + 1 :]
        return [
            self._fetch((*around[0], colour, *around[1]), height, width) for colour in range(RGB)
        ]

    def _scale(self, pictures: Sequence[Sequence[Matrix]]) -> Scale:
        """What the ends of the colours stand for in pictures that are seen together."""
        matrices = [matrix for picture in pictures for matrix in picture]
        if not self._look.is_coloured:
            return scale_of(matrices)
        if self._dtype == _BYTE:
            return Scale(low=0.0, high=255.0)
        finite = [matrix[np.isfinite(matrix)] for matrix in matrices]
        low = min((float(one.min()) for one in finite if one.size), default=0.0)
        high = max((float(one.max()) for one in finite if one.size), default=0.0)
        usual = low >= 0 and high <= 1
        return Scale(low=0.0, high=1.0) if usual else Scale(low=low, high=high)

    def _paint(self, channels: Sequence[Matrix], scale: Scale) -> Picture:
        if self._look.is_coloured:
            return blend(channels, scale)
        (matrix,) = channels
        if not self._shades:
            return paint(matrix, scale)
        # In grey the two ends of the colours around a zero look alike, those that rise do not.
        return paint(matrix - scale.low, Scale(low=0.0, high=scale.high - scale.low))

    def _legend(self, scale: Scale) -> Row:
        """What the colours mean, from the least to the greatest number."""
        ends = f"{scale.low:.3g} … {scale.high:.3g}"
        if self._look.is_coloured:
            means = "how bright it is" if self._shades else "red, green and blue"
            return Row([(f"{ends} as {means}", "muted")])
        ramp = np.linspace(scale.low, scale.high, _RAMP)[None].repeat(2, 0)
        return Row([(f"{ends}  ", "muted")], pictures=half_blocks(self._paint([ramp], scale)))


def blend(channels: Sequence[Matrix], scale: Scale) -> Picture:
    """Red, green and blue as one picture; what is no number stands out."""
    span = scale.high - scale.low or 1.0
    places = (np.stack(channels).astype(np.float64) - scale.low) / span
    parts = np.clip(np.nan_to_num(places, posinf=1.0, neginf=0.0), 0, 1) * 255
    red, green, blue = parts.round().astype(np.int32)
    picture: Picture = red << 16 | green << 8 | blue
    lost = np.isnan(places).any(0)
    # Painted as a number that is none, so that it looks the same in all pictures.
    picture[lost] = paint(np.full((1, 1), np.nan), scale)[0, 0]
    return picture


def _rows(pixels: Picture) -> list[Row]:
    return [Row(pictures=[cells]) for cells in half_blocks(pixels)]


def _shrunk(size: tuple[int, int], height: int, width: int) -> tuple[int, int]:
    """A size that fits with its sides as they were to each other, but none too small to be seen."""
    share = min(height / size[0], width / size[1], 1.0)
    tall, wide = (max(round(side * share), min(side, _LEAST_TILE)) for side in size)
    return min(tall, height), min(wide, width)


def _tiles_that_fit(side: tuple[int, int], width: int, height: int) -> int:
    across = max((width + _GAP) // (side[1] + _GAP), 1)
    return across * max((height + _GAP) // (side[0] + _GAP), 1)


def _tile_side(count: int, size: tuple[int, int], width: int, height: int) -> tuple[int, int]:
    """The largest size of a tile at which so many fit, but never one too small to be seen."""
    rows, across = size

    def fits(tall: int, wide: int) -> bool:
        return ((width + _GAP) // (wide + _GAP)) * ((height + _GAP) // (tall + _GAP)) >= count

    larger = 1
    while fits(rows * (larger + 1), across * (larger + 1)):
        larger += 1
    if fits(rows, across):
        return rows * larger, across * larger
    longest = max(rows, across)
    for side in range(longest, min(_LEAST_TILE, longest) - 1, -1):
        tall, wide = ceil(rows * side / longest), ceil(across * side / longest)
        if fits(tall, wide):
            break
    return max(tall, 1), max(wide, 1)
