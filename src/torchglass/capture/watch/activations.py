"""Tensors and small images from inside a forward."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchglass.capture.tensor.description import describe
from torchglass.capture.tensor.device_reads import Array, DeviceReads
from torchglass.capture.tensor.moments import numbers_of
from torchglass.errors import Fence, uninterruptible
from torchglass.records.model import Activations, FeatureMap, TensorSpec


class Attaching(Protocol):
    """Records attached tensors, and never raises."""

    def attach(self, tensor: Tensor, module: nn.Module, name: str) -> Tensor:
        """Record a tensor, if its pass is recorded; returns the tensor to continue with."""


_fence = Fence("a tensor was not attached")
_attaching: tuple[Attaching, ...] = ()
"""The listeners of all active watchers."""


def attach(tensor: Any, module: nn.Module, name: str) -> Any:
    """Record a tensor in all watchers that are recording a pass of the module."""
    try:
        if isinstance(tensor, Tensor):
            for one in _attaching:
                tensor = one.attach(tensor, module, name)
    except Exception as problem:  # noqa: BLE001 - no error of ours may stop a forward
        _fence.caught(problem)
    return tensor


def own_way(tensor: Tensor) -> Tensor:
    """A view of a tensor, whose gradient comes from this use only.

    It is the tensor itself where a view would be noticed: a leaf would lose its gradient, and a
    tensor created without gradients could not be written to.
    """
    if not tensor.requires_grad or not torch.is_grad_enabled() or tensor.is_leaf:
        return tensor
    try:
        return tensor.view_as(tensor)
    except (RuntimeError, NotImplementedError):
        # Sparse and nested tensors have no views.
        return tensor


def has_view(tensor: Tensor) -> bool:
    """Whether a tensor can be viewed; tries it, which other modes may see."""
    try:
        tensor.view_as(tensor)
    except (RuntimeError, NotImplementedError):
        return False
    return True


@uninterruptible
def listening(one: Attaching) -> Iterator[None]:
    """Show attached tensors to a listener until the block ends."""
    global _attaching  # noqa: PLW0603 - forwards know of no watcher
    try:
        _attaching = (*_attaching, one)
        yield
    finally:
        _attaching = tuple(other for other in _attaching if other is not one)


MOST_PICTURES = 128
"""The most outputs per pass of which images are kept."""
_MOST_MAPS = 16
_MAP_SIDE = 32
_SIDE = 64


class Pictures:
    """Keeps the latest image of each output."""

    def __init__(self, reads: DeviceReads) -> None:
        self._reads = reads
        self._wanted: set[tuple[str, str]] = set()
        self._maps: dict[tuple[str, str], FeatureMap] = {}
        self._is_new = False

    def take(self, path: str, name: str, step: int, tensor: torch.Tensor) -> None:
        """Keep an image of an output, if it is numeric and there is room for it."""
        key = (path, name)
        if key not in self._wanted and len(self._wanted) >= MOST_PICTURES:
            return
        values = numbers_of(tensor)
        if values is not None and values.is_floating_point():
            self._wanted.add(key)
            maps = _maps(values.detach()).to(torch.float32, copy=True)
            self._reads.later(maps, partial(self._put, path, name, step, describe(tensor)))

    def _put(self, path: str, name: str, step: int, spec: TensorSpec, maps: Array) -> None:
        self._maps[path, name] = _picture(path, name, step, spec, torch.from_numpy(maps))
        self._is_new = True

    def document(self) -> Activations | None:
        """All images; None if there is no new one since the last call."""
        if not self._is_new:
            return None
        self._is_new = False
        return Activations(maps=tuple(self._maps.values()))


def picture_of(path: str, name: str, tensor: torch.Tensor) -> FeatureMap | None:
    """The image of a tensor that belongs to no step; None if it is not numeric."""
    values = numbers_of(tensor)
    if values is None or not values.is_floating_point() or not values.numel():
        return None
    maps = _maps(values.detach()).to("cpu", torch.float32)
    return _picture(path, name, -1, describe(tensor), maps)


def _picture(path: str, name: str, step: int, spec: TensorSpec, maps: torch.Tensor) -> FeatureMap:
    finite = maps[torch.isfinite(maps)]
    low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (0.0, 0.0)
    shades = (maps - low) * (255 / (high - low) if high > low else 0.0)
    tiles = math.ceil(math.sqrt(len(maps)))
    whole = _side_by_side(shades.nan_to_num(0, 255, 0).clamp(0, 255).to(torch.uint8), tiles)
    return FeatureMap(
        path=path,
        name=name,
        step=step,
        spec=spec,
        low=low,
        high=high,
        rows=whole.shape[0],
        columns=whole.shape[1],
        pixels=base64.b64encode(bytes(whole.flatten().tolist())).decode("ascii"),
        tiles=tiles,
    )


def _maps(values: torch.Tensor) -> torch.Tensor:
    """Matrices to show: the channels of the first image, or otherwise one matrix."""
    if values.dim() >= 4:
        return _shrunk(values[0].flatten(0, -3)[:_MOST_MAPS], _MAP_SIDE)
    if values.dim() == 3:
        return _shrunk(values[:1], _SIDE)
    matrix = values if values.dim() == 2 else values.reshape(1, -1)
    return _shrunk(matrix[None, :_SIDE], _SIDE)


def _shrunk(maps: torch.Tensor, side: int) -> torch.Tensor:
    """Matrices reduced to at most `side` rows and columns by averaging."""
    height, width = maps.shape[-2:]
    if height <= side and width <= side:
        return maps
    return functional.adaptive_avg_pool2d(maps.float(), (min(height, side), min(width, side)))


def _side_by_side(maps: torch.Tensor, tiles: int) -> torch.Tensor:
    count, height, width = maps.shape
    rows = math.ceil(count / tiles)
    filled = torch.zeros(rows * tiles, height, width, dtype=maps.dtype, device="cpu")
    filled[:count] = maps
    whole = filled.view(rows, tiles, height, width).transpose(1, 2)
    return whole.reshape(rows * height, tiles * width)
