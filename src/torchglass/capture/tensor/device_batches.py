"""Statistics of tensors on accelerators, measured there and sent to the host together.

Small tensors of one size are copied into the rows of a matrix. All rows are measured by the same
few kernels, and no result decides on the host what runs next. Large tensors are measured at once,
in parts that need little memory.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from torchglass.capture.tensor.device_reads import (
    Array,
    DeviceReads,
    is_capturing,
    is_remote,
    on_stream,
    stream_of,
    wide_dtype,
)
from torchglass.capture.tensor.histograms import Numbers
from torchglass.capture.tensor.moments import Rows, numbers_of, plain_numbers
from torchglass.capture.torch_internals import (
    foreach_add,
    foreach_copy,
    is_functorch_wrapped_tensor,
)
from torchglass.capture.torch_modes import quietly
from torchglass.records.model import Stats

AnyKey = TypeVar("AnyKey")
"""The caller's key of a tensor."""

_LARGEST_BYTES: Final = 1 << 18
"""The largest tensor that is worth a copy: a dozen kernels take longer than such a copy."""
_MOST_ROWS: Final = 1 << 8
_BATCH_BYTES: Final = 1 << 22
_MOST_BYTES: Final = 1 << 26
"""The device memory of all batches between two steps."""
_PART: Final = 1 << 24
"""The elements of a large tensor that are measured at once."""
_UNREADABLE = (RuntimeError, NotImplementedError, TypeError)
"""What torch raises for a dtype that it can only store."""


class RowStatistics(NamedTuple):
    """The statistics of tensors that were measured together."""

    rows: Rows
    zeros: Numbers
    """The share of zeros in each."""
    samples: Numbers
    """A sample of each, in rows."""


class _Batch(Generic[AnyKey]):
    """Copies of tensors of one size and dtype, made on the stream of the program."""

    def __init__(self, like: torch.Tensor, stream: Any) -> None:
        self.stream = stream
        self.shape = like.shape
        self.norms: list[AnyKey] = []
        """The keys of the norms of the samples of each row."""
        self._count = max(1, min(_MOST_ROWS, _BATCH_BYTES // like.nbytes))
        # A matrix made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            self._matrix = like.new_empty((self._count, like.numel()))
            self._rows = self._matrix.unbind(0)
        self._keys: list[AnyKey] = []

    @property
    def bytes(self) -> int:
        return self._matrix.nbytes

    @property
    def is_full(self) -> bool:
        return len(self._keys) == self._count

    def row(self, tensor: torch.Tensor, key: AnyKey) -> torch.Tensor:
        """Where to copy a tensor."""
        row = self._rows[len(self._keys)].view(tensor.shape)
        self._keys.append(key)
        return row

    def take(self) -> tuple[torch.Tensor, list[AnyKey]]:
        """The rows, valid until the next copy, and their keys."""
        keys, self._keys = self._keys, []
        return self._matrix[: len(keys)], keys


class DeviceMeasurement(Generic[AnyKey]):
    """Measures tensors on their devices; `take` gets the statistics when they have arrived."""

    def __init__(
        self,
        reads: DeviceReads,
        take: Callable[[Sequence[AnyKey], RowStatistics], None],
        sample_n: int | None,
    ) -> None:
        self._reads = reads
        self._take = take
        self._sample_n = sample_n
        self._batches: dict[tuple[Any, ...], _Batch[AnyKey]] = {}
        self._lock = threading.RLock()

    def read(self, tensors: Sequence[torch.Tensor], keys: Sequence[AnyKey]) -> list[bool]:
        """Measure tensors as they are now; returns which of them have values."""
        if is_capturing():
            return [False] * len(keys)
        found = [_values_of(tensor) for tensor in tensors]
        to: list[torch.Tensor] = []
        copied: list[torch.Tensor] = []
        with self._lock:
            for values, key in zip(found, keys, strict=True):
                if values is None:
                    continue
                if _is_measured_alone(values):
                    self._measure_now(values, key)
                    continue
                batch = self._batch(values, has_norms=False)
                if batch.is_full:
                    _copy_all(to, copied)
                    self._measure(batch)
                to.append(batch.row(values, key))
                copied.append(values)
            _copy_all(to, copied)
        return [values is not None for values in found]

    def read_with_norms(self, tensor: torch.Tensor, key: AnyKey, norms: AnyKey) -> bool:
        """The same for one tensor, and for the norms of the samples of its batch."""
        values = None if is_capturing() else _values_of(tensor)
        if values is None:
            return False
        with self._lock:
            if _is_measured_alone(values):
                self._measure_now(values, key)
                with quietly():
                    self.read([_norms(values.unsqueeze(0))[0]], [norms])
                return True
            batch = self._batch(values, has_norms=True)
            if batch.is_full:
                self._measure(batch)
            batch.row(values, key).copy_(values)
            batch.norms.append(norms)
        return True

    def measure(self) -> None:
        """Measure all copies."""
        with self._lock:
            for batch in self._batches.values():
                self._measure(batch)
            if sum(batch.bytes for batch in self._batches.values()) > _MOST_BYTES:
                self._batches.clear()

    def _batch(self, values: torch.Tensor, *, has_norms: bool) -> _Batch[AnyKey]:
        stream = stream_of(values.device)
        size = values.shape if has_norms else values.numel()
        key = values.device, stream, values.dtype, size
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = _Batch(values, stream)
        return batch

    def _measure(self, batch: _Batch[AnyKey]) -> None:
        rows, keys = batch.take()
        norms, batch.norms = batch.norms, []
        if keys:
            with quietly(), on_stream(batch.stream):
                is_scaled = _needs_scale(rows)
                self._summarize(rows, keys, is_scaled=is_scaled)
                if norms:
                    lengths = _norms(rows.view(len(keys), *batch.shape))
                    self._summarize(lengths, norms, is_scaled=is_scaled)

    def _summarize(self, rows: torch.Tensor, keys: list[AnyKey], *, is_scaled: bool) -> None:
        positions = self._positions(rows[0])
        try:
            table = summarize_rows(
                rows, positions, with_sample=self._wants_sample, is_scaled=is_scaled
            )
        except _UNREADABLE:
            return
        size = rows.shape[1]

        def take(array: Array) -> None:
            self._take(keys, _statistics(size, is_scaled, array))

        self._reads.later(table, take)

    def _measure_now(self, values: torch.Tensor, key: AnyKey) -> None:
        with quietly():
            count = values.numel()
            for dim in range(values.dim() - 1, -1, -1):
                if values.stride(dim) == 0:
                    values = values.select(dim, 0)
            flat = values.reshape(-1)
            repeats, parts = count // len(flat), torch.split(flat, _PART)
            is_scaled = _needs_scale(flat)
            try:
                heads = torch.cat(
                    [
                        summarize_rows(part[None], None, with_sample=False, is_scaled=is_scaled)
                        for part in parts
                    ]
                )
                sample = self._sample(flat)
            except _UNREADABLE:
                return
            sizes = [len(part) for part in parts]
            arrived: list[Array] = []

            def take_both(sample_of_host: Array) -> None:
                found = [
                    _statistics(size, is_scaled, row[None])
                    for size, row in zip(sizes, arrived[0], strict=True)
                ]
                stats = _joined([one for part in found for one in part.rows.stats()], repeats)
                zeros = sum(one.zeros[0] * size for one, size in zip(found, sizes, strict=True))
                rows = sample_of_host.astype(np.float64).reshape(1, -1)
                one = Rows.of([stats])
                self._take([key], RowStatistics(one, np.array([zeros / len(flat)]), rows))

            self._reads.later(heads, arrived.append)
            self._reads.later(sample, take_both)

    @property
    def _wants_sample(self) -> bool:
        return self._sample_n is None or self._sample_n > 0

    def _sample(self, flat: torch.Tensor) -> torch.Tensor:
        positions = self._positions(flat)
        if positions is not None:
            flat = flat.index_select(0, positions)
        elif not self._wants_sample:
            flat = flat[:0]
        return plain_numbers(flat).to(wide_dtype(flat.device))

    def _positions(self, row: torch.Tensor) -> torch.Tensor | None:
        if not self._sample_n or len(row) <= self._sample_n:
            return None
        return _device_positions(len(row), self._sample_n, row.device, stream_of(row.device))


def _values_of(tensor: torch.Tensor) -> torch.Tensor | None:
    return None if is_functorch_wrapped_tensor(tensor) else numbers_of(tensor)


def _needs_scale(values: torch.Tensor) -> bool:
    """Whether squares could overflow or underflow in the widest dtype of the device."""
    dtype = values.dtype.to_real() if values.is_complex() else values.dtype
    return dtype == wide_dtype(values.device)


def _is_measured_alone(values: torch.Tensor) -> bool:
    return values.nbytes > _LARGEST_BYTES or 0 in values.stride()


def _norms(tensors: torch.Tensor) -> torch.Tensor:
    """The norm of each sample of each of some stacked batches."""
    values = plain_numbers(tensors)
    values = values.flatten(2) if values.dim() > 2 else values.unsqueeze(-1)
    values = values if values.is_floating_point() else values.float()
    wide = wide_dtype(values.device)
    if values.dtype != wide:
        norms: torch.Tensor = torch.linalg.vector_norm(values, dim=2, dtype=wide)
        return norms
    # Squares could overflow or underflow.
    peaks = values.abs().amax(2, keepdim=True).nan_to_num(1.0, 1.0)
    peaks = peaks.masked_fill(peaks == 0, 1)
    scaled: torch.Tensor = torch.linalg.vector_norm(values / peaks, dim=2) * peaks.squeeze(2)
    return scaled


def _copy_all(to: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Copy tensors in as few kernels as there are devices, and empty both lists."""
    if len(to) == 1:
        to[0].copy_(values[0])
    elif to:
        foreach_copy(to, values)
    to.clear()
    values.clear()


def copies_of(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Copies of tensors, in few kernels if they are on a device."""
    if tensors and all(is_remote(one) and one.is_floating_point() for one in tensors):
        return foreach_add([one.detach() for one in tensors], 0)
    return [one.detach().clone() for one in tensors]


@lru_cache(maxsize=1 << 12)
def sample_positions(count: int, wanted: int) -> torch.Tensor:
    """The positions of a sample: a random one in each of equal intervals, fixed for a size."""
    within = np.random.default_rng(count).random(wanted)
    places = ((np.arange(wanted) + within) * (count / wanted)).astype(np.int64)
    return torch.from_numpy(np.minimum(places, count - 1))


@lru_cache(maxsize=1 << 12)
def _device_positions(
    count: int, wanted: int, device: torch.device, stream: object
) -> torch.Tensor:
    """The same on a device, copied there on the stream that uses them."""
    positions = sample_positions(count, wanted)
    try:
        return positions.pin_memory().to(device, non_blocking=True)
    except (RuntimeError, NotImplementedError):
        return positions.to(device)


_NARROW = {
    *(torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16),
    *(torch.bool, torch.uint16),
}
_SMALL: Final = 1 << 20
"""Up to this many elements, a copy in the widest dtype is cheap."""
_HEAD: Final = 10
"""The columns of a summary in front of the sample."""


def summarize_rows(
    rows: torch.Tensor,
    positions: torch.Tensor | None,
    *,
    with_sample: bool,
    is_scaled: bool = False,
) -> torch.Tensor:
    """Measure each row of a matrix on its device, without asking the host.

    The result has `_HEAD` numbers per row, and then a sample: the values at `positions`, or all.
    A sum of squares around the mean would lose a small spread around a large mean if the mean were
    not rounded like the values: it is subtracted first. With `is_scaled`, each row is divided by a
    power of two, so that squares neither overflow nor underflow.
    """
    wide = wide_dtype(rows.device)
    values = rows.abs() if rows.is_complex() else rows
    is_small = values.numel() <= _SMALL
    values = values.to(wide if is_small or values.dtype not in _NARROW else torch.float32)
    is_bad = (values - values) != 0
    clean = values.masked_fill(is_bad, 0)
    bad = is_bad.sum(1, dtype=wide)
    exponent = _exponent(clean) if is_scaled else bad
    scaled = _scaled(clean, exponent) if is_scaled else clean
    finite = torch.rsub(bad, values.shape[1]).clamp_min_(1)
    center = (scaled.sum(1, dtype=wide) / finite).to(values.dtype)
    filled = torch.where(is_bad, center.unsqueeze(1), scaled)
    low, high = torch.aminmax(filled, dim=1)
    # Halves, because the difference of two float32 values may overflow.
    rest = torch.sub(center.mul(0.5).unsqueeze(1), filled, alpha=0.5)
    columns = [
        low,
        high,
        exponent,
        center,
        rest.sum(1, dtype=wide),
        torch.linalg.vector_norm(rest, dim=1, dtype=wide),
        bad,
        (values != values).sum(1, dtype=wide),
        (values == -math.inf).sum(1, dtype=wide),
        (values == 0).sum(1, dtype=wide),
    ]
    parts = [column.to(wide).unsqueeze(1) for column in columns]
    if with_sample:
        sample = values if positions is None else values.index_select(1, positions)
        parts.append(sample.to(wide))
    return torch.cat(parts, dim=1)


def _exponent(clean: torch.Tensor) -> torch.Tensor:
    """The power of two that scales each row to at most 1."""
    return torch.frexp(clean.abs().amax(1)).exponent.to(clean.dtype)


def _scaled(values: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    # In two steps, because the power of two may overflow where the product does not.
    half = (exponent * -0.5).round()
    for power in (half, -exponent - half):
        values = values * torch.exp2(power).unsqueeze(1)
    return values


def _statistics(size: int, is_scaled: bool, array: Array) -> RowStatistics:
    """The statistics of rows of `size` values, from what `summarize_rows` computed."""
    table: npt.NDArray[np.float64] = array.astype(np.float64)
    low, high, exponent, center, offset, norm, bad, nan, negative, zero = table[:, :_HEAD].T
    with np.errstate(all="ignore"):
        finite = size - bad
        scale = exponent.astype(np.int64) if is_scaled else np.int64(0)
        mean = center - 2 * offset / finite
        length = 2 * np.sqrt(np.maximum(norm * norm - offset * offset / finite, 0))
        std = length / np.sqrt(np.maximum(finite - 1, 1))
        numbers = (np.ldexp(one, scale) for one in (low, high, mean, std))
        columns = [np.where(finite > 0, one, np.nan) for one in numbers]
    others: dict[int, Stats | None] = {
        index: Stats(
            count=size,
            min=float(columns[0][index]),
            max=float(columns[1][index]),
            mean=float(columns[2][index]),
            std=float(columns[3][index]),
            nan=int(nan[index]),
            inf=int(bad[index] - nan[index]),
            negative_inf=int(negative[index]),
        )
        for index in np.flatnonzero(bad).tolist()
    }
    rows = Rows(size, columns[0], columns[1], columns[2], columns[3], others)
    return RowStatistics(rows, zero / size, table[:, _HEAD:])


def _joined(measured: Iterable[Stats | None], repeats: int) -> Stats:
    """The statistics of a tensor that consists of these parts, repeated this many times."""
    parts = [part for part in measured if part is not None]
    finite = [part.count - part.nan - part.inf for part in parts]
    total = sum(finite)
    there = [(part, count) for part, count in zip(parts, finite, strict=True) if count]
    mean = sum(part.mean * (count / total) for part, count in there) if there else math.nan
    lengths = [part.std * math.sqrt(count - 1) for part, count in there]
    lengths += [(part.mean - mean) * math.sqrt(count) for part, count in there]
    std = math.hypot(*lengths) * math.sqrt(repeats / max(total * repeats - 1, 1))
    return Stats(
        count=sum(part.count for part in parts) * repeats,
        min=min((part.min for part, _ in there), default=math.nan),
        max=max((part.max for part, _ in there), default=math.nan),
        mean=mean,
        std=std if there else math.nan,
        nan=sum(part.nan for part in parts) * repeats,
        inf=sum(part.inf for part in parts) * repeats,
        negative_inf=sum(part.negative_inf for part in parts) * repeats,
    )
