"""Which part of a tensor the explorer shows: a slice that is typed, browsed and turned.

>>> view = TensorSlice((8, 3, 5, 5))
>>> view.take(read_slice("2, :, 1:4", view.shape))
>>> view.text
'[2, 0, 1:4, :]'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import Literal

from torchglass.records.model import Index

Mode = Literal["numbers", "picture", "sheet"]
Part = int | range
"""An index in a dimension, or a range of it."""

RGB = 3
_PART = re.compile(r"(?P<start>[+-]?\d+)?(?P<range>:(?P<stop>[+-]?\d+)?(:(?P<step>[+-]?\d+)?)?)?")
_REST = "..."


class TensorSlice:
    """A slice of a tensor and how to view it: up to two dimensions are rows and columns."""

    def __init__(self, shape: Sequence[int], *, colored: bool = False) -> None:
        """`colored`: show three channels as RGB where that is possible."""
        self.shape = tuple(shape)
        self.mode: Mode = "numbers"
        self.colored = colored
        self.channels = channels_of(self.shape)
        """The dimension of red, green and blue."""
        self.tiles = 1
        """How many slices a sheet shows at once."""
        self.take([range(size) for size in self.shape])

    def take(self, parts: Sequence[Part]) -> None:
        """Show these parts; the last two ranges become rows and columns."""
        self.ranges = [
            part if isinstance(part, range) else range(size)
            for part, size in zip(parts, self.shape, strict=True)
        ]
        self.at = [part.start if isinstance(part, range) else part for part in parts]
        self._places = {one for one, part in enumerate(parts) if not isinstance(part, range)}
        wide = [one for one, part in enumerate(parts) if isinstance(part, range)]
        self.shown: tuple[int, ...] = tuple(wide[-2:])
        """The dimensions shown as rows and columns; the others are browsed."""
        self._chosen = wide[-3] if len(wide) > 2 else -1
        self.column = 0
        if self.mode not in self.modes:
            self.mode = "numbers"

    @property
    def has_colors(self) -> bool:
        """Whether pictures show three channels as RGB."""
        return self.colored and self.channels is not None

    @property
    def is_colored(self) -> bool:
        """Whether three channels are shown as RGB now."""
        return self.has_colors and self.mode != "numbers"

    @property
    def seen(self) -> tuple[int, ...]:
        if not self.is_colored:
            return self.shown
        last = range(len(self.shape))[-3:]
        return tuple(one for one in last if one != self.channels)

    @property
    def browsable(self) -> tuple[int, ...]:
        """The dimensions that are not rows, columns or colors."""
        taken = (*self.seen, self.channels if self.is_colored else None)
        return tuple(one for one in range(len(self.shape)) if one not in taken)

    @property
    def moving(self) -> int | None:
        """The dimension to browse."""
        others = self.browsable
        return self._chosen if self._chosen in others else others[-1] if others else None

    @property
    def index(self) -> Index:
        seen = self.seen
        return tuple(
            self.ranges[one] if one in seen else place for one, place in enumerate(self.at)
        )

    @property
    def part(self) -> Index:
        """What was typed, at the index that was browsed to since; () for the whole tensor."""
        seen = self.seen
        part = tuple(
            place if one in self._places and one not in seen else self.ranges[one]
            for one, place in enumerate(self.at)
        )
        return () if part == tuple(map(range, self.shape)) else part

    def index_with(self, dimension: int, place: int) -> Index:
        index = list(self.index)
        index[dimension] = place
        return tuple(index)

    @property
    def text(self) -> str:
        return f"[{', '.join(words for words, _ in self.words())}]"

    def part_text(self, part: Index) -> str:
        """A part as it can be typed; "" for the whole tensor."""
        words = (_words(one, size) for one, size in zip(part, self.shape, strict=False))
        return f"[{', '.join(words)}]" if part else ""

    def words(self) -> list[tuple[str, bool]]:
        """The part of each dimension, and whether it is the browsed one."""
        # The colors, and the slices that are side by side in a sheet, are shown as a whole.
        whole = (
            self.channels if self.is_colored else None,
            self.moving if self.mode == "sheet" else None,
        )
        return [
            (_words(self.ranges[one] if one in whole else part, size), one == self.moving)
            for one, (part, size) in enumerate(zip(self.index, self.shape, strict=True))
        ]

    @property
    def sides(self) -> tuple[range, range]:
        ranges = [self.ranges[one] for one in self.seen]
        rows, across = [range(1)] * (2 - len(ranges)) + ranges
        return rows, across

    @property
    def extent(self) -> tuple[int, int]:
        rows, across = self.sides
        return len(rows), len(across)

    @property
    def position(self) -> tuple[int, int] | None:
        """The index of the slice and the number of slices; None if everything is visible."""
        if self.moving is None:
            return None
        whole = self.ranges[self.moving]
        return whole.index(self.at[self.moving]), len(whole)

    @property
    def modes(self) -> tuple[Mode, ...]:
        if len(self.shape) < 2 or (len(self.shown) < 2 and not self.has_colors):
            return ("numbers",)
        return ("numbers", "picture", "sheet") if self.browsable else ("numbers", "picture")

    def next_mode(self) -> None:
        modes = self.modes
        at = modes.index(self.mode) + 1 if self.mode in modes else 0
        self.mode = modes[at % len(modes)]

    def turn_colors(self) -> None:
        if self.channels is None:
            return
        self.colored = not self.colored or self.mode == "numbers"
        if self.mode == "numbers" or self.mode not in self.modes:
            self.mode = "picture"

    def browse(self, by: int) -> None:
        """Go to the next or a previous slice, around the end."""
        if self.moving is not None and self.position is not None:
            place, count = self.position
            step = self.tiles if self.mode == "sheet" else 1
            self.at[self.moving] = self.ranges[self.moving][(place + by * step) % count]

    def next_dimension(self) -> None:
        others, now = self.browsable, self.moving
        if now is not None:
            self._chosen = next((one for one in others if one > now), others[0])

    def turn(self) -> None:
        pairs: list[tuple[int, ...]] = list(combinations(range(len(self.shape)), 2))
        if len(pairs) > 1 or (pairs and self.shown not in pairs):
            at = pairs.index(self.shown) + 1 if self.shown in pairs else 0
            self.shown = pairs[at % len(pairs)]
            self.colored = False
            self._chosen = -1
            self.column = 0

    def pan(self, by: int) -> None:
        self.column = min(max(self.column + by, 0), max(self.extent[1] - 1, 0))


def channels_of(shape: Sequence[int]) -> int | None:
    """The dimension that may be red, green and blue: the third last, or the last."""
    if len(shape) < RGB:
        return None
    if shape[-3] == RGB and min(shape[-2:]) > 1:
        return len(shape) - 3
    return len(shape) - 1 if shape[-1] == RGB and min(shape[-3:-1]) > RGB else None


def read_slice(words: str, shape: Sequence[int]) -> tuple[Part, ...]:
    """Read a typed slice: `[0, :, 3:7]`, with or without brackets; missing dimensions are whole.

    Raises ValueError with a message for the user.
    """
    inner = words.strip().removeprefix("[").removesuffix("]").strip().removesuffix(",")
    parts = [part.strip() for part in inner.split(",")] if inner else []
    if parts.count(_REST) > 1:
        raise ValueError("Use “...” only once")
    given = len(parts) - parts.count(_REST)
    if given > len(shape):
        dimensions = "1 dimension" if len(shape) == 1 else f"{len(shape)} dimensions"
        raise ValueError(f"Too many indices: {given} for {dimensions}")
    at = parts.index(_REST) if _REST in parts else len(parts)
    missing = [":"] * (len(shape) - given)
    parts = [*parts[:at], *missing, *parts[at + 1 :]]
    sized = enumerate(zip(parts, shape, strict=True))
    return tuple(_read(part, size, one) for one, (part, size) in sized)


def _read(words: str, size: int, dimension: int) -> Part:
    known = _PART.fullmatch(words)
    if not known or not words:
        raise ValueError(f"“{words}” is not an index (3) or a slice (3:7)")
    start, stop, step = (
        None if known[name] is None else int(known[name]) for name in ("start", "stop", "step")
    )
    if known["range"] is None:
        place = int(words)
        if not -size <= place < size:
            raise ValueError(
                f"index {place:,} is out of range: dimension {dimension} has size {size:,}"
            )
        return place % size
    if step is not None and step < 1:
        raise ValueError(f"the step in “{words}” must be 1 or more")
    found = range(size)[start:stop:step]
    if not found:
        raise ValueError(f"“{words}” is empty: dimension {dimension} has size {size:,}")
    return found


def _words(part: int | range | None, size: int) -> str:
    if part is None or part == range(size):
        return ":"
    if isinstance(part, int):
        return str(part)
    start = str(part.start) if part.start else ""
    stop = str(part.stop) if part.stop < size else ""
    return f"{start}:{stop}" + (f":{part.step}" if part.step > 1 else "")
