"""The weights of two models: which is which, and how far apart, one tensor at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.parameter import is_lazy

from torchglass.analyse.model_diff import ModelDiff
from torchglass.analyse.model_diff import compare as compare_models
from torchglass.analyse.module_pairs import ValueKey, ValueSample, pair_modules
from torchglass.records.comparison import BothHistograms, TensorChange
from torchglass.records.model import Model, join_path

Numbers = npt.NDArray[np.float64]
Load = Callable[[], torch.Tensor]
Tensors = Mapping[str, Load]
_CHUNK = 1 << 22
_MOST_RANK = 64
"""The largest rank of a change that is looked for."""
_LOWEST = 8
"""A rank is low if the matrix could have this many times as much."""
_SMALLEST = 32
"""Rows and columns of the smallest matrix whose rank is looked at."""
_LEFT = 1e-4
"""The share of the squared norm that a change of low rank may leave unexplained."""
_ROUNDED = 0.06
"""The mean square of a rounding error, relative to the step of a dtype and the value."""
_MOST_HISTOGRAMS = 1_000
_BINS = 24
_SMALL = 1 << 14
"""Elements of a tensor that is compared by numpy, whose calls cost less."""


def compare_weights(
    models: tuple[Model, Model],
    tensors: tuple[Tensors, Tensors],
    names: Mapping[str, str] | None = None,
) -> tuple[ModelDiff, list[TensorChange] | None]:
    """The structure of two models, old and new, and the values of the tensors that both have.

    `tensors` load them by dotted name; if a model has none, values are not compared. `names` are
    old paths of modules by new ones, where they are known.
    """
    before, after = models
    keys = (value_key(tensors[0]), value_key(tensors[1])) if all(tensors) else None
    pairs = pair_modules(before, after, names, keys)
    if keys is None:
        return compare_models(before, after, pairs=pairs), None
    changes = list(
        _with_histograms(_compared(_tensor_pairs(before, after, pairs, tensors), tensors))
    )
    distances = {one.name: one.distance for one in changes if one.distance is not None}
    histograms = {one.name: one.histograms for one in changes if one.histograms is not None}
    return compare_models(before, after, distances, pairs, histograms), changes


def _compared(
    pairs: Iterable[TensorChange], tensors: tuple[Tensors, Tensors]
) -> Iterator[tuple[TensorChange, torch.Tensor, torch.Tensor]]:
    """Each pair with its values compared, and its two tensors."""
    for change in pairs:
        before, after = tensors[0][change.name_before](), tensors[1][change.name]()
        yield compare_tensors(change, before, after), before, after


def _tensor_pairs(
    before: Model, after: Model, pairs: Mapping[str, str], tensors: tuple[Tensors, Tensors]
) -> Iterator[TensorChange]:
    """The tensors that both models have, in the order of the new one, not compared yet."""
    for new in after.modules:
        old = before.find(pairs[new.path]) if new.path in pairs else None
        if old is None or new.alias_of is not None:
            continue
        known = {slot.name: slot.spec for slot in old.slots}
        for slot in new.slots:
            one, other = join_path(old.path, slot.name), join_path(new.path, slot.name)
            if slot.name in known and one in tensors[0] and other in tensors[1]:
                yield TensorChange(
                    name=other, name_before=one, before=known[slot.name], after=slot.spec
                )


def _with_histograms(
    changes: Iterable[tuple[TensorChange, torch.Tensor, torch.Tensor]],
) -> Iterator[TensorChange]:
    """The changes with histograms of the first tensors whose values are not equal."""
    count = 0
    for change, before, after in changes:
        if change.is_equal or count == _MOST_HISTOGRAMS or not _have_values(before, after):
            yield change
        else:
            count += 1
            yield replace(change, histograms=_histograms(_sampled(before), _sampled(after)))


def _histograms(before: Numbers, after: Numbers) -> BothHistograms | None:
    both = np.concatenate([before, after])
    if not len(both):
        return None
    low, high = float(both.min()), float(both.max())
    scale = _BINS / (high - low) if high > low else 0.0
    if not math.isfinite(scale):
        return None
    counts = [
        np.bincount(np.minimum(((one - low) * scale).astype(np.intp), _BINS - 1), minlength=_BINS)
        for one in (before, after)
    ]
    return BothHistograms(
        before=tuple(counts[0].tolist()), after=tuple(counts[1].tolist()), low=low, high=high
    )


def _sampled(tensor: torch.Tensor) -> Numbers:
    """Finite values, spread over a tensor."""
    flat = _flat(tensor)
    few: Numbers = flat[:: max(len(flat) // _SMALL, 1)].to("cpu", torch.float64).numpy()
    finite: Numbers = few[np.isfinite(few)]
    return finite


@torch.no_grad()
def compare_tensors(
    change: TensorChange, before: torch.Tensor, after: torch.Tensor
) -> TensorChange:
    """A change with the values of its two tensors compared."""
    if before.shape != after.shape or not _have_values(before, after):
        return change
    sums = _Sums()
    if before is after:
        return _filled(change, sums, None)
    if before.numel() <= _SMALL:
        sums.add(*(_flat(one).to("cpu", torch.float64).numpy() for one in (before, after)))
    else:
        for old, new in _parts(before, after):
            sums.add_tensors(old, new)
    rank = _low_rank(before, after, sums) if sums.moved and math.isfinite(sums.moved) else None
    return _filled(change, sums, rank)


def _filled(change: TensorChange, sums: _Sums, rank: int | None) -> TensorChange:
    return TensorChange(
        name=change.name,
        name_before=change.name_before,
        before=change.before,
        after=change.after,
        distance=sums.distance,
        cosine=sums.cosine,
        largest=sums.largest,
        nan_before=sums.nan_before,
        nan_after=sums.nan_after,
        rank=rank,
    )


@dataclass
class _Sums:
    moved: float = 0.0
    old: float = 0.0
    new: float = 0.0
    product: float = 0.0
    largest: float = 0.0
    nan_before: int = 0
    nan_after: int = 0
    is_other: bool = False
    """Whether values are finite on one side alone."""

    def add(self, old: Numbers, new: Numbers) -> None:
        """Count a pair of flat arrays."""
        change = new - old
        moved = float(change @ change)
        if not math.isfinite(moved):
            finite = np.isfinite(old) & np.isfinite(new)
            self.nan_before += int(np.isnan(old).sum())
            self.nan_after += int(np.isnan(new).sum())
            same = finite | (old == new) | (np.isnan(old) & np.isnan(new))
            self.is_other |= not same.all()
            old, new = np.where(finite, old, 0), np.where(finite, new, 0)
            change = new - old
            moved = float(change @ change)
        self.moved += moved
        self.old += float(old @ old)
        self.new += float(new @ new)
        self.product += float(old @ new)
        if len(change):
            self.largest = max(self.largest, float(np.abs(change).max()))

    def add_tensors(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """Count a pair of flat tensors, which torch sums up faster if they are large."""
        change = new - old
        moved = float(change.dot(change))
        if not math.isfinite(moved):
            self.add(old.double().numpy(), new.double().numpy())
            return
        self.moved += moved
        self.old += float(old.dot(old))
        self.new += float(new.dot(new))
        self.product += float(old.dot(new))
        self.largest = max(self.largest, float(change.abs_().max()))

    @property
    def distance(self) -> float:
        if self.is_other:
            return math.nan
        if not self.moved:
            return 0.0
        return math.sqrt(self.moved / self.old) if self.old else math.inf

    @property
    def cosine(self) -> float | None:
        sizes = math.sqrt(self.old * self.new)
        return max(-1.0, min(1.0, self.product / sizes)) if sizes else None


def _has_values(tensor: torch.Tensor) -> bool:
    return not (is_lazy(tensor) or tensor.is_meta)


def _have_values(*tensors: torch.Tensor) -> bool:
    return all(map(_has_values, tensors))


def _parts(
    before: torch.Tensor, after: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Both on the CPU, a few million values at a time, with more digits than they have."""
    halves = (torch.bfloat16, torch.float16)
    dtype = torch.float32 if before.dtype in halves and after.dtype in halves else torch.float64
    pairs = zip(torch.split(_flat(before), _CHUNK), torch.split(_flat(after), _CHUNK), strict=True)
    for old, new in pairs:
        yield old.to("cpu", dtype), new.to("cpu", dtype)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.reshape(-1)


def _low_rank(before: torch.Tensor, after: torch.Tensor, sums: _Sums) -> int | None:
    """The rank of the change of a matrix, if it is much lower than it could be.

    The change is projected on a few random directions, which keep all of it if its rank is lower.
    """
    if before.dim() < 2 or sums.is_other or before.layout is not torch.strided:
        return None
    rows, columns = before.shape[0], before[0].numel()
    limit = min(min(rows, columns) // _LOWEST, _MOST_RANK)
    if min(rows, columns) < _SMALLEST or not after.is_floating_point():
        return None
    # A few rows of a change of low rank have a low rank, too; most changes end here.
    few = torch.linspace(0, rows - 1, min(4 * limit, rows)).long().to(before.device)
    part = next(_row_changes(before[few], after[few.to(after.device)]))
    own = float(after[few.to(after.device)].double().square().sum())
    squares = torch.linalg.eigvalsh((part @ part.T).double()).flip(0)
    if _explained_by(squares, float(squares.sum()), own, after.dtype) > limit:
        return None
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(columns, limit + 4, generator=generator)
    reached = torch.cat([part @ directions for part in _row_changes(before, after)])
    basis, _ = torch.linalg.qr(reached)
    projected = torch.zeros(basis.shape[1], columns)
    start = 0
    for part in _row_changes(before, after):
        projected += basis[start : start + len(part)].T @ part
        start += len(part)
    squares = torch.linalg.svdvals(projected.double()).square()
    found = _explained_by(squares, sums.moved, sums.new, after.dtype)
    return found if found <= limit else None


def _explained_by(squares: torch.Tensor, moved: float, size: float, dtype: torch.dtype) -> int:
    """How many directions explain a change up to the rounding of its dtype.

    `squares` are their shares of the squared norm `moved`, `size` is that of the new values.
    """
    step = torch.finfo(dtype).eps
    rest = max(_LEFT * moved, _ROUNDED * step * step * size)
    if rest > moved / 4:
        # Nearly all of the change is rounding.
        return len(squares) + 1
    return int((moved - squares.cumsum(0) > rest).sum()) + 1


def _row_changes(before: torch.Tensor, after: torch.Tensor) -> Iterator[torch.Tensor]:
    rows = max(_CHUNK // max(before[0].numel(), 1), 1)
    for old, new in zip(torch.split(before, rows), torch.split(after, rows), strict=True):
        yield (new.detach().cpu().float() - old.detach().cpu().float()).reshape(len(old), -1)


def value_key(tensors: Tensors) -> ValueKey:
    """Some values of each tensor by its name, equal for equal values."""
    known: dict[str, ValueSample | None] = {}

    def key(name: str) -> ValueSample | None:
        if name not in known:
            known[name] = _key(tensors[name]()) if name in tensors else None
        return known[name]

    return key


@torch.no_grad()
def _key(tensor: torch.Tensor) -> ValueSample | None:
    if not _has_values(tensor):
        return None
    flat = _flat(tensor)
    spread = flat[:: max(len(flat) // 64, 1)].double().tolist()
    return tuple(tensor.shape), tuple(spread)
