"""The reader of `tg.watch`: statistics of tensors, and histograms of samples of them.

    reader = HistogramReader(bins=30, sample_n=100)
    reading = reader.read(tensor)
    reader.finish()
    reading.histogram

What both readers have in common is in `tensor_reader.py`. The histograms of all tensors of a step
are made together, when the reader finishes, and stay in the columns of a few tables: a reading
refers to its row of one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from torchglass.capture.tensor.device_batches import RowStatistics, sample_positions
from torchglass.capture.tensor.device_reads import DeviceReads, LateNumber, is_remote
from torchglass.capture.tensor.histograms import Numbers, binned
from torchglass.capture.tensor.moments import (
    Rows,
    host_array,
    measure,
    measure_dense,
    measure_rows,
    numbers_of,
    plain_numbers,
    row_norms,
)
from torchglass.capture.tensor_reader import Reading, TensorKind, TensorReader, address_of
from torchglass.records.model import Histogram, Stats
from torchglass.records.step_points import HistogramTable


class MeasuredTensors:
    """The histograms of the tensors that were measured together, as columns."""

    def __init__(self, histograms: HistogramTable, zeros: Numbers, has_factors: bool) -> None:
        self.histograms = histograms
        self.zeros = zeros
        """The share of the values of each that are exactly zero; NaN if it is not known."""
        self.has_factors = has_factors
        """Whether the values of any of them were multiplied by a factor."""


class HistogramReading(Reading):
    """The histogram of a tensor: a row of a table, once the reader has finished."""

    __slots__ = ("dims", "factor", "is_scaled", "norms", "row", "table")

    def __init__(self, *, requires_grad: bool = False) -> None:
        self.requires_grad = requires_grad
        self.is_pending = False
        self.norms: HistogramReading | None = None
        """For a gradient, the norm of each sample's part."""
        self.factor: float | LateNumber = 1.0
        """The factor for its values."""
        self.is_scaled = False
        """Whether it is a gradient that a `GradScaler` has scaled and will check."""
        self.dims = 2
        """For the gradient of a parameter, the number of dimensions of the parameter."""
        self.table: MeasuredTensors | None = None
        self.row = 0

    @property
    def stats(self) -> Stats | None:
        """Its statistics, multiplied by the factor."""
        return None if self.table is None else self.table.histograms.stats_at(self.row)

    @property
    def histogram(self) -> Histogram | None:
        """The same with the bins."""
        return None if self.table is None else self.table.histograms[self.row]

    @property
    def zeros(self) -> float | None:
        """The share of its values that are exactly zero."""
        share = math.nan if self.table is None else float(self.table.zeros[self.row])
        return None if math.isnan(share) else share


class _SampledRows(NamedTuple):
    """Readings of tensors that were measured together, and a sample of each in a row."""

    readings: Sequence[HistogramReading]
    samples: Numbers
    rows: Rows
    zeros: Numbers | None = None
    """The shares of zeros, if they are not those of the samples."""


class _SampledTensor(NamedTuple):
    """The reading of a tensor that was measured alone, and a sample of it."""

    reading: HistogramReading
    sample: Numbers
    stats: Stats
    zeros: float | None
    """The share of zeros, if it is not that of the sample."""


_NO_VALUES: Numbers = np.empty(0)
_PORTION_BYTES = 1 << 20
"""The samples that are binned together: as many as fit in a core's cache."""
_MANY_ROWS = 128


class HistogramReader(TensorReader[HistogramReading]):
    """Reads exact statistics, and a histogram of `sample_n` values (None: of all)."""

    def __init__(
        self,
        *,
        bins: int = 30,
        sample_n: int | None = 100,
        zeros: bool = False,
        reads: DeviceReads | None = None,
    ) -> None:
        super().__init__(reads=reads, sample_n=sample_n)
        self._bins = bins
        self._sample_n = sample_n
        self._count_zeros = zeros
        self._sampled: list[_SampledRows] = []
        self._alone: list[_SampledTensor] = []

    def read(self, tensor: torch.Tensor) -> HistogramReading | None:
        """The reading of a tensor; None for one without values."""
        known = self._recall(tensor) if id(tensor) in self._known else None
        if known is None:
            kind = self._kind_of(tensor)
            known = self._new(tensor, kind)
            if known is not None:
                self._remember(tensor, kind, known)
        return known

    def read_once(self, tensor: torch.Tensor, *, norms: bool = False) -> HistogramReading | None:
        """The same for a tensor that is not read again, such as a gradient."""
        return self._new(tensor, self._kind_of(tensor), norms=norms)

    def read_all(self, tensors: Sequence[torch.Tensor]) -> list[HistogramReading | None]:
        """The same for several tensors, which are copied together."""
        found: list[HistogramReading | None] = []
        remote: list[tuple[torch.Tensor, HistogramReading]] = []
        small: defaultdict[TensorKind, list[tuple[torch.Tensor, HistogramReading]]]
        small = defaultdict(list)
        for tensor in tensors:
            kind = self._kind_of(tensor) if tensor.is_cpu else None
            if kind is not None and kind.is_batched and address_of(tensor):
                reading = HistogramReading(requires_grad=tensor.requires_grad)
                small[kind].append((tensor, reading))
            elif is_remote(tensor):
                reading = HistogramReading(requires_grad=tensor.requires_grad)
                remote.append((tensor, reading))
            else:
                found.append(self._new(tensor, kind))
                continue
            found.append(reading)
        if remote:
            self._read_remote(*zip(*remote, strict=True))
        for kind, chosen in small.items():
            self._put_all_aside(kind, *zip(*chosen, strict=True))
        return found

    def _new(
        self, tensor: torch.Tensor, kind: TensorKind | None, *, norms: bool = False
    ) -> HistogramReading | None:
        reading = HistogramReading(requires_grad=tensor.requires_grad)
        if norms and tensor.layout is torch.strided and tensor.dim() and not tensor.is_nested:
            reading.norms = HistogramReading()
        if is_remote(tensor):
            if reading.norms is None:
                self._read_remote([tensor], [reading])
            else:
                has_values = self._remote.read_with_norms(tensor, reading, reading.norms)
                reading.is_pending = reading.norms.is_pending = has_values
            return reading if reading.is_pending else None
        if kind is not None and kind.is_batched:
            if self._put_aside((kind, reading.norms is not None), tensor, reading):
                return reading
        elif kind is not None and kind.can_wait and address_of(tensor):
            self._take_dense(tensor, reading)
            return reading
        return reading if self._measure_now(tensor, reading) else None

    def finish(self) -> None:
        """Make the statistics and histograms of everything that was read."""
        super().finish()
        self.make_histograms()

    def make_histograms(self) -> None:
        """Make the statistics and histograms of what has arrived."""
        sampled, self._sampled = self._sampled, []
        alone, self._alone = self._alone, []
        sampled += _as_rows(alone)
        sampled.sort(key=lambda block: block.samples.shape[1])
        parts = [_measured(portion, self._bins) for portion in _portions(sampled)]
        if parts:
            table = MeasuredTensors(
                HistogramTable.joined([part.histograms for part in parts]),
                np.concatenate([part.zeros for part in parts]),
                any(part.has_factors for part in parts),
            )
            _put_rows(sampled, table)

    def _take_dense(self, tensor: torch.Tensor, reading: HistogramReading) -> None:
        """Measure a contiguous tensor in this process."""
        values = tensor.detach()
        self._take_alone(values, reading, measure_dense(values))

    def _measure_now(self, tensor: torch.Tensor, reading: HistogramReading) -> bool:
        """Measure any tensor; returns whether it has values."""
        stats = measure(tensor)
        if stats is None:
            return False
        try:
            values = numbers_of(tensor)
            if values is not None:
                self._take_alone(values, reading, stats)
                return True
        except (RuntimeError, NotImplementedError):
            # A dtype that torch can only store has no histogram.
            pass
        self._alone.append(_SampledTensor(reading, _NO_VALUES, stats, None))
        return True

    def _take_alone(self, values: torch.Tensor, reading: HistogramReading, stats: Stats) -> None:
        zeros = None
        if self._count_zeros:
            zeros = 1 - torch.count_nonzero(values).item() / values.numel()
        if reading.norms is not None:
            self._read_norms(row_norms(values), reading.norms)
        self._alone.append(_SampledTensor(reading, self._sample(values), stats, zeros))

    def _read_norms(self, lengths: torch.Tensor, reading: HistogramReading) -> None:
        """Read the norms of the samples of a batch, together with others if they are few."""
        kind = self._kind_of(lengths)
        if (
            kind is None
            or not kind.is_batched
            or not self._put_aside((kind, False), lengths, reading)
        ):
            self._measure_now(lengths, reading)

    def _take_summary(self, readings: Sequence[HistogramReading], found: RowStatistics) -> None:
        super()._take_summary(readings, found)
        zeros = found.zeros if self._count_zeros else None
        self._sampled.append(_SampledRows(readings, found.samples, found.rows, zeros))

    def _measure_rows(self, rows: torch.Tensor, readings: list[HistogramReading]) -> None:
        of_norms = [reading.norms for reading in readings if reading.norms is not None]
        if of_norms:
            self._sample_rows(row_norms(rows, first=1), of_norms)
        self._sample_rows(rows, readings)

    def _sample_rows(self, tensors: torch.Tensor, readings: list[HistogramReading]) -> None:
        rows, zeros = plain_numbers(tensors.reshape(len(readings), -1)), None
        if self._count_zeros:
            zeros = 1 - torch.count_nonzero(rows, dim=1).numpy() / rows.shape[1]
        if self._sample_n is not None and rows.shape[1] > self._sample_n:
            rows = rows.index_select(1, sample_positions(rows.shape[1], self._sample_n))
        samples = rows.to(torch.float64, copy=True).numpy()
        self._sampled.append(_SampledRows(readings, samples, measure_rows(tensors), zeros))

    def _sample(self, values: torch.Tensor) -> Numbers:
        positions: torch.Tensor | None = None
        count = values.numel()
        if self._sample_n is not None and count > self._sample_n:
            positions = sample_positions(count, self._sample_n)
        there = host_array(values)
        if there is None:
            if positions is not None:
                values = values.take(positions.to(values.device))
            there = plain_numbers(values).reshape(-1).to("cpu", torch.float64).numpy()
        elif positions is not None:
            there = there[positions.numpy()]
        # Always a copy: a numpy array keeps the memory of the tensor that it views.
        return there.astype(np.float64)


def _as_rows(alone: Iterable[_SampledTensor]) -> Iterator[_SampledRows]:
    """Tensors that were measured alone, those with samples of one length together."""
    by_length: dict[int, list[_SampledTensor]] = {}
    for one in alone:
        by_length.setdefault(len(one.sample), []).append(one)
    for group in by_length.values():
        readings, samples, stats, zeros = zip(*group, strict=True)
        known = None if None in zeros else np.array(zeros)
        yield _SampledRows(readings, np.stack(samples), Rows.of(stats), known)


def _portions(blocks: Iterable[_SampledRows]) -> Iterator[list[_SampledRows]]:
    """The blocks that are binned together, from blocks in the order of their lengths.

    Filled up to the longest, they fit in a core's cache; a larger block is alone. A few rows are
    binned together with longer ones: the calls of a portion take longer than a hundred rows.
    """
    portion: list[_SampledRows] = []
    rows = length = 0
    for block in blocks:
        added, width = block.samples.shape
        is_full = (rows + added) * width * block.samples.itemsize > _PORTION_BYTES
        if portion and (is_full or (width > length and rows >= _MANY_ROWS)):
            yield portion
            portion, rows = [], 0
        portion.append(block)
        rows, length = rows + added, width
    if portion:
        yield portion


def _measured(blocks: Sequence[_SampledRows], bins: int) -> MeasuredTensors:
    """The histograms of tensors whose samples have similar lengths."""
    samples, lengths = _padded([block.samples for block in blocks])
    stats = np.concatenate([block.rows.table() for block in blocks])
    factors = np.array([float(one.factor) for block in blocks for one in block.readings])
    has_factors = bool((factors != 1).any())
    if has_factors:
        samples = samples * factors[:, None]
        stats[:, 1:5] *= factors[:, None]
    with np.errstate(invalid="ignore"):
        zeros = np.count_nonzero(samples == 0, axis=1) / lengths
    exact: dict[int, Stats] = {}
    start = 0
    for block in blocks:
        if block.zeros is not None:
            zeros[start : start + len(block.zeros)] = block.zeros
        for index, one in block.rows.others.items():
            if one is not None and one.inf:
                low, high, mean, std = stats[start + index, 1:5].tolist()
                exact[start + index] = replace(one, min=low, max=high, mean=mean, std=std)
        start += len(block.readings)
    histograms = HistogramTable(stats, binned(samples, bins), exact)
    return MeasuredTensors(histograms, zeros, has_factors)


def _padded(blocks: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """Rows of several lengths in one matrix, filled up with NaN, and their lengths."""
    widths = [block.shape[1] for block in blocks]
    lengths = np.repeat(np.array(widths, np.float64), [len(block) for block in blocks])
    if min(widths) == max(widths):
        return np.concatenate(blocks), lengths
    rows = np.full((len(lengths), max(widths)), math.nan)
    start = 0
    for block in blocks:
        rows[start : start + len(block), : block.shape[1]] = block
        start += len(block)
    return rows, lengths


def _put_rows(blocks: Sequence[_SampledRows], table: MeasuredTensors) -> None:
    """Give each reading its row of the table."""
    readings = [reading for block in blocks for reading in block.readings]
    for row, reading in enumerate(readings):
        reading.table, reading.row = table, row
    for block in blocks:
        for index, stats in block.rows.others.items():
            if stats is None:
                block.readings[index].table = None
