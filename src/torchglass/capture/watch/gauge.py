"""Tensors measured as they pass by: exact statistics of all numbers, histograms of a sample.

What is small is copied and measured together with its likes, because one by one it would cost more
than it took to make. Nothing here touches the user's random state: samples are drawn at places of
our own choice, which are the same whenever a tensor has as many elements.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from torchglass.capture.statistics.batch import LARGEST_BYTES, Rows, can_wait, measure_rows
from torchglass.capture.statistics.shelves import Shelf
from torchglass.capture.tensor.describing import measure, numbers_of
from torchglass.capture.tensor.extents import identity_of
from torchglass.capture.watch.histograms import Numbers, grids
from torchglass.records.histogram import Histogram
from torchglass.records.tensors import Stats

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
