"""How far the tensors of two models lie apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch.nn.parameter import is_lazy

from torchglass.capture.tensor.moments import length

Load = Callable[[], torch.Tensor]

_CHUNK = 1 << 22
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
    pairs = list(zip(_chunks(before), _chunks(after), strict=True))
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


def _chunks(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The numbers as float64 on the CPU, some at a time."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    exact = torch.complex128 if tensor.is_complex() else torch.float64
    flat = tensor.detach().reshape(-1)
    return [part.to("cpu", exact) for part in torch.split(flat, _CHUNK)]
