"""Finds the values of one execution that another one computes, too, up to rounding and layout.

Two values match if one is the other in the same order of elements, or after a permutation of its
dimensions, and they differ by less than rounding explains. Norms and a sample of elements leave
few candidates; those are compared element by element.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from torchglass.records.comparison import ValueId
from torchglass.whatif.execution import Execution

_SAMPLE = 64
_HUGE = 1e30
"""Larger values are masks, such as the lowest float; they count as infinite."""
_MASKED = -5e3
"""Lower values mask a position in a softmax: -10000 and -inf mean the same."""
_LARGEST = 0.3
"""From this distance on, two values are never the same, however large the noise is."""
_USUAL = 3.0
"""The tolerance of the next value, as a multiple of the usual distance of earlier ones."""
_PART = 1 << 16
"""The elements of a large weight that are compared here; `tensor_changes` compares all."""
_MOST = 4
"""Candidates that are compared element by element."""
_MARGINS = 1.5, 4.0
"""The smallest and largest tolerance, as multiples of the measured noise."""
_ENOUGH = 8
"""Values that must match before their distances set the tolerance of the next."""
_SMALL = 60.0
"""In a tensor of few elements the noise of one run may be small by chance."""
_MOST_PERMUTATIONS = 24


@dataclass(slots=True)
class _Fingerprint:
    norm: float
    sample: torch.Tensor
    is_plain: bool
    """Whether all values are finite and none is a mask."""


@dataclass(kw_only=True)
class Matches:
    """For each value of `b`, the values of `a` that are the same, best first."""

    of: dict[ValueId, list[ValueId]] = field(default_factory=dict)
    distance: dict[tuple[ValueId, ValueId], float] = field(default_factory=dict)
    """By value of `b` and `a`: the norm of the difference, relative to the norm of the value."""

    def add(self, b: ValueId, a: ValueId, distance: float) -> None:
        found = self.of.setdefault(b, [])
        if a not in found:
            found.append(a)
        self.distance[b, a] = distance


class ValueMatcher:
    """Compares the values of two executions."""

    def __init__(self, a: Execution, b: Execution) -> None:
        self.a, self.b = a, b
        self.eps = max(a.eps, b.eps)
        self.matches = Matches()
        self._margin = _MARGINS[1]
        self._ratios: list[float] = []
        self._prints: dict[tuple[int, ValueId], _Fingerprint] = {}
        self._flat_views: dict[ValueId, list[ValueId]] = {}
        """The other values with the same elements in the same order, by the first of them."""
        self._first_view: dict[ValueId, ValueId] = {}
        self._by_count: dict[tuple[int, bool], list[ValueId]] = {}
        self._samples: dict[tuple[int, bool], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self.add_candidates(range(len(a.values)))

    def add_candidates(self, values: Iterable[ValueId]) -> None:
        """Let values of `a` be found."""
        for value in values:
            view_of = self._flat_view_of(self.a, value)
            if view_of is not None:
                first = self._first_view.get(view_of, view_of)
                self._first_view[value] = first
                self._flat_views.setdefault(first, []).append(value)
                continue
            key = _kind(self.a.values[value])
            self._by_count.setdefault(key, []).append(value)
            self._samples.pop(key, None)

    def tolerance(self, a: ValueId) -> float:
        """How far apart rounding can bring a value of `a` and its counterpart."""
        return self._noise(a) * (self._margin + _SMALL / max(self.a.values[a].numel(), 1))

    def _noise(self, a: ValueId) -> float:
        if not self.a.values[a].is_floating_point():
            return 0.0
        return max(self.a.noise.get(a, self.eps), self.eps)

    def match_all(self, values: Iterable[ValueId]) -> None:
        """Find each value of `b` among those of `a` in the same order of elements."""
        for value in values:
            if self.match(value):
                self._learn(value)

    def _learn(self, b: ValueId) -> None:
        """Set the tolerance of later values from earlier ones: equal kernels round equally."""
        a = self.matches.of[b][0]
        if not self.a.values[a].is_floating_point() or a not in self.a.noise:
            return
        noise = max(self.a.noise[a], self.eps)
        bisect.insort(self._ratios, self.matches.distance[b, a] / noise)
        if len(self._ratios) >= _ENOUGH:
            usual = self._ratios[int(0.9 * len(self._ratios))]
            self._margin = min(max(_USUAL * usual, _MARGINS[0]), _MARGINS[1])

    def match(self, b: ValueId) -> bool:
        """Find one value of `b`; whether there is a match."""
        view_of = self._flat_view_of(self.b, b)
        if view_of is not None and view_of in self.matches.of:
            for a in self.matches.of[view_of]:
                self.matches.add(b, a, self.matches.distance[view_of, a])
        else:
            tensor = self.b.values[b]
            for a in self._candidates(b):
                there = self.a.values[a]
                if tensor.shape == there.shape:
                    self._try(b, a, tensor, there)
                else:
                    self._try(b, a, tensor.reshape(-1), there.reshape(-1))
                if b in self.matches.of:
                    break
        for a in list(self.matches.of.get(b, ())):
            for other in self._flat_views.get(a, ()):
                self.matches.add(b, other, self.matches.distance[b, a])
        found = self.matches.of.get(b)
        if found:
            shape = self.b.values[b].shape
            found.sort(
                key=lambda a: (
                    self.a.values[a].shape != shape,
                    self.matches.distance[b, a] > 0,
                )
            )
        return bool(found)

    def _flat_view_of(self, execution: Execution, value: ValueId) -> ValueId | None:
        """The value that one shows in the same order of elements, with another shape."""
        op = execution.graph.producer.get(value)
        if op is None or not op.is_layout or len(op.inputs) != 1:
            return None
        one, other = execution.values[value], execution.values[op.inputs[0]]
        is_flat = one.numel() == other.numel() and one.dtype == other.dtype
        if not is_flat or not (one.is_contiguous() and other.is_contiguous()):
            return None
        return op.inputs[0] if one.data_ptr() == other.data_ptr() else None

    def find(self, tensor: torch.Tensor, without: set[ValueId]) -> ValueId | None:
        """A value of `a` that a tensor is the same as, in some order of dimensions."""
        mine = _fingerprint(tensor).norm
        for a in self._by_count.get(_kind(tensor), ()):
            limit = self.tolerance(a) * mine + 1e-30
            if a in without or abs(self._print(0, a).norm - mine) > limit:
                continue
            if self._is_permuted(tensor, a):
                return a
        return None

    def match_permuted(self, b: ValueId) -> bool:
        """Find a value of `b` in another order of dimensions, as channels last."""
        tensor = self.b.values[b]
        if tensor.dim() < 2 or not tensor.numel():
            return False
        for a in self._of_same_norm(b):
            other = self.a.values[a]
            for order in permutations(tuple(tensor.shape), tuple(other.shape)):
                if self._looks_same(tensor.permute(order), other, self.tolerance(a)):
                    self._try(b, a, tensor.permute(order).reshape(-1), other.reshape(-1))
        return b in self.matches.of

    def is_permuted(self, b: ValueId, a: ValueId) -> bool:
        """Whether a value of `b` is one of `a` with its dimensions in some order."""
        return self._is_permuted(self.b.values[b], a)

    def _is_permuted(self, one: torch.Tensor, a: ValueId) -> bool:
        other = self.a.values[a]
        limit = self.tolerance(a)
        orders = (tuple(range(one.dim())), *permutations(tuple(one.shape), tuple(other.shape)))
        return any(
            relative_distance(one.permute(order).reshape(-1), other.reshape(-1)) <= limit
            for order in orders
        )

    def is_same(self, b: ValueId, a: ValueId) -> bool:
        """Whether two values of one shape are equal element by element, up to rounding."""
        one, other = self.b.values[b], self.a.values[a]
        if one.shape != other.shape:
            return False
        return relative_distance(one, other) <= self.tolerance(a)

    def is_part(self, b: ValueId, a: ValueId) -> bool:
        """Whether one of two values is a slice of the other along one dimension."""
        small, large = self.b.values[b], self.a.values[a]
        if small.numel() > large.numel():
            small, large = large, small
        parts = parts_like(large, small)
        limit = self.tolerance(a)
        return any(relative_distance(small, part) <= limit for part in parts)

    def is_joined(self, b: ValueId, parts: Iterable[ValueId]) -> bool:
        """Whether a value of `b` consists of values of `a` side by side, as fused q, k and v."""
        whole = self.b.values[b]
        candidates = list(parts)
        return any(self._tiles(whole, axis, candidates) for axis in range(whole.dim()))

    def _tiles(self, whole: torch.Tensor, axis: int, parts: Sequence[ValueId]) -> bool:
        start, size = 0, whole.shape[axis]
        others = [one for at, one in enumerate(whole.shape) if at != axis]
        while start < size:
            for a in parts:
                part = self.a.values[a]
                if part.dim() != whole.dim() or part.shape[axis] > size - start:
                    continue
                if [one for at, one in enumerate(part.shape) if at != axis] != others:
                    continue
                here = whole.narrow(axis, start, part.shape[axis])
                if part.shape[axis] and relative_distance(here, part) <= self.tolerance(a):
                    start += part.shape[axis]
                    break
            else:
                return False
        return True

    def _try(self, b: ValueId, a: ValueId, one: torch.Tensor, other: torch.Tensor) -> None:
        distance = self._distance(b, a, one, other)
        if distance <= min(self.tolerance(a), _LARGEST):
            self.matches.add(b, a, distance)

    def _distance(self, b: ValueId, a: ValueId, one: torch.Tensor, other: torch.Tensor) -> float:
        """The relative distance of two values; for weights, from a part of their elements."""
        if one.data_ptr() == other.data_ptr() and one.stride() == other.stride():
            return 0.0
        if one.numel() > _PART and b in self.b.graph.names:
            step = one.numel() // _PART
            return relative_distance(one.reshape(-1)[::step], other.reshape(-1)[::step])
        first, second = self._print(1, b), self._print(0, a)
        if first.is_plain and second.is_plain and one.dtype == other.dtype == torch.float32:
            size = max(first.norm, second.norm)
            moved = float(torch.linalg.vector_norm(one - other))
            return moved / size if size else moved
        return relative_distance(one, other)

    def _looks_same(self, one: torch.Tensor, other: torch.Tensor, limit: float) -> bool:
        first, second = _sample(one), _sample(other)
        return relative_distance(first, second) <= 4 * limit + 1e-12

    def _candidates(self, b: ValueId) -> list[ValueId]:
        """The values of `a` whose norm and sample are those of a value of `b`."""
        tensor = self.b.values[b]
        key = _kind(tensor)
        known = self._by_count.get(key)
        if not known:
            return []
        samples, norms, noises = self._table(key)
        mine = self._print(1, b)
        limits = noises * (self._margin + _SMALL / max(tensor.numel(), 1))
        near = (norms - mine.norm).abs() <= limits * norms.clamp(min=mine.norm) + 1e-30
        apart = torch.linalg.vector_norm(samples - mine.sample, dim=1)
        size = torch.linalg.vector_norm(samples, dim=1)
        # A sample of large and small elements is less exact than the whole.
        per_element = norms / math.sqrt(max(tensor.numel(), 1)) * math.sqrt(len(mine.sample))
        near &= apart <= 4 * limits * torch.maximum(size, per_element) + 1e-30
        order = apart.masked_fill(~near, math.inf).argsort()[:_MOST]
        chosen = [known[at] for at in order.tolist() if near[at]]
        same_shape = [a for a in chosen if self.a.values[a].shape == tensor.shape]
        return same_shape + [a for a in chosen if a not in same_shape]

    def _of_same_norm(self, b: ValueId) -> Iterator[ValueId]:
        mine = self._print(1, b).norm
        for a in self._by_count.get(_kind(self.b.values[b]), ()):
            if abs(self._print(0, a).norm - mine) <= self.tolerance(a) * mine + 1e-30:
                yield a

    def _table(self, key: tuple[int, bool]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The samples, norms and noise of all values of `a` of one size."""
        if key not in self._samples:
            prints = [self._print(0, a) for a in self._by_count[key]]
            self._samples[key] = (
                torch.stack([one.sample for one in prints]),
                torch.tensor([one.norm for one in prints]),
                torch.tensor([self._noise(a) for a in self._by_count[key]]),
            )
        return self._samples[key]

    def _print(self, side: int, value: ValueId) -> _Fingerprint:
        key = side, value
        if key not in self._prints:
            execution = (self.a, self.b)[side]
            tensor = execution.values[value]
            if value in execution.graph.names and tensor.numel() > _PART:
                tensor = tensor.reshape(-1)[:: tensor.numel() // _PART]
            self._prints[key] = _fingerprint(tensor)
        return self._prints[key]


def _kind(tensor: torch.Tensor) -> tuple[int, bool]:
    return tensor.numel(), tensor.is_complex()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """As float32 or more on the CPU, a complex one as pairs, a mask whether it hides or shows."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bool and tensor.numel():
        tensor = tensor ^ tensor[(0,) * tensor.dim()]
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    wide = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
    return wide.cpu()


def _fingerprint(tensor: torch.Tensor) -> _Fingerprint:
    plain = _plain(tensor)
    norm = float(torch.linalg.vector_norm(plain)) if tensor.numel() else 0.0
    sample = _sample(tensor)
    if norm < -_MASKED or (math.isfinite(norm) and not _has_mask(plain)):
        return _Fingerprint(norm, sample, True)
    norm = float(torch.linalg.vector_norm(_tamed(plain)))
    return _Fingerprint(norm, _tamed(sample), False)


def _has_mask(plain: torch.Tensor) -> bool:
    """Whether some values are so low that they only hide others, which are not."""
    low, high = plain.aminmax()
    return bool(low < _MASKED) and bool(high < -_MASKED)


def _tamed(tensor: torch.Tensor) -> torch.Tensor:
    """Without values that are not finite or so large that they only mask."""
    shown = (tensor.abs() < _HUGE) & (tensor > _MASKED)
    return torch.where(shown, tensor, torch.zeros_like(tensor))


@lru_cache(maxsize=4096)
def _places(count: int) -> torch.Tensor:
    """Positions spread over a tensor of this many elements."""
    if count <= _SAMPLE:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, count, (_SAMPLE,), generator=generator)


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    count = tensor.numel()
    if not count:
        return torch.zeros(0)
    if tensor.is_contiguous():
        chosen = tensor.detach().view(-1)[_places(count).to(tensor.device)]
    else:
        where = _unraveled(tuple(tensor.shape))
        chosen = tensor.detach()[tuple(one.to(tensor.device) for one in where)]
    if tensor.dtype == torch.bool:
        chosen = chosen ^ tensor[(0,) * tensor.dim()]
        return chosen.reshape(-1).float()
    return _plain(chosen).reshape(-1).float()


@lru_cache(maxsize=4096)
def _unraveled(shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return torch.unravel_index(_places(math.prod(shape)), shape)


@lru_cache(maxsize=4096)
def permutations(shape: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The orders of dimensions that turn one shape into another, ones aside."""
    rest = tuple(size for size in wanted if size != 1)
    orders = (
        order
        for order in itertools.permutations(range(len(shape)))
        if tuple(shape[at] for at in order if shape[at] != 1) == rest
        and order != tuple(range(len(shape)))
    )
    return tuple(itertools.islice(orders, _MOST_PERMUTATIONS))


def parts_like(large: torch.Tensor, small: torch.Tensor) -> Sequence[torch.Tensor]:
    """The slices of a tensor along one dimension that have the shape of another."""
    if small.dim() != large.dim() or not small.numel():
        return ()
    sizes = zip(small.shape, large.shape, strict=True)
    axes = [axis for axis, (one, other) in enumerate(sizes) if one != other]
    if len(axes) != 1 or large.shape[axes[0]] % small.shape[axes[0]]:
        return ()
    return torch.split(large, small.shape[axes[0]], dim=axes[0])


def relative_distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The norm of the difference of two tensors over the larger norm; Inf where they mask others.

    Infinite values at the same places are equal, and so are NaN.
    """
    if one.shape != other.shape:
        return math.inf
    if not one.numel():
        return 0.0
    first, second = _plain(one), _plain(other)
    moved = torch.linalg.vector_norm(first - second)
    size = torch.maximum(torch.linalg.vector_norm(first), torch.linalg.vector_norm(second))
    if size < -_MASKED:
        return float(moved / size) if size else float(moved)
    if not moved:
        return 0.0
    if torch.isfinite(size) and not (_has_mask(first) and _has_mask(second)):
        return float(moved / size)
    shown = [(one.abs() < _HUGE) & (one > _MASKED) for one in (first, second)]
    if not torch.equal(*shown) or not torch.equal(first.isnan(), second.isnan()):
        return math.inf
    first, second = _tamed(first), _tamed(second)
    moved = torch.linalg.vector_norm(first - second)
    size = torch.maximum(torch.linalg.vector_norm(first), torch.linalg.vector_norm(second))
    return float(moved / size) if size else float(moved)


def match_executions(a: Execution, b: Execution, pairs: Mapping[ValueId, ValueId]) -> ValueMatcher:
    """Match all values of `b`; `pairs` are the inputs, which match whatever they are."""
    matcher = ValueMatcher(a, b)
    for own, other in pairs.items():
        matcher.matches.add(own, other, 0.0)
    matcher.match_all(value for value in range(len(b.values)) if value not in pairs)
    return matcher
