"""Statistics of tensors: of one, of many small ones at once, and distances between tensors.

>>> measure(torch.tensor([1.0, 2.0, 3.0, float("nan")]))
Stats(count=4, min=1.0, max=3.0, mean=2.0, std=1.0, nan=1, inf=0)
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.parameter import is_lazy

from torchglass.capture.tensor.description import COMPRESSED_INDICES, Load, inner_tensors
from torchglass.capture.torch_internals import DisableTorchFunction, FakeTensor, data_address
from torchglass.capture.torch_modes import quietly
from torchglass.records.model import Stats
from torchglass.records.step_points import FIELDS, point_values

_CHUNK = 1 << 17
"""Elements that fit in a core's cache together with their differences from the mean."""
_DEVICE_CHUNK = 1 << 24
"""On other devices each chunk waits for the device."""
_SMALLEST, _LARGEST = 1e-15, 1e15
"""Where the squares of float32 neither underflow nor overflow."""
_FAR = 10
"""Squares around the mean are exact up to this ratio to the square of the mean."""
_RANGED = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
}
"""The dtypes that `aminmax` supports."""
_WIDE = {torch.float64, torch.int64, torch.int32, torch.uint32, torch.uint64}
_DOUBLES = {torch.float64, torch.complex128}
_SMALLEST_DOUBLE, _LARGEST_DOUBLE = 1e-140, 1e140
"""Where the squares of float64 neither underflow nor overflow."""
SAFE_LENGTHS = {
    torch.float32: (_SMALLEST, _LARGEST),
    torch.float64: (_SMALLEST_DOUBLE, _LARGEST_DOUBLE),
}
"""Norms in between are exact: no relevant square underflowed or overflowed."""
_NARROW = {torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.bool}

Column = npt.NDArray[np.float64]


def measure(tensor: torch.Tensor) -> Stats | None:
    """The statistics of a tensor; None if it has no values (empty, meta, fake, …).

    A complex tensor is measured by its magnitudes, a sparse tensor by its stored values, a DTensor
    by its local shard. `std` is the sample standard deviation, 0 for a single value.
    """
    try:
        # Hidden from subclasses and tracing modes.
        with DisableTorchFunction():
            values = numbers_of(tensor)
            return None if values is None else _measured(values)
    except Exception:  # noqa: BLE001 - what cannot be measured must not stop the run it is part of
        return None


def measure_dense(values: torch.Tensor) -> Stats:
    """The same for a contiguous tensor in this process that has values: less is asked first."""
    with DisableTorchFunction():
        return Moments.of(values.detach()).stats()


def numbers_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The dense tensor with the values of another, copied only if they are negated."""
    if isinstance(tensor, FakeTensor) or tensor.is_meta:
        return None
    if tensor.is_nested:
        return numbers_of(tensor.values())
    if inner := inner_tensors(tensor):
        # Its own operations could be collectives, for which the other ranks would be missing.
        return numbers_of(inner[0]) if len(inner) == 1 else None
    if tensor.layout is torch.sparse_coo:
        return numbers_of(tensor._values())
    if tensor.layout in COMPRESSED_INDICES:
        return numbers_of(tensor.values())
    if tensor.numel() == 0 or tensor.layout is not torch.strided:
        return None
    if tensor.is_quantized:
        return tensor.detach().dequantize()
    # A storage that FSDP has freed between passes must not be read.
    return tensor.detach().resolve_neg() if tensor.untyped_storage().nbytes() else None


def _measured(values: torch.Tensor) -> Stats | None:
    if values.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    count = values.numel()
    for dim in range(values.dim() - 1, -1, -1):
        if values.stride(dim) == 0:
            values = values.select(dim, 0)
    return Moments.of(values).stats(repeats=count // values.numel())


class Moments:
    """The moments of the values added so far.

    A chunk far from zero is shifted by its own mean, so that a small spread around it is not lost;
    chunks are joined in double precision.
    """

    def __init__(self, exponent: int = 0) -> None:
        """All values are divided by `2**exponent` while they are added up."""
        self._exponent = exponent
        self._finite = 0
        self._mean = 0.0
        self._squares = 0.0
        self._min = math.inf
        self._max = -math.inf
        self._nan = 0
        self._inf = 0
        self._negative_inf = 0

    @classmethod
    def of(cls, values: torch.Tensor) -> Moments:
        """The moments of a dense tensor that has no gradient."""
        moments = cls(_exponent(values) if values.dtype in _DOUBLES else 0)
        if values.numel() <= _CHUNK and values.is_contiguous():
            moments._add(values.view(-1))
        else:
            for chunk in _chunks(values):
                moments._add(chunk)
        return moments

    def stats(self, *, repeats: int = 1) -> Stats:
        """The record, for a tensor that repeats these values `repeats` times."""
        finite = self._finite * repeats
        spread = self._squares * repeats / max(finite - 1, 1)
        numbers = self._min, self._max, self._mean, math.sqrt(max(spread, 0.0))
        low, high, mean, std = (
            _times_power(number, self._exponent) if finite else math.nan for number in numbers
        )
        return Stats(
            count=finite + (self._nan + self._inf) * repeats,
            min=low,
            max=high,
            mean=mean,
            std=std,
            nan=self._nan * repeats,
            inf=self._inf * repeats,
            negative_inf=self._negative_inf * repeats,
        )

    def _add(self, chunk: torch.Tensor) -> None:
        wide = False
        if chunk.dtype is not torch.float32:
            chunk = self._with_range(chunk)
            wide = chunk.dtype in _WIDE
        low, high = _range(chunk)
        if not (math.isfinite(low) and math.isfinite(high)):
            chunk = self._set_aside(chunk)
            if chunk.numel() == 0:
                return
            low, high = _range(chunk)
        self._min, self._max = min(self._min, low), max(self._max, high)
        largest = max(-low, high)
        if wide or not (largest == 0 or _SMALLEST < largest < _LARGEST):
            chunk = chunk.to(torch.float64)
        self._join(chunk)

    def _with_range(self, chunk: torch.Tensor) -> torch.Tensor:
        """The values of a chunk, scaled, in a dtype that has a range."""
        chunk = plain_numbers(chunk)
        if self._exponent:
            # In two steps, because the power of two may overflow where the product does not.
            half = -self._exponent // 2
            chunk = chunk * 2.0**half * 2.0 ** (-self._exponent - half)
        if chunk.dtype in _RANGED and chunk.dtype in _WIDE:
            return chunk
        return chunk.to(torch.float64 if chunk.dtype in _WIDE else torch.float32)

    def _set_aside(self, chunk: torch.Tensor) -> torch.Tensor:
        """The finite values of a chunk; the others are counted."""
        finite = chunk[torch.isfinite(chunk)]
        nan = int(torch.isnan(chunk).sum().item())
        self._nan += nan
        inf = chunk.numel() - finite.numel() - nan
        self._inf += inf
        if inf:
            self._negative_inf += int(torch.isneginf(chunk).sum().item())
        return finite

    def _join(self, chunk: torch.Tensor) -> None:
        count = chunk.numel()
        mean = chunk.sum().item() / count
        squares = torch.dot(chunk, chunk).item() - mean * mean * count
        if squares * _FAR < mean * mean * count:
            # Rounded like the values: otherwise more would be subtracted than is added back.
            mean = chunk.new_tensor(mean).item()
            rest = chunk - mean
            offset = rest.sum().item() / count
            squares = torch.dot(rest, rest).item() - offset * offset * count
            mean += offset
        distance = mean - self._mean
        total = self._finite + count
        self._squares += squares + distance * distance * self._finite * count / total
        self._mean += distance * count / total
        self._finite = total


def _exponent(values: torch.Tensor) -> int:
    """The scale at which the squares of float64 values neither underflow nor overflow."""
    largest = max((_largest(chunk) for chunk in _chunks(values)), default=0.0)
    if not largest or _SMALLEST_DOUBLE < largest < _LARGEST_DOUBLE:
        return 0
    return math.frexp(largest)[1]


def _largest(chunk: torch.Tensor) -> float:
    magnitudes = chunk.abs()
    finite = magnitudes[torch.isfinite(magnitudes)]
    return float(finite.max().item()) if finite.numel() else 0.0


def _times_power(number: float, exponent: int) -> float:
    try:
        return math.ldexp(number, exponent)
    except OverflowError:
        return math.copysign(math.inf, number)


def _range(chunk: torch.Tensor) -> tuple[float, float]:
    values = host_array(chunk)
    if values is not None:
        # Half the time of `aminmax`.
        return float(np.minimum.reduce(values)), float(np.maximum.reduce(values))
    low, high = torch.aminmax(chunk)
    return float(low.item()), float(high.item())


_memory = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)
_READ_ONLY = 0x100


def host_array(tensor: torch.Tensor) -> npt.NDArray[np.float32] | None:
    """The float32 values of a dense tensor in this process, flat; None for any other tensor.

    Valid while the tensor is alive. `Tensor.numpy` would keep its storage from being resized.
    """
    if tensor.dtype is not torch.float32 or not tensor.is_cpu or not tensor.is_contiguous():
        return None
    try:
        address = 0 if tensor.is_neg() else data_address(tensor)
    except RuntimeError:
        # Inside vmap or grad a tensor owns no memory.
        return None
    if not address:
        return None
    return np.frombuffer(_memory(address, 4 * tensor.numel(), _READ_ONLY), np.float32)


def _chunks(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """The values in flat pieces, in any order; only a piece that is not dense is copied."""
    size = _CHUNK if values.device.type == "cpu" else _DEVICE_CHUNK
    if not values.is_contiguous():
        values = values.permute(sorted(range(values.dim()), key=values.stride, reverse=True))
    waiting = [values]
    while waiting:
        part = waiting.pop()
        if part.numel() <= size:
            yield part.reshape(-1)
        elif part.is_contiguous():
            yield from torch.split(part.view(-1), size)
        elif part.shape[0] == 1:
            waiting.append(part[0])
        else:
            waiting += torch.split(part, max(1, size // part[0].numel()))


class Rows(NamedTuple):
    """The statistics of tensors of one shape and dtype, as columns."""

    size: int
    """The number of values of each tensor."""
    lows: Column
    highs: Column
    means: Column
    deviations: Column
    others: dict[int, Stats | None]
    """The exact statistics, by index, where the columns are not exact."""

    @classmethod
    def of(cls, stats: Sequence[Stats | None]) -> Rows:
        """The same for tensors of any shape, whose statistics are there already."""
        nothing = np.full(len(stats), math.nan)
        return cls(0, nothing, nothing, nothing, nothing, dict(enumerate(stats)))

    def stats_of(self, index: int) -> Stats | None:
        """The statistics of one tensor; None for one that cannot be measured."""
        if index in self.others:
            return self.others[index]
        return Stats(
            count=self.size,
            min=float(self.lows[index]),
            max=float(self.highs[index]),
            mean=float(self.means[index]),
            std=float(self.deviations[index]),
        )

    def stats(self) -> list[Stats | None]:
        """The statistics of all tensors."""
        columns = (self.lows, self.highs, self.means, self.deviations)
        found: list[Stats | None] = [
            Stats(count=self.size, min=low, max=high, mean=mean, std=std)
            for low, high, mean, std in zip(*(one.tolist() for one in columns), strict=True)
        ]
        for index, stats in self.others.items():
            found[index] = stats
        return found

    def table(self) -> Column:
        """A row of numbers per tensor, with the columns of `FIELDS`."""
        rows = np.zeros((len(self.lows), len(FIELDS["stats"])))
        columns = (self.lows, self.highs, self.means, self.deviations)
        rows[:, 0] = self.size
        rows[:, 1 : 1 + len(columns)] = np.stack(columns, axis=1)
        for index, stats in self.others.items():
            if stats is not None:
                rows[index] = point_values(stats)
        return rows


def measure_rows(tensors: torch.Tensor) -> Rows:
    """The result of `measure` for each of some stacked tensors, which may be overwritten."""
    with quietly():
        rows = tensors.reshape(len(tensors), -1)
        try:
            rows = plain_numbers(rows).to(torch.float32 if rows.dtype in _NARROW else torch.float64)
            return _rows_measured(rows)
        except Exception:  # noqa: BLE001 - statistics never stop a forward
            return Rows.of([measure(row) for row in tensors])


def _rows_measured(rows: torch.Tensor) -> Rows:
    count = rows.shape[1]
    lows, highs = _column(rows.amin(1)), _column(rows.amax(1))
    if (lows == highs).all() and np.isfinite(lows).all():
        # Such as gradients that are all zero.
        return Rows(count, lows, highs, lows, np.zeros(len(lows)), {})
    largest = np.maximum(-lows, highs)
    is_exact = ((largest > _SMALLEST) & (largest < _LARGEST)) | ((lows == 0) & (highs == 0))
    is_finite = np.isfinite(largest)
    is_far = is_finite & ~is_exact
    far = rows[torch.from_numpy(is_far)].double() if is_far.any() else None
    others = {index: measure(rows[index]) for index in np.flatnonzero(~is_finite).tolist()}
    # Rows that are not finite are handled elsewhere; their results here are not used.
    with np.errstate(invalid="ignore", over="ignore"):
        means, deviations = _spread(rows)
        if far is not None:
            means[is_far], deviations[is_far] = _scaled_spread(far, largest[is_far])
    return Rows(
        size=count,
        lows=lows,
        highs=highs,
        means=means,
        deviations=deviations,
        others=others,
    )


def _spread(rows: torch.Tensor) -> tuple[Column, Column]:
    """The mean and the standard deviation of each row."""
    count = rows.shape[1]
    means, squares = _moments(rows)
    if (squares * _FAR < means * means * count).any():
        # Shifted by its mean, a small spread around a large mean is not lost. The mean is rounded
        # like the values: otherwise more would be subtracted than is added back.
        shifts = torch.from_numpy(means).to(rows.dtype)
        offsets, squares = _moments(rows.sub_(shifts.unsqueeze(1)))
        means = _column(shifts) + offsets
    return means, np.sqrt(squares.clip(min=0) / max(count - 1, 1))


def _scaled_spread(rows: torch.Tensor, largest: Column) -> tuple[Column, Column]:
    """The same for float64 rows whose squares underflow or overflow: each row is scaled first."""
    exponents = np.frexp(largest)[1]
    # In two steps, because the power of two may overflow where the product does not.
    half = -exponents // 2
    for power in (half, -exponents - half):
        rows *= torch.from_numpy(np.ldexp(1.0, power)).unsqueeze(1)
    means, deviations = _spread(rows)
    return np.ldexp(means, exponents), np.ldexp(deviations, exponents)


def _moments(rows: torch.Tensor) -> tuple[Column, Column]:
    count = rows.shape[1]
    means = _column(rows.sum(1)) / count
    norms = _column(torch.linalg.vector_norm(rows, dim=1))
    return means, norms * norms - means * means * count


def _column(values: torch.Tensor) -> Column:
    """One value per row: numpy is much faster than torch at these."""
    column: Column = values.numpy().astype(np.float64)
    return column


def plain_numbers(values: torch.Tensor) -> torch.Tensor:
    """The values that are measured: the magnitudes of complex ones."""
    return values.abs() if values.is_complex() else values


def row_norms(values: torch.Tensor, first: int = 0) -> torch.Tensor:
    """The norm of each sample of a batch; dimension `first` is the batch."""
    values = (
        plain_numbers(values).flatten(first + 1) if values.dim() > first + 1 else values[..., None]
    )
    if not values.is_floating_point():
        values = values.float()
    wide = torch.float64 if values.dtype is torch.float64 else torch.float32
    lengths = _lengths(values, wide)
    smallest, largest = SAFE_LENGTHS[wide]
    low, high = _range(lengths)
    if smallest < low and high < largest:
        return lengths
    # On the CPU the squares of float64 take forty times as long as those of float32.
    is_far = ~((lengths > smallest) & (lengths < largest))
    # Zeros are exact, too.
    is_far &= (values.amin(first + 1) != 0) | (values.amax(first + 1) != 0)
    if not is_far.any():
        return lengths
    rows, is_far = values[is_far].cpu().double(), is_far.cpu()
    peaks = rows.abs().amax(dim=-1, keepdim=True)
    peaks[~((peaks > 0) & torch.isfinite(peaks))] = 1
    lengths = lengths.cpu().double()
    lengths[is_far] = (torch.linalg.vector_norm(rows / peaks, dim=-1) * peaks[:, 0]).squeeze()
    return lengths


_LONGEST_SUM = 1 << 12
"""How many squares are added to one number before rounding shows."""


def _lengths(values: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """The norms along the last dimension; long ones are made of the norms of their parts."""
    norm = torch.linalg.vector_norm
    count = values.shape[-1]
    if count <= _LONGEST_SUM:
        return norm(values, dim=-1, dtype=wide)  # type: ignore[no-any-return]
    rest = count % _LONGEST_SUM
    whole = values[..., rest:].reshape(*values.shape[:-1], -1, _LONGEST_SUM)
    parts = norm(whole, dim=-1, dtype=wide)
    if rest:
        parts = torch.cat([parts, norm(values[..., :rest], dim=-1, keepdim=True, dtype=wide)], -1)
    return norm(parts, dim=-1)  # type: ignore[no-any-return]


def length(tensors: Iterable[torch.Tensor]) -> float:
    """The L2 norm of the values of dense tensors together, for any magnitude."""
    lengths = []
    for tensor in (each for each in tensors if each.numel()):
        stats = Moments.of(tensor).stats()
        finite = stats.count - stats.nan - stats.inf
        if finite < stats.count:
            return math.nan if stats.nan else math.inf
        if finite:
            lengths += [stats.std * math.sqrt(finite - 1), stats.mean * math.sqrt(finite)]
    return math.hypot(*lengths)


_DISTANCES_CHUNK = 1 << 22
"""Values that are compared at once: two tensors may not fit into memory twice."""


def distances(before: Mapping[str, Load], after: Mapping[str, Load]) -> dict[str, float]:
    """For each name in both with the same shape: the norm of the change over the old norm.

    It is NaN if values are not finite on one side only, and Inf if all old values are zero.
    Tensors without values, such as those on "meta", are left out.
    """
    found = {}
    for name in before.keys() & after.keys():
        distance = _distance(before[name](), after[name]())
        if distance is not None:
            found[name] = distance
    return found


@torch.no_grad()
def _distance(before: torch.Tensor, after: torch.Tensor) -> float | None:
    if before is after:
        return 0.0
    if any(is_lazy(each) or each.is_meta for each in (before, after)):
        return None
    if before.shape != after.shape:
        return None
    pairs = list(zip(_distances_chunks(before), _distances_chunks(after), strict=True))
    moved = length(_difference(old, new) for old, new in pairs)
    if not moved:
        return 0.0
    if not math.isfinite(moved):
        return math.nan
    before_length = length(old.masked_fill(~torch.isfinite(old), 0) for old, _ in pairs)
    return moved / before_length if before_length else math.inf


def _difference(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """How much values changed; NaN and Inf that both sides have did not change."""
    same = (old == new) | (old.isnan() & new.isnan())
    return (new - old).masked_fill(same, 0)


def _distances_chunks(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The values as float64 on the CPU, in parts."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    exact = torch.complex128 if tensor.is_complex() else torch.float64
    flat = tensor.detach().reshape(-1)
    return [part.to("cpu", exact) for part in torch.split(flat, _DISTANCES_CHUNK)]
