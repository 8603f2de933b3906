"""Numbers over steps as pixels: a line, or bands around one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from torchglass.analyse.picture.pixels import NOTHING, Picture

Numbers = npt.NDArray[np.float64]


def draw_bands(
    lines: Sequence[Numbers], colours: Sequence[int], height: int
) -> tuple[Picture, float, float]:
    """Lines from the lowest to the highest, a column of pixels for each step, and their range.

    The room between them is filled: there is a colour for each band from the outermost inwards, and
    at last one for the line in the middle; five lines have two bands and a middle. A step that is
    not finite leaves a gap.
    """
    every = np.concatenate(lines)
    finite = every[np.isfinite(every)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    picture: Picture = np.full((height, len(lines[0])), NOTHING, np.int32)
    rows = [_rows(line, low, high, height) for line in lines]
    for number, colour in enumerate(colours[:-1]):
        _fill(picture, rows[-1 - number], rows[number], colour)
    middle = rows[len(rows) // 2]
    before = np.where(middle[:-1] < 0, middle[1:], middle[:-1])
    # A line that jumps is drawn down to where it was, so that it stays one line.
    was = np.concatenate([middle[:1], before])
    _fill(picture, np.minimum(middle, was), np.maximum(middle, was), colours[-1])
    return picture, low, high


def _rows(line: Numbers, low: float, high: float, height: int) -> npt.NDArray[np.int64]:
    """The row of pixels of each value, -1 for what is not finite."""
    share = (line - low) / (high - low) if high > low else np.full(len(line), 0.5)
    share = np.where(np.isfinite(line), share, 0)
    rows = ((1 - share) * (height - 1)).round().astype(np.int64)
    placed: npt.NDArray[np.int64] = np.where(np.isfinite(line), rows, -1)
    return placed


def _fill(
    picture: Picture,
    upper: npt.NDArray[np.int64],
    lower: npt.NDArray[np.int64],
    colour: int,
) -> None:
    for column, (top, bottom) in enumerate(zip(upper.tolist(), lower.tolist(), strict=True)):
        if top >= 0 and bottom >= 0:
            picture[top : bottom + 1, column] = colour
