"""Range, mean and standard deviation of a tensor in one pass; distances between tensors.

>>> Moments.of(torch.tensor([1.0, 2.0, 3.0, float("nan")])).stats()
Stats(count=4, min=1.0, max=3.0, mean=2.0, std=1.0, nan=1, inf=0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch.nn.parameter import is_lazy

from torchglass.records.tensors import Stats

_CHUNK = 1 << 16
"""Elements that stay in a core's cache together with their differences from the mean."""
_DEVICE_CHUNK = 1 << 24
"""Elsewhere each chunk costs a wait for the device."""
_SMALLEST, _LARGEST = 1e-15, 1e15
"""Where the squares of float32 neither vanish nor overflow."""
_FAR = 10
"""How many times the squares around a mean that of the mean itself may be, and they are exact."""
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
"""The dtypes that `aminmax` knows."""
_WIDE = {torch.float64, torch.int64, torch.int32, torch.uint32, torch.uint64}
_DOUBLES = {torch.float64, torch.complex128}
_SMALLEST_DOUBLE, _LARGEST_DOUBLE = 1e-140, 1e140
"""Where the squares of float64 neither vanish nor overflow."""


class Moments:
    """What is known of the numbers added so far. A chunk far from zero is shifted by its own mean,
    so that a small spread around it is not lost; chunks are joined in double precision."""

    def __init__(self, exponent: int = 0) -> None:
        """All numbers are divided by two to the power of `exponent` while they are added up."""
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
        moments = cls(_exponent(values))
        for chunk in _chunks(values):
            moments._add(chunk)
        return moments

    def stats(self, *, repeats: int = 1) -> Stats:
        """The record, for a tensor that repeats these numbers so many times."""
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
        if chunk.is_complex():
            chunk = chunk.abs()
        if self._exponent:
            # In two steps, as a power of two may be too large where what comes of it is not.
            half = -self._exponent // 2
            chunk = chunk * 2.0**half * 2.0 ** (-self._exponent - half)
        wide = chunk.dtype in _WIDE
        if chunk.dtype not in _RANGED:
            chunk = chunk.to(torch.float64 if wide else torch.float32)
        low, high = _range(chunk)
        if not (math.isfinite(low) and math.isfinite(high)):
            chunk = self._set_aside(chunk)
            if chunk.numel() == 0:
                return
            low, high = _range(chunk)
        self._min, self._max = min(self._min, low), max(self._max, high)
        largest = max(-low, high)
        wide = wide or not (largest == 0 or _SMALLEST < largest < _LARGEST)
        self._join(chunk.to(torch.float64 if wide else torch.float32))

    def _set_aside(self, chunk: torch.Tensor) -> torch.Tensor:
        """The finite numbers of a chunk, the others counted."""
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
            # Rounded as the numbers are: else more would be taken off them than is put back.
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


def length(tensors: Iterable[torch.Tensor]) -> float:
    """The L2 norm of the numbers of dense tensors taken together, whatever their size."""
    lengths = []
    for tensor in (each for each in tensors if each.numel()):
        stats = Moments.of(tensor).stats()
        finite = stats.count - stats.nan - stats.inf
        if finite < stats.count:
            return math.nan if stats.nan else math.inf
        if finite:
            lengths += [stats.std * math.sqrt(finite - 1), stats.mean * math.sqrt(finite)]
    return math.hypot(*lengths)


def _exponent(values: torch.Tensor) -> int:
    """What brings numbers of double precision to where their squares can be added up."""
    if values.dtype not in _DOUBLES:
        return 0
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
    low, high = torch.aminmax(chunk)
    return float(low.item()), float(high.item())


def _chunks(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """The numbers in flat pieces and in any order; only a piece that is not dense is copied."""
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


Load = Callable[[], torch.Tensor]

_DISTANCES_CHUNK = 1 << 22
"""So many numbers are looked at together: two tensors that do not fit into memory twice."""


def distances(before: Mapping[str, Load], after: Mapping[str, Load]) -> dict[str, float]:
    """For each name that both have with one shape, the length of the difference over the old one.

    It is NaN where values are not finite on one side alone, and Inf where all old ones are zero.
    What has no values to compare, as a tensor on "meta" has none, is left out.
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
    """By how much values moved; the Infs of a mask, or a NaN, that both have did not."""
    same = (old == new) | (old.isnan() & new.isnan())
    return (new - old).masked_fill(same, 0)


def _distances_chunks(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The numbers as float64 on the CPU, some at a time."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    exact = torch.complex128 if tensor.is_complex() else torch.float64
    flat = tensor.detach().reshape(-1)
    return [part.to("cpu", exact) for part in torch.split(flat, _DISTANCES_CHUNK)]
