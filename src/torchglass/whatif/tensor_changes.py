"""The weights of two models: which is which, and how far apart, one tensor at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.nn.parameter import is_lazy

from torchglass.analyse.model_diff import ModelDiff
from torchglass.analyse.model_diff import compare as compare_models
from torchglass.analyse.module_pairs import pair_modules
from torchglass.capture.tensor.description import describe
from torchglass.records.comparison import TensorChange
from torchglass.records.model import Model, join_path

Load = Callable[[], torch.Tensor]
Tensors = Mapping[str, Load]
_CHUNK = 1 << 22
_MOST_RANK = 64
"""The largest rank of a change that is looked for."""
_LOWEST = 8
"""A rank is low if the matrix could have this many times as much."""
_KEPT = 1 - 1e-4
"""The share of the squared norm that a change of low rank explains: the rest is rounding."""


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
    changes = list(tensor_changes(*tensors, _tensor_pairs(before, after, pairs, tensors)))
    distances = {one.name: one.distance for one in changes if one.distance is not None}
    return compare_models(before, after, distances, pairs), changes


def _tensor_pairs(
    before: Model, after: Model, pairs: Mapping[str, str], tensors: tuple[Tensors, Tensors]
) -> Iterator[tuple[str, str]]:
    """The old and new names of the tensors that both models have."""
    for path, old_path in pairs.items():
        old, new = before.find(old_path), after.find(path)
        if old is None or new is None or new.alias_of is not None:
            continue
        known = {slot.name for slot in old.slots}
        for slot in new.slots:
            one, other = join_path(old_path, slot.name), join_path(path, slot.name)
            if slot.name in known and one in tensors[0] and other in tensors[1]:
                yield one, other


def tensor_changes(
    before: Tensors, after: Tensors, names: Iterable[tuple[str, str]]
) -> Iterator[TensorChange]:
    """Compare pairs of tensors, by their old and new names, in the order given."""
    for old_name, name in names:
        yield compare_tensors(old_name, name, before[old_name](), after[name]())


@torch.no_grad()
def compare_tensors(
    old_name: str, name: str, before: torch.Tensor, after: torch.Tensor
) -> TensorChange:
    """Compare the values of two tensors."""
    change = TensorChange(
        name=name, name_before=old_name, before=describe(before), after=describe(after)
    )
    if before.shape != after.shape or not (_has_values(before) and _has_values(after)):
        return change
    if before is after:
        return _filled(change, _Sums(), None)
    sums = _Sums()
    for old, new in _parts(before, after):
        sums.add(old, new)
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

    def add(self, old: torch.Tensor, new: torch.Tensor) -> None:
        finite = torch.isfinite(old) & torch.isfinite(new)
        if not bool(finite.all()):
            self.nan_before += int(old.isnan().sum())
            self.nan_after += int(new.isnan().sum())
            same = finite | (old == new) | (old.isnan() & new.isnan())
            self.is_other |= not bool(same.all())
            old, new = old.where(finite, 0), new.where(finite, 0)
        change = new - old
        self.moved += float(change.dot(change))
        self.old += float(old.dot(old))
        self.new += float(new.dot(new))
        self.product += float(old.dot(new))
        if change.numel():
            self.largest = max(self.largest, float(change.abs().max()))

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


def _parts(
    before: torch.Tensor, after: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Both as float64 on the CPU, a few million values at a time."""
    pairs = zip(torch.split(_flat(before), _CHUNK), torch.split(_flat(after), _CHUNK), strict=True)
    for old, new in pairs:
        yield old.to("cpu", torch.float64), new.to("cpu", torch.float64)


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
    if limit < 1:
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
    sizes = torch.linalg.svdvals(projected.double()).square()
    explained = sizes.cumsum(0) / sums.moved
    found = int((explained < _KEPT).sum()) + 1
    return found if found <= limit else None


def _row_changes(before: torch.Tensor, after: torch.Tensor) -> Iterator[torch.Tensor]:
    rows = max(_CHUNK // max(before[0].numel(), 1), 1)
    for old, new in zip(torch.split(before, rows), torch.split(after, rows), strict=True):
        yield (new.detach().cpu().float() - old.detach().cpu().float()).reshape(len(old), -1)


def value_key(tensors: Tensors) -> Callable[[str], Hashable]:
    """A key of the values of each tensor, equal for equal values."""
    known: dict[str, Hashable] = {}

    def key(name: str) -> Hashable:
        if name not in known:
            known[name] = _key(tensors[name]()) if name in tensors else None
        return known[name]

    return key


@torch.no_grad()
def _key(tensor: torch.Tensor) -> Hashable:
    if not _has_values(tensor):
        return None
    flat = _flat(tensor)
    spread = flat[:: max(len(flat) // 64, 1)].double().tolist()
    return tuple(tensor.shape), tuple(spread)
