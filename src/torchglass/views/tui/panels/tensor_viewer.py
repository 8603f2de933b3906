"""Shows a slice of one tensor: its statistics, its values, and pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from torchglass.analyse.pixels import (
    Matrix,
    Picture,
    Scale,
    enlarge,
    finite_range,
    half_blocks,
    paint,
    scale_of,
    sheet,
)
from torchglass.records.model import (
    Attribute,
    Index,
    LinearHistogram,
    LiveModel,
    Progress,
    Stats,
    TensorFacts,
)
from torchglass.tables.text import SPARKS, format_bytes, format_count, harmless, shape_text
from torchglass.views.tui.panels.tensor_slice import RGB, TensorSlice
from torchglass.views.tui.styled_text import LazyRows, Piece, TextRow, fit, gather, paragraph, wrap

Fetch = Callable[[Index, int, int], npt.NDArray[np.float32]]
"""Reads two dimensions of a tensor as at most this many rows and columns of pixels."""

_MOST_TILES = 256
_LEAST_TILE = 8
_GAP = 1
_RAMP = 16
_BYTE = "uint8"
_TAB = 4


class TensorPicture:
    """Draws a slice of a tensor as a picture."""

    def __init__(
        self, fetch: Fetch, view: TensorSlice, dtype: str, *, shades: bool = False
    ) -> None:
        """`shades` is for terminals with few colors."""
        self._fetch = fetch
        self._look = view
        self._dtype = dtype
        self._shades = shades

    def picture(self, width: int, height: int) -> list[TextRow]:
        """The slice as a picture, with a legend below."""
        side = _shrunk(self._look.extent, max(height * 2, 2), width)
        channels = self._channels(self._look.index, *side)
        scale = self._scale([channels])
        pixels = enlarge(self._paint(channels, scale), height * 2, width)
        return [*_rows(pixels), self._legend(scale)]

    def sheet(self, width: int, height: int) -> list[TextRow]:
        """The slices of the browsed dimension side by side, as many as are large enough to see."""
        view = self._look
        if view.moving is None or view.position is None:
            return self.picture(width, height)
        first, count = view.position
        side = _tile_side(min(count - first, _MOST_TILES), view.extent, width, height * 2)
        tall, wide = min(side[0], height * 2), min(side[1], width)
        view.tiles = min(_tiles(tall, wide, width, height * 2), _MOST_TILES)
        places = view.ranges[view.moving][first : first + view.tiles]
        tiles = [self._channels(view.index_with(view.moving, place), *side) for place in places]
        scale = self._scale(tiles)
        pixels = sheet([enlarge(self._paint(one, scale), *side) for one in tiles], width, _GAP)
        legend = self._legend(scale)
        told = f"slices {places[0]:,} – {places[-1]:,} of {view.shape[view.moving]:,}  "
        return [
            *_rows(pixels),
            TextRow([(told, "muted"), *legend.pieces], pictures=legend.pictures),
        ]

    def _channels(self, index: Index, height: int, width: int) -> list[Matrix]:
        """The pixels of a slice: one matrix, or three for RGB."""
        channels = self._look.channels
        if channels is None or not self._look.is_colored:
            return [self._fetch(index, height, width)]
        before, after = index[:channels], index[channels + 1 :]
        return [self._fetch((*before, one, *after), height, width) for one in range(RGB)]

    def _scale(self, pictures: Sequence[Sequence[Matrix]]) -> Scale:
        """The values at both ends of the colors, the same in all pictures."""
        matrices = [matrix for picture in pictures for matrix in picture]
        if not self._look.is_colored:
            return scale_of(matrices)
        if self._dtype == _BYTE:
            return Scale(low=0.0, high=255.0)
        low, high = finite_range(matrices)
        usual = low >= 0 and high <= 1
        return Scale(low=0.0, high=1.0) if usual else Scale(low=low, high=high)

    def _paint(self, channels: Sequence[Matrix], scale: Scale) -> Picture:
        if self._look.is_colored:
            return blend(channels, scale)
        (matrix,) = channels
        if not self._shades:
            return paint(matrix, scale)
        # In gray, both ends of a diverging color scale look alike; a rising scale does not.
        return paint(matrix - scale.low, Scale(low=0.0, high=scale.high - scale.low))

    def _legend(self, scale: Scale) -> TextRow:
        ends = f"{scale.low:.3g} … {scale.high:.3g}"
        if self._look.is_colored:
            means = "brightness" if self._shades else "red, green and blue"
            return TextRow([(f"{ends} as {means}", "muted")])
        ramp = np.linspace(scale.low, scale.high, _RAMP)[None].repeat(2, 0)
        return TextRow([(f"{ends}  ", "muted")], pictures=half_blocks(self._paint([ramp], scale)))


def map_rows(
    maps: npt.NDArray[np.float64], scale: Scale, width: int, height: int, *, shades: bool
) -> list[TextRow]:
    """Maps side by side, as many as are large enough to see, with the scale of the colors."""
    rows, across = maps.shape[1:]
    side = _tile_side(min(len(maps), _MOST_TILES), (rows, across), width, height * 2)
    tall, wide = min(side[0], height * 2), min(side[1], width)
    shown = maps[: min(_tiles(tall, wide, width, height * 2), _MOST_TILES)]
    places = [
        np.linspace(0, size - 1, min(size, room)).round().astype(int)
        for size, room in ((rows, tall), (across, wide))
    ]
    low = scale.low if shades else 0.0
    # In gray, both ends of a diverging color scale look alike; a rising scale does not.
    colors = Scale(low=scale.low - low, high=scale.high - low)
    small = [one[np.ix_(*places)] - low for one in shown]
    pixels = sheet([enlarge(paint(one, colors), tall, wide) for one in small], width, _GAP)
    ramp = np.linspace(colors.low, colors.high, _RAMP)[None].repeat(2, 0)
    rest = f", {len(shown):,} of {len(maps):,}" if len(shown) < len(maps) else ""
    ends = f"{scale.low:.3g} … {scale.high:.3g}{rest}  "
    return [*_rows(pixels), TextRow([(ends, "muted")], pictures=half_blocks(paint(ramp, colors)))]


def blend(channels: Sequence[Matrix], scale: Scale) -> Picture:
    """Red, green and blue as one picture; NaN stands out."""
    span = scale.high - scale.low or 1.0
    places = (np.stack(channels).astype(np.float64) - scale.low) / span
    parts = np.clip(np.nan_to_num(places, posinf=1.0, neginf=0.0), 0, 1) * 255
    red, green, blue = parts.round().astype(np.int32)
    picture: Picture = red << 16 | green << 8 | blue
    lost = np.isnan(places).any(0)
    # Drawn like any NaN, so that it looks the same in all pictures.
    picture[lost] = paint(np.full((1, 1), np.nan), scale)[0, 0]
    return picture


def _rows(pixels: Picture) -> list[TextRow]:
    return [TextRow(pictures=[cells]) for cells in half_blocks(pixels)]


def _shrunk(size: tuple[int, int], height: int, width: int) -> tuple[int, int]:
    """A size that fits with the same aspect ratio, but large enough to see."""
    share = min(height / size[0], width / size[1], 1.0)
    tall, wide = (max(round(side * share), min(side, _LEAST_TILE)) for side in size)
    return min(tall, height), min(wide, width)


def _tiles(tall: int, wide: int, width: int, height: int) -> int:
    """How many tiles fit."""
    return ((width + _GAP) // (wide + _GAP)) * ((height + _GAP) // (tall + _GAP))


def _tile_side(count: int, size: tuple[int, int], width: int, height: int) -> tuple[int, int]:
    """The largest tile of which `count` fit, but large enough to see."""
    rows, across = size

    def fits(tall: int, wide: int) -> bool:
        return _tiles(tall, wide, width, height) >= count

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


def bar_lines(values: Sequence[float], height: int) -> list[str]:
    """A bar chart in `height` lines; a positive value is never invisible."""
    highest = max((value for value in values if math.isfinite(value)), default=0.0)
    steps = [
        max(round(value / highest * height * len(SPARKS)), 1)
        if math.isfinite(value) and value > 0
        else 0
        for value in values
    ]
    blocks = (" ", *SPARKS)
    return [
        "".join(blocks[min(max(step - level * len(SPARKS), 0), len(SPARKS))] for step in steps)
        for level in reversed(range(height))
    ]


_CELL = 11
_BLOCK = 64
"""Rows of values that are read at a time."""
_BINS = 48
_HISTOGRAM = 3


@dataclass(frozen=True, slots=True)
class ViewedStats:
    """The statistics of a tensor or of a part of it."""

    part: Index
    stats: Stats | None
    spread: LinearHistogram | None


class TensorViewer:
    """One tensor and the slice of it that is shown."""

    def __init__(
        self, live: LiveModel, attribute: Attribute, view: TensorSlice | None = None
    ) -> None:
        """`view` is the one from the last time, used again if the shape is the same."""
        self.live = live
        self.attribute = attribute
        self.facts: TensorFacts = live.facts(attribute.id)
        shape = self.facts.spec.shape or ()
        # A parameter with three channels is rarely an RGB picture.
        fresh = TensorSlice(shape, colored=attribute.role != "parameter")
        self.view = fresh if view is None or view.shape != fresh.shape else view
        self.measured: ViewedStats | None = None
        self._block: tuple[Any, npt.NDArray[Any]] | None = None

    @property
    def places(self) -> tuple[str, ...]:
        if self.facts.unreadable:
            return ()
        view = self.view
        return (
            *(("panel:picture",) if len(view.modes) > 1 else ()),
            *(("panel:colors",) if view.channels is not None else ()),
            *(("panel:slices",) if view.browsable else ()),
            "panel:tensor",
        )

    @property
    def is_measured(self) -> bool:
        """Whether the statistics are those of the current part."""
        return self.measured is not None and self.measured.part == self.view.part

    def measure(self, part: Index, progress: Progress) -> ViewedStats:
        """Compute the statistics of a part, in a thread."""
        tensor = self.attribute.id
        stats = self.live.measure(tensor, lambda share: progress(share / 2), part)
        if stats is None or self.facts.unreadable:
            return ViewedStats(part, stats, None)
        spread = self.live.spread(
            tensor, stats, _BINS, lambda share: progress(0.5 + share / 2), part
        )
        return ViewedStats(part, stats, spread)

    def rows(
        self, width: int, height: int, *, shades: bool = False
    ) -> tuple[Sequence[TextRow], Sequence[TextRow]]:
        """The rows for this size, and the header."""
        top = [*self._facts(width), *self._statistics(width)]
        if self.facts.unreadable:
            why = f"No values to show: {harmless(self.facts.unreadable)}."
            return [*top, TextRow(), *paragraph(why, width, "muted")], []
        view = self.view
        if view.mode == "numbers":
            return self._numbers(top, width)

        def fetch(index: Index, tall: int, wide: int) -> npt.NDArray[np.float32]:
            return self.live.image(self.attribute.id, index, tall, wide)

        painter = TensorPicture(fetch, view, self.facts.spec.dtype, shades=shades)
        draw = painter.picture if view.mode == "picture" else painter.sheet
        # The line above the picture and the legend below it need two rows.
        return draw(width, max(height - 2, 1)), [self._place()]

    def _facts(self, width: int) -> list[TextRow]:
        facts, spec = self.facts, self.facts.spec
        pieces: list[tuple[str, str]] = [
            (harmless(self.attribute.name), "path"),
            (f"  {shape_text(spec)}", "shape"),
            (f" {harmless(spec.dtype)}", "dtype"),
            (f" {format_bytes(spec.bytes)}", "bytes"),
            (f" {harmless(spec.device)}", "device"),
        ]
        storage = f"view at offset {facts.offset:,} of {format_bytes(facts.storage_bytes)}"
        more = [
            "" if spec.layout == "strided" else harmless(spec.layout),
            f"stride ({', '.join(map(str, facts.stride))})" if facts.stride is not None else "",
            "" if facts.contiguous else "not contiguous",
            storage if facts.storage_bytes > spec.bytes else "",
            "requires grad" if facts.requires_grad else "",
            f"grad_fn {harmless(facts.grad_fn)}" if facts.grad_fn else "",
            "has .grad" if facts.has_grad else "",
        ]
        told = [(" · ".join(filter(None, more)), "muted")]
        return [TextRow(line) for part in (pieces, told) for line in wrap(part, width, "  ")]

    def _statistics(self, width: int) -> list[TextRow]:
        if self.measured is None or self.measured.stats is None:
            return []
        stats = self.measured.stats
        groups: list[list[Piece]] = [
            [(f"{name} ", "muted"), (f"{getattr(stats, name):.4g}", "number")]
            for name in ("min", "max", "mean", "std")
        ]
        of = f"of {format_count(stats.count)}"
        part = self.view.part_text(self.measured.part)
        groups.append([(f"{of} in ", "muted"), (part, "shape")] if part else [(of, "muted")])
        strange = (("NaN", stats.nan), ("Inf", stats.inf))
        groups += [[(f"{count:,} {name}", "problem")] for name, count in strange if count]
        return [TextRow(line) for line in gather(groups, width)] + self._histogram(width)

    def _histogram(self, width: int) -> list[TextRow]:
        spread = self.measured.spread if self.measured else None
        if spread is None or len(spread.counts) < 2:
            return []
        each = ceil(len(spread.counts) / max(min(width, _BINS), 1))
        counts = [sum(spread.counts[at : at + each]) for at in range(0, len(spread.counts), each)]
        low, high = f"{spread.low:.3g}", f"{spread.high:.3g}"
        axis = low + " " * max(len(counts) - len(low) - len(high), 1) + high
        bars = [TextRow([(line, "spark")]) for line in bar_lines(counts, _HISTOGRAM)]
        return [TextRow(), *bars, TextRow([(axis, "muted")])]

    def _place(self) -> TextRow:
        """The slice, with the browsed dimension in color."""
        pieces: list[tuple[str, str]] = [("[", "muted")]
        for at, (words, moves) in enumerate(self.view.words()):
            pieces += [(", " if at else "", "muted"), (words, "key" if moves else "number")]
        pieces.append(("]", "muted"))
        if self.view.position and self.view.mode != "sheet":
            place, count = self.view.position
            pieces.append((f"  {place + 1:,} of {count:,}", "muted"))
        return TextRow(pieces)

    def _numbers(
        self, top: list[TextRow], width: int
    ) -> tuple[Sequence[TextRow], Sequence[TextRow]]:
        view = self.view
        rows, across = view.sides
        margin = len(str(rows[-1])) + 1
        fitting = max((width - margin) // _CELL, 1)
        seen = range(view.column, min(view.column + fitting, len(across)))
        titles = "".join(f"{across[at]:>{_CELL}}" for at in seen)
        more = " …" if seen.stop < len(across) else ""
        head = [*top, TextRow(), self._place(), TextRow([(" " * margin + titles + more, "faint")])]

        def draw(at: int) -> TextRow:
            if at < len(head):
                return head[at]
            row = at - len(head)
            numbers = map(_number, self._row_of_numbers(row, seen).tolist())
            return TextRow([(f"{rows[row]:<{margin}}", "faint"), *numbers])

        return LazyRows(len(head) + len(rows), draw), []

    def _row_of_numbers(self, row: int, seen: range) -> npt.NDArray[Any]:
        first = row // _BLOCK * _BLOCK
        index = self.view.index
        key = index, first, seen
        if self._block is None or self._block[0] != key:
            rows = range(first, min(first + _BLOCK, self.view.extent[0]))
            self._block = key, self.live.values(self.attribute.id, index, rows, seen)
        numbers: npt.NDArray[Any] = self._block[1][row - first]
        return numbers


def _number(value: Any) -> tuple[str, str]:
    if isinstance(value, (int, complex)):
        words = f"{value:.2g}" if isinstance(value, complex) else str(value)
        return fit(words, _CELL, right=True), "muted" if value is False else "plain"
    style = "muted" if value == 0 else "plain" if math.isfinite(value) else "problem"
    return f"{value:>{_CELL}.4g}", style


class TextViewer:
    """A long text of an attribute, wrapped."""

    places = ("panel:text",)
    """The places of the key table whose keys act on it."""

    def __init__(self, words: str) -> None:
        self._lines = [harmless(line.expandtabs(_TAB).rstrip()) for line in words.splitlines()]
        self._drawn: tuple[int, list[TextRow]] = (0, [])

    def rows(
        self, width: int, height: int, *, shades: bool = False
    ) -> tuple[Sequence[TextRow], Sequence[TextRow]]:
        """The wrapped lines, and no header."""
        if self._drawn[0] != width:
            self._drawn = width, [row for line in self._lines for row in paragraph(line, width)]
        return self._drawn[1], []
