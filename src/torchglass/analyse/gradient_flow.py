"""How gradients flow through the layers of a training, and how large the updates are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchglass.records.model import Model
from torchglass.records.run import Points, Series

GRADIENT, UPDATE = ".grad", ".update"
"""The suffixes of series that are gradients, and of update-to-weight ratios."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A module whose own parameters have gradients."""

    path: str
    gradients: tuple[Series, ...] = ()
    updates: tuple[Series, ...] = ()


def layers(model: Model, series: Iterable[Series]) -> list[Layer]:
    """The modules with recorded gradients or updates of parameters, in order."""
    gradients: dict[str, list[Series]] = {}
    updates: dict[str, list[Series]] = {}
    for one in series:
        module = model.find(one.path)
        held = {slot.name for slot in module.slots} if module else set()
        for found, ending in ((gradients, GRADIENT), (updates, UPDATE)):
            if one.name.endswith(ending) and one.name.removesuffix(ending) in held:
                found.setdefault(one.path, []).append(one)
    return [
        Layer(
            path=module.path,
            gradients=tuple(gradients.get(module.path, ())),
            updates=tuple(updates.get(module.path, ())),
        )
        for module in model.modules
        if module.path in gradients or module.path in updates
    ]


def gradient_norms(layer: Layer, points: Callable[[Series], Points | None]) -> Numbers:
    """The L2 norm of all parameter gradients of a layer, per step."""
    lengths = [norms(one) for one in _read(layer.gradients, points)]
    shortest = min(map(len, lengths), default=0)
    # All series have the latest steps.
    together = [one[len(one) - shortest :] for one in lengths]
    total: Numbers = np.hypot.reduce(together) if together else np.empty(0)
    return total


def update_ratios(layer: Layer, points: Callable[[Series], Points | None]) -> Numbers:
    """The largest update-to-weight ratio of a layer's parameters, per step."""
    ratios = [one.column("value") for one in _read(layer.updates, points)]
    shortest = min(map(len, ratios), default=0)
    largest: Numbers = (
        np.max([one[len(one) - shortest :] for one in ratios], axis=0) if ratios else np.empty(0)
    )
    return largest


def _read(series: Sequence[Series], points: Callable[[Series], Points | None]) -> list[Points]:
    return [found for one in series if (found := points(one)) is not None and len(found)]


def norms(points: Points) -> Numbers:
    """The L2 norm of a gradient at each step, NaN where it has NaN or Inf.

    It follows from mean and std; squares would underflow or overflow sooner.
    """
    if points.series.kind == "scalar":
        # A scalar series of a gradient is its norm.
        return np.abs(points.column("value"))
    count, mean, std = (points.column(name) for name in ("count", "mean", "std"))
    spoiled = points.column("nan") + points.column("inf") > 0
    around, away = np.sqrt(np.maximum(count - 1, 0)) * std, np.sqrt(count) * mean
    return np.where(spoiled, np.nan, np.hypot(around, away))
