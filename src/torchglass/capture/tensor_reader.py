"""The tensor reader: statistics and histograms of tensors as they pass by.

`tg.record`, `tg.inspect` and `tg.watch` read thousands of tensors in every step of the user's
program. Both readers answer "what are the values of this tensor now?" under the same rules:

- **No tensor is kept alive.** A reading refers to numbers only. Only
  `StatisticsReader(copy_bytes=…)` keeps copies, up to a number of bytes.
- **Each state of a tensor is read once.** The output of one module is the input of the next. A
  tensor is recognized by its id, by the memory it shows (ids are used again) and by its version
  counter, which every in-place write raises. Tensors of inference mode have no version and are
  always read.
- **Small tensors are measured together.** Calling torch for each would take longer than the
  computation. A copy goes into a row of a `TensorBatch`; a full batch is measured in a few calls,
  and `finish` measures the rest. Until then a reading has no statistics.
- **Whatever else is measured at once** by `measure`: large tensors, sparse and nested tensors,
  subclasses.
- **A device is not waited for.** Tensors on an accelerator are measured there, small ones
  together, and the results come over in one copy (`tensor/device_batches.py`). `send` starts it; a
  reading has its statistics once the copy was received. `finish` waits for it.
- **The user's program does not notice.** Samples are taken at fixed positions, so the user's
  random state does not change. Callers use `quietly()` if `is_overheard()`, so that no mode of the
  user's sees our reads.

| reader | in | used by | reads |
|---|---|---|---|
| `StatisticsReader` | this file | record, inspect | shape, statistics, gradient or not; copies |
| `HistogramReader` | `histogram_reader.py` | watch | statistics, histogram, zeros, norms |

    reader = StatisticsReader("full")
    reading = reader.read(tensor)
    reader.finish()
    reading.stats

The arithmetic is in two siblings: `tensor/moments.py` (range, mean, standard deviation) and
`tensor/histograms.py` (bins). To read a single tensor, such as the one in the explorer,
`measure(tensor)` is enough; on an accelerator it waits for the device.
"""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

import torch

from torchglass.capture.tensor.description import PLAIN_CLASSES, describe
from torchglass.capture.tensor.device_batches import (
    DeviceMeasurement,
    RowStatistics,
)
from torchglass.capture.tensor.device_reads import DeviceReads, is_remote
from torchglass.capture.tensor.memory_extent import view_of
from torchglass.capture.tensor.moments import (
    Rows,
    measure,
    measure_rows,
)
from torchglass.capture.torch_internals import data_address
from torchglass.records.calls import CallTensor, Level
from torchglass.records.model import Stats, TensorSpec

LARGEST_BYTES: Final = 1 << 16
"""The largest tensor that is worth a copy."""
_MOST_ROWS = 1 << 10
_BATCH_BYTES = 1 << 21
"""What is measured together: more would not fit in the caches."""
_MOST_BYTES = 1 << 24
"""The memory of all batches; a model with tensors of many shapes starts over with new ones then."""
_SAMPLE = 4096
"""How many values of a tensor the level "cheap" reads."""
_MOST_KINDS = 1 << 12
_STRIDED = torch.strided
_copy_memory = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)
"""Copies from the second address to the first: a third of the time of `Tensor.copy_`."""
_weak = weakref.ref
_BATCHED_DTYPES = {
    *(torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.bool),
    *(torch.float64, torch.int64, torch.int32, torch.int16, torch.complex64),
}
"""The dtypes that can be stacked and whose values fit into a float."""


class Reading:
    """The state of a tensor at one time."""

    __slots__ = ("is_pending", "requires_grad")

    def __init__(self, requires_grad: bool) -> None:
        self.requires_grad = requires_grad
        self.is_pending = False
        """Whether the statistics come later, when a batch is measured."""


AnyReading = TypeVar("AnyReading", bound=Reading)


class TensorKind:
    """What all dense tensors of one shape, dtype and device have in common."""

    __slots__ = ("alike", "can_wait", "dtype", "is_batched", "is_small", "shape", "spec")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        self.spec = describe(tensor)
        is_here = not (tensor.is_meta or is_remote(tensor))
        self.can_wait = is_here and tensor.dtype in _BATCHED_DTYPES and tensor.numel() > 0
        """Whether copies of them can be measured later, together with others."""
        self.is_small = self.spec.bytes <= LARGEST_BYTES
        self.is_batched = self.can_wait and self.is_small
        self.alike: list[StatisticsReading | None] = [None] * 4
        """Their readings without values, for each combination of requiring and having a
        gradient."""


class TensorBatch(Generic[AnyReading]):
    """Copies of tensors of one shape and dtype, as rows of a matrix that is reused.

    Allocating new memory would take longer than copying the values.
    """

    def __init__(self, like: torch.Tensor) -> None:
        self._row_bytes = like.nbytes
        self._most = max(1, min(_MOST_ROWS, _BATCH_BYTES // self._row_bytes))
        # A matrix made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            self._matrix = like.detach().new_empty((self._most, *like.shape))
        self._address = self._matrix.data_ptr()
        self._readings: list[AnyReading] = []

    @property
    def bytes(self) -> int:
        return self._matrix.nbytes

    @property
    def is_full(self) -> bool:
        """Whether it must be taken before the next `put`."""
        return len(self._readings) == self._most

    def put(self, address: int, reading: AnyReading) -> bool:
        """Copy the tensor at an address; returns whether the batch is full."""
        row = len(self._readings)
        _copy_memory(self._address + row * self._row_bytes, address, self._row_bytes)
        self._readings.append(reading)
        return row + 1 == self._most

    def put_all(self, tensors: Sequence[torch.Tensor], readings: Sequence[AnyReading]) -> int:
        """Copy as many tensors as there is room for; returns how many."""
        start = len(self._readings)
        count = min(self._most - start, len(tensors))
        with torch.no_grad():
            torch.stack(list(tensors[:count]), out=self._matrix[start : start + count])
        self._readings += readings[:count]
        return count

    def take(self) -> tuple[torch.Tensor, list[AnyReading]]:
        """The rows, valid until the next `put`, and their readings."""
        readings, self._readings = self._readings, []
        return self._matrix[: len(readings)], readings


class TensorReader(Generic[AnyReading]):
    """What both readers have in common: known tensors and batches of small ones."""

    def __init__(self, *, reads: DeviceReads | None = None, sample_n: int | None = 0) -> None:
        """`sample_n` values of a tensor on a device are read; None is all."""
        self.reads = reads or DeviceReads()
        self._remote = DeviceMeasurement(self.reads, self._take_summary, sample_n)
        self._known: dict[int, tuple[Any, Any, TensorKind | None, int, AnyReading]] = {}
        """By the id of a tensor: its storage, its place there, its kind, its version and its
        reading. Ids are used again."""
        self._kinds: dict[tuple[Any, ...], TensorKind] = {}
        self._batches: dict[tuple[TensorKind, bool], TensorBatch[AnyReading]] = {}
        self._batched_bytes = 0
        # The idle thread of a watcher may finish a step.
        self._lock = threading.RLock()

    def forget(self) -> None:
        """Read every tensor again: a backward may have given it a gradient."""
        self._known.clear()

    def _kind_of(self, tensor: torch.Tensor) -> TensorKind | None:
        """The kind of a tensor; None for one that is not dense."""
        if (
            type(tensor) not in PLAIN_CLASSES
            or tensor.layout is not _STRIDED
            or not tensor.is_contiguous()
        ):
            return None
        try:
            key = tensor.shape, tensor.dtype, tensor.is_cpu or tensor.device
        except RuntimeError:
            # A nested tensor has no shape.
            return None
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            kind = self._kinds[key] = TensorKind(tensor)
        return kind

    def _recall(self, tensor: torch.Tensor) -> AnyReading | None:
        """The reading of a tensor that has not changed."""
        known = self._known.get(id(tensor))
        if known is None:
            return None
        storage, place, kind, version, reading = known
        try:
            if kind is None:
                is_same = view_of(tensor) == place
            else:
                # Assigning to `tensor.data` changes any of these, and not the version.
                is_same = (
                    storage() is tensor.untyped_storage()
                    and tensor.storage_offset() == place
                    and tensor.shape == kind.shape
                    and tensor.dtype is kind.dtype
                )
            if is_same and tensor._version == version:
                return reading if tensor.requires_grad == reading.requires_grad else None
        except RuntimeError:
            # Inside vmap or grad a tensor owns no memory.
            return None
        return None

    def _remember(self, tensor: torch.Tensor, kind: TensorKind | None, reading: AnyReading) -> None:
        try:
            # A weak reference to the tensor would be enough, but torch refuses to swap a tensor
            # that has one.
            storage = None if kind is None else _weak(tensor.untyped_storage())
            place = view_of(tensor) if kind is None else tensor.storage_offset()
            self._known[id(tensor)] = storage, place, kind, tensor._version, reading
        except RuntimeError:
            # A tensor of inference mode has no version counter. Inside vmap or grad a tensor owns
            # no memory.
            self._known.pop(id(tensor), None)

    def _put_aside(
        self, key: tuple[TensorKind, bool], tensor: torch.Tensor, reading: AnyReading
    ) -> bool:
        """Measure a tensor later, together with others of its kind; False if it cannot wait."""
        address = address_of(tensor)
        if not address:
            return False
        reading.is_pending = True
        # A with-block takes twice as long.
        self._lock.acquire()
        try:
            batch = self._batches.get(key) or self._new_batch(key, tensor)
            if batch.put(address, reading):
                self._measure(batch)
        finally:
            self._lock.release()
        return True

    def _put_all_aside(
        self,
        kind: TensorKind,
        tensors: Sequence[torch.Tensor],
        readings: Sequence[AnyReading],
    ) -> None:
        """Measure tensors of one kind, which have memory, together."""
        for reading in readings:
            reading.is_pending = True
        with self._lock:
            done = 0
            while done < len(tensors):
                key = kind, False
                batch = self._batches.get(key) or self._new_batch(key, tensors[done])
                done += batch.put_all(tensors[done:], readings[done:])
                if batch.is_full:
                    self._measure(batch)

    def _new_batch(
        self, key: tuple[TensorKind, bool], like: torch.Tensor
    ) -> TensorBatch[AnyReading]:
        if self._batched_bytes > _MOST_BYTES:
            TensorReader.finish(self)
            self._batches.clear()
            self._batched_bytes = 0
        batch: TensorBatch[AnyReading] = TensorBatch(like)
        self._batches[key] = batch
        self._batched_bytes += batch.bytes
        return batch

    def send(self) -> None:
        """Measure all tensors that were put aside; the results of devices arrive later."""
        with self._lock:
            for batch in self._batches.values():
                self._measure(batch)
            self._remote.measure()
            self.reads.send()

    def finish(self) -> None:
        """Measure all tensors that were put aside, and wait for the results of devices."""
        self.send()
        self.reads.receive(wait=True)

    def _take_summary(self, readings: Sequence[AnyReading], found: RowStatistics) -> None:
        """What was measured on a device has arrived."""
        for reading in readings:
            reading.is_pending = False

    def _read_remote(self, tensors: Sequence[torch.Tensor], readings: Sequence[AnyReading]) -> None:
        """Measure tensors on their devices; the results arrive later."""
        is_read = self._remote.read(tensors, readings)
        for reading, is_coming in zip(readings, is_read, strict=True):
            reading.is_pending = is_coming

    def _measure(self, batch: TensorBatch[AnyReading]) -> None:
        rows, readings = batch.take()
        if readings:
            self._measure_rows(rows, readings)
            for reading in readings:
                reading.is_pending = False

    def _measure_rows(self, rows: torch.Tensor, readings: list[AnyReading]) -> None:
        """Measure stacked tensors, which may be overwritten."""
        raise NotImplementedError


def address_of(tensor: torch.Tensor) -> int:
    """Where the values of a dense tensor on the CPU are; 0 if they cannot be copied from there.

    FSDP frees storages between passes, and a freed one must not be read. The values of a negated
    view are not those in memory.
    """
    try:
        return 0 if tensor.is_neg() else data_address(tensor)
    except RuntimeError:
        # Inside vmap or grad a tensor exists only until the transform ends.
        return 0


class StatisticsReading(Reading):
    """The shape and statistics of a tensor, and a copy if one was wanted."""

    __slots__ = ("_row", "_rows", "_stats", "copy", "has_grad", "spec")
    _row: int

    def __init__(self, spec: TensorSpec, requires_grad: bool, has_grad: bool) -> None:
        # Without `super().__init__`, because a forward makes thousands of these.
        self.requires_grad = requires_grad
        self.is_pending = False
        self.spec = spec
        self.has_grad = has_grad
        self.copy: torch.Tensor | None = None
        self._stats: Stats | None = None
        self._rows: Rows | None = None

    @property
    def stats(self) -> Stats | None:
        """Its statistics. The record is created on first use: most are never read."""
        rows = self._rows
        if rows is not None:
            self._stats = rows.stats_of(self._row)
            self._rows = None
        return self._stats

    @stats.setter
    def stats(self, stats: Stats | None) -> None:
        self._stats = stats

    def record(self, place: str) -> CallTensor:
        return CallTensor(
            place=place,
            spec=self.spec,
            stats=self.stats,
            requires_grad=self.requires_grad,
            has_grad=self.has_grad,
        )


class StatisticsReader(TensorReader[StatisticsReading]):
    """Reads tensors at one level: "full", "cheap" (a sample of large ones) or "shapes"."""

    def __init__(self, level: Level, copy_bytes: int = 0) -> None:
        super().__init__()
        self._level = level
        self._copies = _TensorCopies(copy_bytes)

    @property
    def left_out(self) -> int:
        return self._copies.left_out

    def read(self, tensor: torch.Tensor) -> StatisticsReading:
        known = self._recall(tensor) if id(tensor) in self._known else None
        if known is None:
            kind = self._kind_of(tensor)
            known = self._new(tensor, kind)
            self._remember(tensor, kind, known)
        return known

    def read_shape(self, tensor: torch.Tensor) -> StatisticsReading:
        """The same at level "shapes" without copies: one object for all dense tensors of a kind."""
        kind = self._kind_of(tensor)
        if kind is None:
            return self._new(tensor, None)
        number = 2 * tensor.requires_grad + _has_grad(tensor)
        reading = kind.alike[number]
        if reading is None:
            reading = kind.alike[number] = self._new(tensor, kind)
        return reading

    def _new(self, tensor: torch.Tensor, kind: TensorKind | None) -> StatisticsReading:
        spec = describe(tensor) if kind is None else kind.spec
        try:
            reading = StatisticsReading(spec, tensor.requires_grad, _has_grad(tensor))
            if self._level == "full" and kind is not None and kind.is_batched:
                if not self._put_aside((kind, False), tensor, reading):
                    reading.stats = measure(tensor)
            elif self._level != "shapes":
                self._take_statistics(tensor, kind, reading)
            if self._copies.budget:
                self._copies.take(tensor, reading)
        except Exception:  # noqa: BLE001 - a tensor class is foreign code, and no reading may raise
            return StatisticsReading(spec, False, False)
        return reading

    def _take_statistics(
        self, tensor: torch.Tensor, kind: TensorKind | None, reading: StatisticsReading
    ) -> None:
        values = tensor
        if kind is not None:
            is_small = kind.is_small
            if self._level == "cheap" and kind.spec.elements > _SAMPLE:
                is_small = True
                values = tensor.detach().view(-1)[:: _sample_stride(kind.spec.elements)]
                if kind.can_wait:
                    values = values.contiguous()
            if is_small and kind.can_wait and self._put_aside((kind, False), values, reading):
                return
        if is_remote(tensor):
            self._read_remote([values], [reading])
        else:
            reading.stats = measure(values)

    def _take_summary(self, readings: Sequence[StatisticsReading], found: RowStatistics) -> None:
        super()._take_summary(readings, found)
        _put_rows_of(readings, found.rows)

    def _measure_rows(self, rows: torch.Tensor, readings: list[StatisticsReading]) -> None:
        _put_rows_of(readings, measure_rows(rows))


def _put_rows_of(readings: Sequence[StatisticsReading], rows: Rows) -> None:
    for row, reading in enumerate(readings):
        reading._rows, reading._row = rows, row


class _TensorCopies:
    """Copies of tensors within a budget of bytes; the oldest make room for new ones."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._kept: deque[tuple[StatisticsReading, int]] = deque()
        self._bytes = 0
        self.left_out = 0

    def take(self, tensor: torch.Tensor, reading: StatisticsReading) -> None:
        """Keep a copy of a tensor, if the budget has room for it."""
        size = tensor.numel() * tensor.element_size()
        if size > self.budget:
            self.left_out += 1
            return
        while self._bytes + size > self.budget:
            oldest, freed = self._kept.popleft()
            oldest.copy = None
            self._bytes -= freed
            self.left_out += 1
        reading.copy = tensor.detach().clone()
        self._kept.append((reading, size))
        self._bytes += size


def _has_grad(tensor: torch.Tensor) -> bool:
    # For any other tensor, torch warns that it never has one.
    can_have = not tensor.requires_grad or tensor.is_leaf or tensor.retains_grad
    return can_have and tensor.grad is not None


@lru_cache(maxsize=1 << 12)
def _sample_stride(elements: int) -> int:
    """The distance between the values of a sample, such that no dimension is left out."""
    stride = -(-elements // _SAMPLE)
    # If it shared a factor with a dimension, it would always read the same columns.
    while math.gcd(stride, elements) > 1:
        stride += 1
    return stride
