"""What is known of each parameter of a training, and at which steps it is examined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchglass.capture.tensor.device_batches import copies_of
from torchglass.capture.tensor.device_reads import Array, wide_dtype
from torchglass.capture.watch.optimizers import Weight
from torchglass.records.training import Track

_GROWTH = 1.4
_FIRST_LOOKS = 5
"""The first five events are examined; after that, the gaps grow by `_GROWTH` each time."""
_MOST_MODULES, _LARGE_GROWTH = 500, 3.0
_SAMPLE = 64
_MOST_POINTS = 256
_MOST_EQUAL = 8
"""If there are more matrices of one size, as in the blocks of a transformer, none are tied."""


class LookSchedule:
    """Which of many events are examined: the first ones, and then fewer and fewer.

    Of a model with many modules, fewer are: a look at each takes longer than a step may.
    """

    def __init__(self, modules: int, first: int = _FIRST_LOOKS, growth: float = _GROWTH) -> None:
        is_large = modules > _MOST_MODULES
        self._first, self._growth = (0, _LARGE_GROWTH) if is_large else (first, growth)
        self._count = 0
        self._next = 0

    def is_due(self) -> bool:
        """Count an event; returns whether to examine it."""
        count, self._count = self._count, self._count + 1
        if count < self._next:
            return False
        self._next = count + 1 if count < self._first else int(max(1, count) * self._growth) + 1
        return True


class ThinnedTrack:
    """Values over steps; every other one is dropped whenever there are too many."""

    def __init__(self) -> None:
        self._points: dict[int, float] = {}
        self._record: Track | None = None

    def add(self, step: int, value: float) -> None:
        """Keep a value."""
        self._points[step] = value
        self._record = None
        if len(self._points) > _MOST_POINTS:
            points = list(self._points.items())
            self._points = dict([*points[: _MOST_POINTS // 2 : 2], *points[_MOST_POINTS // 2 :]])

    def get(self, step: int) -> float:
        """The value of a step, 0 if it has none."""
        return self._points.get(step, 0.0)

    def record(self) -> Track:
        """What was kept."""
        if self._record is None:
            self._record = Track(steps=tuple(self._points), values=tuple(self._points.values()))
        return self._record


class ParameterState:
    """What is known about one parameter."""

    def __init__(self) -> None:
        self.optimizer: int | None = None
        self.with_gradient = 0
        self.without_gradient = 0
        self.updates = ThinnedTrack()
        self.kept = ThinnedTrack()
        self.moved = ThinnedTrack()
        self.has_equal_rows = False
        self._last: tuple[Array, float] | None = None
        """Its sample before the last update that changed it, and how large that was."""

    def see_move(self, step: int, before: Array, move: Array) -> None:
        """A sample of its values before an update, and what the update added to them."""
        size, change = float(np.linalg.norm(before)), float(np.linalg.norm(move))
        if size > 0:
            self.updates.add(step, change / size)
        if self._last is not None and self._last[0].shape == before.shape:
            was, earlier = self._last
            self.kept.add(step, float(np.linalg.norm(before - was)) / earlier)
        self._last = (before, change) if change > 0 else None


class SampledParameters(NamedTuple):
    """Samples of parameters, as they were before an update."""

    names: list[str]
    views: list[torch.Tensor]
    copies: list[torch.Tensor]

    def alike(self) -> list[list[int]]:
        """The indices of those with the same device and dtype."""
        found: dict[tuple[Any, ...], list[int]] = {}
        for index, view in enumerate(self.views):
            found.setdefault((view.device, view.dtype), []).append(index)
        return list(found.values())


def is_shapeless(parameter: Any) -> bool:
    """Whether a parameter of a lazy module has no shape yet."""
    return bool(is_lazy(parameter))


def parameter_name(weight: Weight) -> str:
    """The dotted name of a parameter."""
    path, name = weight.place
    return f"{path}.{name}" if path else name


def sample_of(weights: Iterable[Weight]) -> SampledParameters:
    """A few values of each parameter, as they are now."""
    names, views = [], []
    for weight in weights:
        parameter = weight.parameter.detach()
        if type(parameter) is not torch.Tensor or not parameter.is_floating_point():
            continue
        if parameter.layout == torch.strided and parameter.is_contiguous() and parameter.numel():
            flat = parameter.view(-1)
            names.append(parameter_name(weight))
            views.append(flat[:: max(1, len(flat) // _SAMPLE)])
    return SampledParameters(names, views, list(copies_of(views)))


def some_rows(parameter: torch.Tensor) -> torch.Tensor | None:
    """Values of units that should differ; None if there are none."""
    if (
        is_lazy(parameter)
        or parameter.dim() < 2
        or parameter.shape[0] < 2
        or type(parameter.data) is not torch.Tensor
    ):
        return None
    return parameter.detach()[:8].flatten(1)[:, :_SAMPLE]


def are_equal(rows: Array) -> bool:
    """Whether units that should differ are identical."""
    return bool((rows == rows[:1]).all()) and bool(rows.any())


def equal_pairs(parameters: Mapping[str, nn.Parameter]) -> Iterator[tuple[str, str]]:
    """Matrices with the same values, possibly transposed, that are not the same parameter."""
    by_size: dict[tuple[int, ...], list[str]] = {}
    for name, parameter in parameters.items():
        if is_shapeless(parameter):
            continue
        is_plain = type(parameter.data) is torch.Tensor and not parameter.is_meta
        if parameter.dim() == 2 and parameter.numel() >= _SAMPLE and is_plain:
            by_size.setdefault(tuple(sorted(parameter.shape)), []).append(name)
    for names in by_size.values():
        known: dict[tuple[float, float], str] = {}
        for name in names if 1 < len(names) <= _MOST_EQUAL else ():
            values = parameters[name].detach()
            values = values.to(wide_dtype(values.device))
            # Random matrices never agree in both to the last digits.
            key = round(float(values.sum()), 6), round(float(values.norm()), 6)
            first = known.setdefault(key, name)
            if first != name and float(values.std()) > 0:
                yield name, first
