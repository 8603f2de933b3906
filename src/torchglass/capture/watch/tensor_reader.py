"""Measures tensors as they pass by: exact statistics, and histograms of a sample.

>>> grids(np.array([[0.0, 1.0, 2.0, 3.0]]), bins=4)
    [Grid(exponent=0, first=0, counts=(1, 1, 1, 1))]

A grid is as fine as the bulk of its numbers wants it. It has room for four times as many bins, and
the few numbers that lie still farther out are in no bin: one outlier does not blur all the others.

What is small is copied and measured together with its likes, because one by one it would cost more
than it took to make. Nothing here touches the user's random state: samples are drawn at places of
our own choice, which are the same whenever a tensor has as many elements.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from torchglass.capture.observe.tensor_batch import (
    LARGEST_BYTES,
    Rows,
    Shelf,
    can_wait,
    measure_rows,
)
from torchglass.capture.tensor.description import measure, numbers_of
from torchglass.capture.tensor.memory_extent import identity_of
from torchglass.records.tensors import Histogram, Stats

Numbers = npt.NDArray[np.float64]

ROOM = 4
"""How many times the bins that the bulk takes a grid may have."""
_BEYOND = 100
"""One in so many numbers on either side may be an outlier."""
_EXACT_BITS = 52
"""A float tells apart so many halvings of its largest power of two."""
_FINEST, _COARSEST = -1000, 1023
_OF_ONE_VALUE = 6
"""A number that stands alone gets a bin of its own size over two to this power."""
_OF_ZEROS = -30


class Grid(NamedTuple):
    """The bins of a histogram: bin i reaches from `(first + i) · 2**exponent` to the next edge."""

    exponent: int
    first: int
    counts: tuple[int, ...]


EMPTY = Grid(0, 0, ())


def grids(rows: Numbers, bins: int) -> list[Grid]:
    """The histogram of each row, whatever is in it; what is not finite is in no bin."""
    if rows.size == 0:
        return [EMPTY] * len(rows)
    with np.errstate(all="ignore"):
        ordered = np.sort(np.where(np.isfinite(rows), rows, np.nan), axis=1)
        finite = rows.shape[1] - np.isnan(ordered).sum(axis=1)
        exponents = _exponents(ordered, finite, bins)
        cells = np.floor(ordered * np.ldexp(1.0, -exponents)[:, None])
        # The smallest numbers become zero when they are divided, and would lose their sign.
        cells[(cells == 0) & (ordered < 0)] = -1
        starts = _starts(cells, finite, bins)
        counts = _count(cells - starts[:, None], bins * ROOM)
    return _trimmed(exponents, starts, counts)


def _exponents(ordered: Numbers, finite: npt.NDArray[np.intp], bins: int) -> npt.NDArray[np.intp]:
    """For each row the width of its bins, as a power of two: the bulk takes `bins` at most."""
    beyond = finite // _BEYOND
    low, high = _at(ordered, beyond), _at(ordered, finite - 1 - beyond)
    # Halves, because the whole may be more than a float can say.
    half = high / 2 - low / 2
    largest = np.maximum(np.abs(low), np.abs(high))
    wanted = np.ceil(np.log2(half) + 1 - math.log2(bins))
    alone = np.where(largest > 0, np.frexp(largest)[1] - _OF_ONE_VALUE, _OF_ZEROS)
    exponents = np.where(half > 0, wanted, alone)
    exact = np.frexp(largest)[1] - _EXACT_BITS
    exponents = np.where(largest > 0, np.maximum(exponents, exact), exponents)
    whole: npt.NDArray[np.intp] = np.nan_to_num(exponents).astype(np.intp)
    return np.clip(whole, _FINEST, _COARSEST)


def _starts(cells: Numbers, finite: npt.NDArray[np.intp], bins: int) -> Numbers:
    """The first cell that each row has a bin for."""
    beyond = finite // _BEYOND
    lowest, low = _at(cells, finite * 0), _at(cells, beyond)
    taken = _at(cells, finite - 1 - beyond) - low + 1
    return np.maximum(lowest, low - np.floor((bins * ROOM - taken) / 2))


def _count(places: Numbers, room: int) -> npt.NDArray[np.intp]:
    """How many numbers of each row fall into each of its bins."""
    # What is in none of them goes into one more, which is left off again.
    inside = np.where((places >= 0) & (places < room), places, room).astype(np.intp)
    inside += np.arange(len(places))[:, None] * (room + 1)
    flat = np.bincount(inside.ravel(), minlength=len(places) * (room + 1))
    counts: npt.NDArray[np.intp] = flat.reshape(len(places), room + 1)[:, :room]
    return counts


def _trimmed(
    exponents: npt.NDArray[np.intp], starts: Numbers, counts: npt.NDArray[np.intp]
) -> list[Grid]:
    """Each row without the empty bins at its ends."""
    filled = counts > 0
    begins = filled.argmax(axis=1)
    lengths = counts.shape[1] - filled[:, ::-1].argmax(axis=1) - begins
    lengths[~filled.any(axis=1)] = 0
    firsts = np.where(np.isfinite(starts), starts, 0).astype(np.int64) + begins
    places = np.arange(len(counts)) * counts.shape[1] + begins
    # Bytes become numbers only where they are wanted, and most bins are empty.
    flat: Sequence[int] = (
        counts.astype(np.uint8).tobytes() if counts.max() < 1 << 8 else counts.ravel().tolist()
    )
    columns = (column.tolist() for column in (exponents, firsts, places, lengths))
    return [
        Grid(exponent, first, tuple(flat[place : place + length])) if length else EMPTY
        for exponent, first, place, length in zip(*columns, strict=True)
    ]


def _at(rows: Numbers, columns: npt.NDArray[np.intp]) -> Numbers:
    """One number of each row."""
    there = np.clip(columns, 0, rows.shape[1] - 1)
    chosen: Numbers = rows[np.arange(len(rows)), there]
    return chosen


_FULL_BYTES = 1 << 20
"""What is measured together at most: as much as stays in a core's cache."""
_MOST_BYTES = 1 << 24
"""The memory of all that is put aside; a model with tensors of many shapes begins anew then."""
SAFE_LENGTHS = {torch.float32: (1e-15, 1e15), torch.float64: (1e-140, 1e140)}
"""Norms in between are exact: no square that counts has vanished or overflown."""
_NO_NUMBERS: Numbers = np.empty((1, 0))


class Reading:
    """What a tensor was at one time, which is known once the gauge has finished."""

    __slots__ = (
        "dims",
        "factor",
        "histogram",
        "identity",
        "is_scaled",
        "needs_grad",
        "norms",
        "stats",
        "version",
        "zeros",
    )

    def __init__(self) -> None:
        self.identity: tuple[Any, ...] = ()
        """What tells the tensor from others, if it may be met again."""
        self.version = 0
        """How often the tensor had been written to."""
        self.stats: Stats | None = None
        self.norms: Reading | None = None
        """Of a gradient, the length of each sample's part of it."""
        self.zeros: float | None = None
        """The share of its numbers that are exactly zero."""
        self.factor = 1.0
        """What its numbers are to be multiplied with."""
        self.is_scaled = False
        """Whether it is a gradient that a `GradScaler` has scaled and will check."""
        self.needs_grad = False
        """Whether a gradient was wanted of the tensor."""
        self.dims = 2
        """Of a parameter's gradient: how many dimensions the parameter has."""
        self.histogram: Histogram | None = None

    def is_of(self, tensor: torch.Tensor, identity: tuple[Any, ...]) -> bool:
        """Whether it is the reading of a tensor as it is now."""
        return (
            self.identity == identity
            and self.version == tensor._version
            and self.needs_grad == tensor.requires_grad
        )


class _Block(NamedTuple):
    """Readings of tensors that were measured together, and as many numbers of each in a row.

    Until the gauge finishes there are no records of them: thousands of small objects that live
    through a step would be looked through by every garbage collection meanwhile.
    """

    readings: list[Reading]
    samples: Numbers
    rows: Rows | None
    """None where the readings have their statistics."""


class Gauge:
    """Reads tensors; one that is met again unchanged has the same reading."""

    def __init__(self, *, bins: int = 30, sample_n: int | None = 100, zeros: bool = False) -> None:
        self._bins = bins
        self._sample_n = sample_n
        self._count_zeros = zeros
        self._known: dict[int, Reading] = {}
        self._shelves: dict[tuple[Any, ...], Shelf[Reading]] = {}
        self._shelved_bytes = 0
        # A step that nothing ends is finished by a thread of its own.
        self._lock = threading.RLock()
        self._blocks: list[_Block] = []

    def read(self, tensor: torch.Tensor) -> Reading | None:
        """What a tensor is right now; None for one without numbers. Nobody may be listening."""
        known = self._known.get(id(tensor))
        identity = identity_of(tensor)
        if known is not None and known.is_of(tensor, identity):
            return known
        reading = self._new(tensor, norms=False)
        try:
            if reading is not None:
                reading.version = tensor._version
                reading.identity = identity
                self._known[id(tensor)] = reading
        except RuntimeError:
            # A tensor of inference mode does not tell when it is written to.
            self._known.pop(id(tensor), None)
        return reading

    def read_once(self, tensor: torch.Tensor, *, norms: bool = False) -> Reading | None:
        """The same for a tensor that will not be met again, such as a gradient."""
        return self._new(tensor, norms=norms)

    def read_all(self, tensors: Iterable[torch.Tensor]) -> list[Reading | None]:
        """The same for many at once."""
        return [self._new(tensor, norms=False) for tensor in tensors]

    def forget(self) -> None:
        """Read every tensor anew."""
        self._known.clear()

    def finish(self) -> None:
        """Make the histograms of all that was read."""
        self._measure_waiting()
        blocks, self._blocks = self._blocks, []
        by_length: dict[int, list[_Block]] = {}
        for block in blocks:
            if block.rows is not None:
                for reading, stats in zip(block.readings, block.rows.stats(), strict=True):
                    reading.stats = stats
            by_length.setdefault(block.samples.shape[1], []).append(block)
        for alike in by_length.values():
            for portion in _portions(alike):
                _bin(portion, self._bins)

    def _new(self, tensor: torch.Tensor, *, norms: bool) -> Reading | None:
        reading = Reading()
        reading.needs_grad = tensor.requires_grad
        if norms and tensor.layout is torch.strided and tensor.dim() and not tensor.is_nested:
            reading.norms = Reading()
        if _is_small(tensor):
            self._put_aside(tensor.detach() if tensor.requires_grad else tensor, reading)
        else:
            self._measure_now(tensor, reading)
            if reading.stats is None:
                return None
        return reading

    def _put_aside(self, tensor: torch.Tensor, reading: Reading) -> None:
        kind = (tensor.shape, tensor.dtype, reading.norms is not None)
        with self._lock:
            shelf = self._shelves.get(kind)
            if shelf is None:
                shelf = self._shelves[kind] = self._new_shelf(tensor)
            if shelf.put(tensor, reading):
                self._measure(shelf)

    def _new_shelf(self, like: torch.Tensor) -> Shelf[Reading]:
        if self._shelved_bytes > _MOST_BYTES:
            self._measure_waiting()
            self._shelves.clear()
            self._shelved_bytes = 0
        shelf: Shelf[Reading] = Shelf(like, _FULL_BYTES)
        self._shelved_bytes += shelf.bytes
        return shelf

    def _measure_now(self, tensor: torch.Tensor, reading: Reading) -> None:
        reading.stats = measure(tensor)
        if reading.stats is None:
            return
        sample = _NO_NUMBERS
        try:
            values = numbers_of(tensor)
            if values is not None:
                sample = self._sampled(values)
                if self._count_zeros:
                    reading.zeros = 1 - torch.count_nonzero(values).item() / values.numel()
                if reading.norms is not None:
                    lengths = _norms(values)
                    reading.norms.stats = measure(lengths)
                    self._blocks.append(_Block([reading.norms], self._sampled(lengths), None))
        except (RuntimeError, NotImplementedError):
            # A dtype that torch can only store: its statistics have to do.
            sample = _NO_NUMBERS
        self._blocks.append(_Block([reading], sample, None))

    def _measure_waiting(self) -> None:
        with self._lock:
            for shelf in self._shelves.values():
                self._measure(shelf)

    def _measure(self, shelf: Shelf[Reading]) -> None:
        tensors, readings = shelf.take()
        of_norms = [reading.norms for reading in readings if reading.norms is not None]
        if of_norms:
            self._measure_alike(_norms(tensors, first=1), of_norms)
        if readings:
            self._measure_alike(tensors, readings)

    def _measure_alike(self, tensors: torch.Tensor, readings: list[Reading]) -> None:
        """Measure stacked tensors, which are written over."""
        rows = _plain(tensors.reshape(len(readings), -1))
        if self._count_zeros:
            zeros = (1 - torch.count_nonzero(rows, dim=1) / rows.shape[1]).tolist()
            for reading, share in zip(readings, zeros, strict=True):
                reading.zeros = share
        if self._sample_n is not None and rows.shape[1] > self._sample_n:
            rows = rows.index_select(1, _places(rows.shape[1], self._sample_n))
        samples = rows.to(torch.float64, copy=True).numpy()
        self._blocks.append(_Block(readings, samples, measure_rows(tensors)))

    def _sampled(self, values: torch.Tensor) -> Numbers:
        count = values.numel()
        if self._sample_n is not None and count > self._sample_n:
            values = values.take(_places(count, self._sample_n).to(values.device))
        # Always a copy: an array of numpy pins the memory of the tensor that it looks at.
        flat = _plain(values.detach().reshape(1, -1)).to("cpu", torch.float64, copy=True)
        return flat.numpy()


def _portions(blocks: Iterable[_Block]) -> Iterator[list[_Block]]:
    """As many blocks at a time as stay in a core's cache while they are worked on."""
    portion: list[_Block] = []
    size = 0
    for block in blocks:
        portion.append(block)
        size += block.samples.nbytes
        if size >= _FULL_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _bin(blocks: list[_Block], bins: int) -> None:
    """Make histograms of readings whose samples are equally long; empty ones have no bins."""
    readings = [reading for block in blocks for reading in block.readings]
    rows = np.concatenate([block.samples for block in blocks])
    factors = np.array([reading.factor for reading in readings])
    if (factors != 1).any():
        rows = rows * factors[:, None]
    zeros = (np.count_nonzero(rows == 0, axis=1) / max(rows.shape[1], 1)).tolist()
    for reading, grid, share in zip(readings, grids(rows, bins), zeros, strict=True):
        stats = reading.stats
        if stats is None:
            continue
        if reading.zeros is None and rows.shape[1]:
            reading.zeros = share
        if reading.factor != 1:
            stats = _scaled(stats, reading.factor)
        exponent, first, counts = grid
        reading.histogram = Histogram(exponent=exponent, first=first, counts=counts, stats=stats)


def _scaled(stats: Stats, factor: float) -> Stats:
    moments = {name: getattr(stats, name) * factor for name in ("min", "max", "mean", "std")}
    return replace(stats, **moments)


def _plain(values: torch.Tensor) -> torch.Tensor:
    """The numbers that are measured: of complex ones their magnitudes."""
    return values.abs() if values.is_complex() else values


def _is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor is to be measured together with its likes."""
    # Nearly all are too large, or plain: the other questions are for the rest.
    return tensor.numel() * tensor.itemsize <= LARGEST_BYTES and can_wait(tensor)


def _norms(values: torch.Tensor, first: int = 0) -> torch.Tensor:
    """The length of what each sample has; dimensions before `first` are not the batch's."""
    values = _plain(values).flatten(first + 1) if values.dim() > first + 1 else values[..., None]
    if not values.is_floating_point():
        values = values.float()
    wide = torch.float64 if values.dtype is torch.float64 else torch.float32
    lengths: torch.Tensor = torch.linalg.vector_norm(values, dim=first + 1, dtype=wide)
    smallest, largest = SAFE_LENGTHS[wide]
    # On the CPU the squares of float64 take forty times as long as those of float32.
    is_far = ~((lengths > smallest) & (lengths < largest))
    if is_far.any():
        rows, is_far = values[is_far].cpu().double(), is_far.cpu()
        peaks = rows.abs().amax(dim=-1, keepdim=True)
        peaks[~((peaks > 0) & torch.isfinite(peaks))] = 1
        lengths = lengths.cpu().double()
        lengths[is_far] = (torch.linalg.vector_norm(rows / peaks, dim=-1) * peaks[:, 0]).squeeze()
    return lengths


@lru_cache(maxsize=1 << 12)
def _places(count: int, wanted: int) -> torch.Tensor:
    """Where the numbers of a sample stand: one at a random place in each of equal stretches."""
    within = np.random.default_rng(count).random(wanted)
    places = ((np.arange(wanted) + within) * (count / wanted)).astype(np.int64)
    return torch.from_numpy(np.minimum(places, count - 1))
