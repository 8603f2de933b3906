"""A tensor opened: what it is, its numbers slice by slice, how they are spread, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from torchglass.analyse.picture.pixels import Scale, enlarge, half_blocks, paint, scale_of, sheet
from torchglass.records.attributes import (
    Attribute,
    Index,
    LiveModel,
    Progress,
    Spread,
    TensorFacts,
)
from torchglass.records.tensors import Stats
from torchglass.views.columns import shape_text
from torchglass.views.formats import format_bytes, format_count, harmless
from torchglass.views.tui.cells import fit
from torchglass.views.tui.panels.charts import columns
from torchglass.views.tui.panels.drawing import LazyRows, Line, Row, paragraph, wrap

Mode = Literal["numbers", "picture", "sheet"]

_CELL = 11
_BLOCK = 64
"""Rows of numbers that are fetched at a time."""
_BINS = 48
_HISTOGRAM = 3
_MOST_TILES = 256
_LEAST_TILE = 8
_GAP = 1


@dataclass(frozen=True, slots=True)
class Measured:
    """What was worked out of all the numbers of a tensor."""

    stats: Stats | None
    spread: Spread | None


class Viewer:
    """One tensor, and which part of it is looked at."""

    def __init__(self, live: LiveModel, attribute: Attribute) -> None:
        self.live = live
        self.attribute = attribute
        self.facts: TensorFacts = live.facts(attribute.id)
        self.shape = self.facts.spec.shape or ()
        self.shown: tuple[int, ...] = tuple(range(len(self.shape)))[-2:]
        """The dimensions that are seen whole, the others being browsed through."""
        self.at = [0] * len(self.shape)
        self.dimension = max(len(self.shape) - 3, 0)
        """The one that is browsed through."""
        self.mode: Mode = "numbers"
        self.column = 0
        self.measured: Measured | None = None
        self._tiles = 1
        """How many slices the sheet shows."""
        self._block: tuple[Any, npt.NDArray[Any]] | None = None

    @property
    def index(self) -> Index:
        """The slice that is looked at."""
        return tuple(None if one in self.shown else place for one, place in enumerate(self.at))

    @property
    def browsable(self) -> tuple[int, ...]:
        """The dimensions that are not seen whole."""
        return tuple(one for one in range(len(self.shape)) if one not in self.shown)

    @property
    def has_picture(self) -> bool:
        """Whether there are two dimensions to be seen as pixels."""
        return len(self.shape) >= 2 and not self.facts.unreadable

    def measure(self, progress: Progress) -> Measured:
        """Look at all numbers, in a thread."""
        tensor = self.attribute.id
        stats = self.live.measure(tensor, lambda share: progress(share / 2))
        if stats is None or self.facts.unreadable:
            return Measured(stats, None)
        spread = self.live.spread(tensor, stats, _BINS, lambda share: progress(0.5 + share / 2))
        return Measured(stats, spread)

    def browse(self, by: int) -> None:
        """Go to the next slice, or to one before; after the last comes the first."""
        if self.browsable:
            size, step = self.shape[self.dimension], self._tiles if self.mode == "sheet" else 1
            self.at[self.dimension] = (self.at[self.dimension] + by * step) % max(size, 1)

    def next_dimension(self) -> None:
        """Browse through another dimension."""
        others = self.browsable
        if others:
            later = [one for one in others if one > self.dimension]
            self.dimension = later[0] if later else others[0]

    def turn(self) -> None:
        """See another pair of dimensions whole."""
        pairs: list[tuple[int, ...]] = list(combinations(range(len(self.shape)), 2))
        if len(pairs) > 1:
            self.shown = pairs[(pairs.index(self.shown) + 1) % len(pairs)]
            self.dimension = self.browsable[-1]
            self.column = 0

    def pan(self, by: int) -> None:
        """See columns further right."""
        last = max(self._extent()[1] - 1, 0)
        self.column = min(max(self.column + by, 0), last)

    def next_mode(self) -> None:
        """Go from numbers to a picture, to a sheet of pictures, and back."""
        modes: list[Mode] = ["numbers"]
        if self.has_picture:
            modes.append("picture")
            if self.browsable:
                modes.append("sheet")
        self.mode = modes[(modes.index(self.mode) + 1) % len(modes)]

    def rows(self, width: int, height: int) -> tuple[Sequence[Row], Sequence[Row]]:
        """What to show in so many cells, and what of it stays at the top."""
        top = [*self._facts(width), *self._statistics(width)]
        if self.facts.unreadable:
            why = f"Its numbers cannot be shown: {harmless(self.facts.unreadable)}."
            return [*top, Row(), *paragraph(why, width, "muted")], []
        if self.mode == "numbers":
            return self._numbers(top, width)
        if self.mode == "picture":
            return [*self._picture(width, height - 2)], [self._place()]
        return [*self._sheet(width, height - 2)], [self._place()]

    def _facts(self, width: int) -> list[Row]:
        facts, spec = self.facts, self.facts.spec
        pieces: list[tuple[str, str]] = [
            (harmless(self.attribute.name), "path"),
            (f"  {shape_text(spec)}", "shape"),
            (f" {harmless(spec.dtype)}", "dtype"),
            (f" {format_bytes(spec.bytes)}", "bytes"),
            (f" {harmless(spec.device)}", "device"),
        ]
        more = [
            "" if spec.layout == "strided" else harmless(spec.layout),
            f"stride ({', '.join(map(str, facts.stride))})" if facts.stride is not None else "",
            "" if facts.contiguous else "not contiguous",
            self._in_storage(),
            "requires grad" if facts.requires_grad else "",
            f"made by {harmless(facts.grad_fn)}" if facts.grad_fn else "",
            "has a gradient" if facts.has_grad else "",
        ]
        told = [(" · ".join(filter(None, more)), "muted")]
        return [Row(line) for part in (pieces, told) for line in wrap(part, width, "  ")]

    def _in_storage(self) -> str:
        facts = self.facts
        if facts.storage_bytes <= facts.spec.bytes:
            return ""
        return f"a view at {facts.offset:,} into {format_bytes(facts.storage_bytes)}"

    def _statistics(self, width: int) -> list[Row]:
        if self.measured is None or self.measured.stats is None:
            return []
        stats = self.measured.stats
        pieces: list[tuple[str, str]] = []
        for name in ("min", "max", "mean", "std"):
            number = f"{getattr(stats, name):.4g}"
            pieces += [(f"{name} ", "muted"), (f"{number}  ", "number")]
        pieces.append((f"of {format_count(stats.count)}", "muted"))
        for name, count in (("NaN", stats.nan), ("Inf", stats.inf)):
            if count:
                pieces.append((f"  {count:,} {name}", "problem"))
        return [Row(line) for line in wrap(pieces, width)] + self._histogram(width)

    def _histogram(self, width: int) -> list[Row]:
        spread = self.measured.spread if self.measured else None
        if spread is None or len(spread.counts) < 2:
            return []
        counts = _rebinned(spread.counts, min(width, _BINS))
        low, high = f"{spread.low:.3g}", f"{spread.high:.3g}"
        axis = low + " " * max(len(counts) - len(low) - len(high), 1) + high
        bars = [Row([(line, "spark")]) for line in columns(counts, _HISTOGRAM)]
        return [Row(), *bars, Row([(axis, "muted")])]

    def _place(self) -> Row:
        """Which slice it is, with the dimension that is browsed through in colour."""
        pieces: list[tuple[str, str]] = [("[", "muted")]
        for one, place in enumerate(self.index):
            comma = ", " if one else ""
            words = ":" if place is None or self._is_spread_out(one) else str(place)
            moves = one == self.dimension and one in self.browsable
            pieces += [(comma, "muted"), (words, "key" if moves else "number")]
        pieces.append(("]", "muted"))
        if self.browsable and self.mode != "sheet":
            number, size = self.at[self.dimension] + 1, self.shape[self.dimension]
            pieces.append((f"  {number:,} of {size:,}", "muted"))
        return Row(pieces)

    def _is_spread_out(self, dimension: int) -> bool:
        return self.mode == "sheet" and dimension == self.dimension

    def _extent(self) -> tuple[int, int]:
        """How many rows and columns of numbers there are."""
        sizes = [self.shape[one] for one in self.shown]
        rows, across = [1] * (2 - len(sizes)) + sizes
        return rows, across

    def _numbers(self, top: list[Row], width: int) -> tuple[Sequence[Row], Sequence[Row]]:
        rows, across = self._extent()
        margin = len(str(max(rows - 1, 0))) + 1
        seen = range(self.column, min(self.column + max((width - margin) // _CELL, 1), across))
        titles = "".join(f"{column:>{_CELL}}" for column in seen)
        more = " …" if seen.stop < across else ""
        head = [*top, Row(), self._place(), Row([(" " * margin + titles + more, "faint")])]

        def draw(at: int) -> Row:
            if at < len(head):
                return head[at]
            return self._row_of_numbers(at - len(head), seen, margin)

        return LazyRows(len(head) + rows, draw), []

    def _row_of_numbers(self, row: int, seen: range, margin: int) -> Row:
        first = row // _BLOCK * _BLOCK
        key = self.index, first, seen
        if self._block is None or self._block[0] != key:
            rows = range(first, min(first + _BLOCK, self._extent()[0]))
            self._block = key, self.live.values(self.attribute.id, self.index, rows, seen)
        numbers = self._block[1][row - first]
        return Row([(f"{row:<{margin}}", "faint"), *map(_number, numbers.tolist())])

    def _picture(self, width: int, height: int) -> list[Row]:
        matrix = self.live.image(self.attribute.id, self.index, max(height * 2, 2), width)
        scale = scale_of([matrix])
        pixels = enlarge(paint(matrix, scale), height * 2, width)
        return [*(Row(pictures=[cells]) for cells in half_blocks(pixels)), _legend(scale)]

    def _sheet(self, width: int, height: int) -> list[Row]:
        """The slices along the browsed dimension side by side, as many as are large enough."""
        first, size = self.at[self.dimension], self.shape[self.dimension]
        rows, across = self._extent()
        side = _tile_side(min(size - first, _MOST_TILES), rows, across, width, height * 2)
        fitting = max((width + _GAP) // (side[1] + _GAP), 1) * max(
            (height * 2 + _GAP) // (side[0] + _GAP), 1
        )
        self._tiles = min(fitting, _MOST_TILES)
        last = min(first + self._tiles, size)
        matrices = [
            self.live.image(self.attribute.id, self._with(place), *side)
            for place in range(first, last)
        ]
        scale = scale_of(matrices)
        tiles = [enlarge(paint(one, scale), *side) for one in matrices]
        pixels = sheet(tiles, width, _GAP)
        told: Line = [(f"slices {first:,} – {last - 1:,} of {size:,}  ", "muted")]
        legend = Row([*told, *_legend(scale).pieces], pictures=_legend(scale).pictures)
        return [*(Row(pictures=[cells]) for cells in half_blocks(pixels)), legend]

    def _with(self, place: int) -> Index:
        index = list(self.index)
        index[self.dimension] = place
        return tuple(index)


def _tile_side(count: int, rows: int, across: int, width: int, height: int) -> tuple[int, int]:
    """The largest size of a tile at which so many fit, but never one too small to be seen."""

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


def _legend(scale: Scale) -> Row:
    """The colours from the least to the greatest number."""
    ramp = paint(np.linspace(scale.low, scale.high, 16)[None].repeat(2, 0), scale)
    return Row(
        [(f"{scale.low:.3g} … {scale.high:.3g}  ", "muted")],
        pictures=half_blocks(ramp),
    )


def _number(value: Any) -> tuple[str, str]:
    if isinstance(value, bool):
        return fit(str(value), _CELL, right=True), "plain" if value else "muted"
    if isinstance(value, int):
        return fit(str(value), _CELL, right=True), "plain"
    if isinstance(value, complex):
        return fit(f"{value:.2g}", _CELL, right=True), "plain"
    words = f"{value:.4g}"
    strange = value != value or value in (float("inf"), float("-inf"))
    style = "problem" if strange else "muted" if value == 0 else "plain"
    return f"{words:>{_CELL}}", style


def _rebinned(counts: Sequence[int], bins: int) -> list[int]:
    """The counts in at most so many bins, each the sum of its neighbours."""
    each = ceil(len(counts) / max(bins, 1))
    return [sum(counts[at : at + each]) for at in range(0, len(counts), each)]
