"""What the panels show: a model, what it holds, and what is known of its series so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from torchglass.analyse.model.parameters import ModuleCounts, count
from torchglass.records.model import Model, Module, ModuleId, Slot, join_path
from torchglass.records.run import Run
from torchglass.records.series import Points, Series, SeriesId
from torchglass.views.columns import SAME_AS
from torchglass.views.tui.rows import Outline

LOST, SHARED, TIED = "!", SAME_AS, "="
"""Marks of a module that could not be read, stands elsewhere too, or shares a tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What takes a while to work out on a large model."""

    counts: Sequence[ModuleCounts]
    notes: Mapping[ModuleId, str]
    """What is out of the ordinary about some modules, each opening with its mark."""


def measure(model: Model) -> Measures:
    """Count all modules, and note what is out of the ordinary about them."""
    notes = {module.id: note for module in model.modules if (note := _note(model, module))}
    return Measures(counts=count(model), notes=notes)


class Subject:
    """What is looked at. The app changes it, and every panel reads the same one."""

    def __init__(self, run: Run, model: Model) -> None:
        self.run = run
        self.model = model
        self.outline = Outline(model)
        self.measures: Measures | None = None
        self.step = -1
        self._series: dict[str, list[Series]] = {}
        self._points: dict[SeriesId, Points] = {}

    def counts(self, module: Module) -> ModuleCounts | None:
        """What a module holds; None as long as it is being counted."""
        return None if self.measures is None else self.measures.counts[module.id]

    def note(self, module: Module) -> str:
        """What is out of the ordinary about a module, opening with its mark."""
        return "" if self.measures is None else self.measures.notes.get(module.id, "")

    def learn(self, step: int, series: Iterable[Series], news: Iterable[Points]) -> None:
        """Take in what was read since the last time."""
        self.step = step
        for one in series:
            self._series.setdefault(one.path, []).append(one)
        for points in news:
            known = self._points.get(points.series.id)
            self._points[points.series.id] = points if known is None else _joined(known, points)

    def has_series(self) -> bool:
        """Whether anything was measured over steps."""
        return bool(self._series)

    def series_at(self, module: Module) -> Sequence[Series]:
        """What is measured at one module."""
        return self._series.get(module.path, ())

    def trend(self, module: Module) -> Series | None:
        """The series that tells most about a module: a loss, else a gradient, else the first."""
        series = self.series_at(module)
        return min(series, key=_telling, default=None)

    def values(self, series: Series) -> npt.NDArray[np.float64]:
        """How a series moves: its values, or the spread of what it sums up."""
        points = self._points.get(series.id)
        return np.empty(0) if points is None else points.column(moving(series))


def moving(series: Series) -> str:
    """The number of a series' points that is worth a line."""
    return "value" if series.kind == "scalar" else "std"


def tied_to(model: Model, module: Module, slot: Slot) -> list[str]:
    """The other slots that hold the very tensor of this one."""
    own = join_path(module.path, slot.name)
    return [place for place in model.tied.get(slot.tensor, ()) if place != own]


def _note(model: Model, module: Module) -> str:
    if module.problem:
        return f"{LOST} {module.problem}"
    if module.alias_of is not None:
        return f"{SHARED} {model[module.alias_of].path or 'the model itself'}"
    others = (place for slot in module.slots for place in tied_to(model, module, slot))
    first = next(others, "")
    return f"{TIED} {first}" if first else ""


def _telling(series: Series) -> int:
    if "loss" in series.name:
        return 0
    return 1 if series.name.endswith(".grad") else 2


def _joined(known: Points, new: Points) -> Points:
    return replace(
        known,
        steps=np.concatenate([known.steps, new.steps]),
        values=np.concatenate([known.values, new.values]),
    )
