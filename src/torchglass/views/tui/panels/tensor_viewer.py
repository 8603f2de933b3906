"""Shows one tensor: facts, slices, distribution and picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from torchglass.records.attributes import (
    Attribute,
    Index,
    LinearHistogram,
    LiveModel,
    Progress,
    TensorFacts,
)
from torchglass.records.tensors import Stats
from torchglass.views.formats import SPARKS, format_bytes, format_count, harmless, shape_text
from torchglass.views.tui.cells import Piece, fit
from torchglass.views.tui.panels.slices import Look
from torchglass.views.tui.panels.tensor_picture import Painter
from torchglass.views.tui.panels.text_rows import LazyRows, Row, gather, paragraph, wrap

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


_CELL = 11
_BLOCK = 64
"""Rows of numbers that are fetched at a time."""
_BINS = 48
_HISTOGRAM = 3


@dataclass(frozen=True, slots=True)
class Measured:
    """What was worked out of all the numbers of a tensor, or of a part of it."""

    part: Index
    stats: Stats | None
    spread: LinearHistogram | None


class Viewer:
    """One tensor, and which part of it is looked at."""

    def __init__(self, live: LiveModel, attribute: Attribute, look: Look | None = None) -> None:
        """`look` is the one from the last time it was open, which goes on if it still fits."""
        self.live = live
        self.attribute = attribute
        self.facts: TensorFacts = live.facts(attribute.id)
        shape = self.facts.spec.shape or ()
        # Three channels of a parameter are colours by chance more often than not.
        fresh = Look(shape, coloured=attribute.role != "parameter")
        self.look = fresh if look is None or look.shape != fresh.shape else look
        self.measured: Measured | None = None
        self._block: tuple[Any, npt.NDArray[Any]] | None = None

    @property
    def places(self) -> tuple[str, ...]:
        """Where the keys act that act on this tensor, as the table of keys names it."""
        if self.facts.unreadable:
            return ()
        look = self.look
        return (
            *(("panel:picture",) if len(look.modes) > 1 else ()),
            *(("panel:colours",) if look.channels is not None else ()),
            *(("panel:slices",) if look.browsable else ()),
            "panel:tensor",
        )

    @property
    def is_measured(self) -> bool:
        """Whether the numbers that are looked at now were worked out."""
        return self.measured is not None and self.measured.part == self.look.part

    def measure(self, part: Index, progress: Progress) -> Measured:
        """Look at all numbers of a part, in a thread."""
        tensor = self.attribute.id
        stats = self.live.measure(tensor, lambda share: progress(share / 2), part)
        if stats is None or self.facts.unreadable:
            return Measured(part, stats, None)
        spread = self.live.spread(
            tensor, stats, _BINS, lambda share: progress(0.5 + share / 2), part
        )
        return Measured(part, stats, spread)

    def rows(
        self, width: int, height: int, *, shades: bool = False
    ) -> tuple[Sequence[Row], Sequence[Row]]:
        """What to show in so many cells, and what of it stays at the top."""
        top = [*self._facts(width), *self._statistics(width)]
        if self.facts.unreadable:
            why = f"No values to show: {harmless(self.facts.unreadable)}."
            return [*top, Row(), *paragraph(why, width, "muted")], []
        look = self.look
        if look.mode == "numbers":
            return self._numbers(top, width)

        def fetch(index: Index, tall: int, wide: int) -> npt.NDArray[np.float32]:
            return self.live.image(self.attribute.id, index, tall, wide)

        painter = Painter(fetch, look, self.facts.spec.dtype, shades=shades)
        draw = painter.picture if look.mode == "picture" else painter.sheet
        # The line above it and the legend are not the picture's.
        return draw(width, max(height - 2, 1)), [self._place()]

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
        groups: list[list[Piece]] = [
            [(f"{name} ", "muted"), (f"{getattr(stats, name):.4g}", "number")]
            for name in ("min", "max", "mean", "std")
        ]
        of = f"of {format_count(stats.count)}"
        part = self.look.part_text(self.measured.part)
        groups.append([(f"{of} in ", "muted"), (part, "shape")] if part else [(of, "muted")])
        strange = (("NaN", stats.nan), ("Inf", stats.inf))
        groups += [[(f"{count:,} {name}", "problem")] for name, count in strange if count]
        return [Row(line) for line in gather(groups, width)] + self._histogram(width)

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
        for at, (words, moves) in enumerate(self.look.words()):
            pieces += [(", " if at else "", "muted"), (words, "key" if moves else "number")]
        pieces.append(("]", "muted"))
        if self.look.position and self.look.mode != "sheet":
            place, count = self.look.position
            pieces.append((f"  {place + 1:,} of {count:,}", "muted"))
        return Row(pieces)

    def _numbers(self, top: list[Row], width: int) -> tuple[Sequence[Row], Sequence[Row]]:
        look = self.look
        rows, across = look.sides
        margin = len(str(rows[-1])) + 1
        fitting = max((width - margin) // _CELL, 1)
        seen = range(look.column, min(look.column + fitting, len(across)))
        titles = "".join(f"{across[at]:>{_CELL}}" for at in seen)
        more = " …" if seen.stop < len(across) else ""
        head = [*top, Row(), self._place(), Row([(" " * margin + titles + more, "faint")])]

        def draw(at: int) -> Row:
            if at < len(head):
                return head[at]
            row = at - len(head)
            numbers = map(_number, self._row_of_numbers(row, seen).tolist())
            return Row([(f"{rows[row]:<{margin}}", "faint"), *numbers])

        return LazyRows(len(head) + len(rows), draw), []

    def _row_of_numbers(self, row: int, seen: range) -> npt.NDArray[Any]:
        first = row // _BLOCK * _BLOCK
        index = self.look.index
        key = index, first, seen
        if self._block is None or self._block[0] != key:
            rows = range(first, min(first + _BLOCK, self.look.extent[0]))
            self._block = key, self.live.values(self.attribute.id, index, rows, seen)
        numbers: npt.NDArray[Any] = self._block[1][row - first]
        return numbers


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
