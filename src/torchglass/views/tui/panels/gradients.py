"""The panel that shows how gradients flow through the layers, and what they change there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from rich.cells import cell_len

from torchglass.analyse.gradients import (
    GRADIENT,
    UPDATE,
    Layer,
    Numbers,
    gradient_norms,
    layers,
    update_ratios,
)
from torchglass.records.series import Points, Series, SeriesId
from torchglass.views.formats import harmless, sparkline
from torchglass.views.tui.cells import bar, fit, squeeze
from torchglass.views.tui.panels.drawing import LazyRows, Row
from torchglass.views.tui.panels.keys import panel_bindings
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.subject import Subject

Quantity = Literal["gradient norm", "update ratio"]

_NUMBER, _TREND = 9, 12
_MOST_NAME = 36
_NOT_READ = -1.0
_TOO_MUCH, _TOO_LITTLE = {"gradient norm": 1e3, "update ratio": 0.1}, 1e-7


@dataclass(frozen=True, slots=True)
class _Measure:
    """A layer, and the latest of what its bar shows."""

    layer: Layer
    latest: float


class GradientFlow(Panel):
    """A bar for each layer on a logarithmic scale, the latest step of a training."""

    key: ClassVar[str] = "G"
    title: ClassVar[str] = "Gradient flow"
    missing: ClassVar[str] = (
        "no gradients were recorded: train with tg.watch(model), and open the run that it writes"
    )
    has_cursor = True
    BINDINGS: ClassVar = panel_bindings("panel:gradient flow")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._quantity: Quantity = "gradient norm"
        self._largest_first = False

    @classmethod
    def available(cls, subject: Subject) -> bool:
        """Whether any gradient was recorded over steps."""
        return any(one.name.endswith((GRADIENT, UPDATE)) for one in subject.all_series())

    def wanted(self) -> Iterable[SeriesId]:
        """The gradients and updates of all layers."""
        for layer in self._layers():
            yield from (one.id for one in (*layer.gradients, *layer.updates))

    def action_quantity(self) -> None:
        """Show gradients, or the updates that they make."""
        shows_gradients = self._quantity == "gradient norm"
        self._quantity = "update ratio" if shows_gradients else "gradient norm"
        self.follow(False)

    def action_sort(self) -> None:
        """Show layers in the order of the model, or the largest first."""
        self._largest_first = not self._largest_first
        self.follow(False)

    def follow(self, moved: bool) -> None:
        """Draw a bar for each layer."""
        measures = [self._measure(layer) for layer in self._layers()]
        self.subtitle = self._quantity
        if not measures:
            self.say("No gradient of a parameter was recorded.")
            return
        if self._largest_first:
            measures.sort(key=lambda one: (not math.isnan(one.latest), -one.latest))
        self.put(self._bars(measures), [self._title(measures)])
        if moved:
            inside = (at for at, one in enumerate(measures) if self._is_inside(one.layer))
            self.go(next(inside, 0))

    def _layers(self) -> list[Layer]:
        return layers(self.subject.model, self.subject.all_series())

    def _measure(self, layer: Layer) -> _Measure:
        """The latest number of a layer, without a look at all steps before."""
        latest = self._values(layer, lambda series: _last(self.subject.points(series)))
        return _Measure(layer, float(latest[-1]) if len(latest) else _NOT_READ)

    def _values(self, layer: Layer, points: Callable[[Series], Points | None]) -> Numbers:
        read = gradient_norms if self._quantity == "gradient norm" else update_ratios
        return read(layer, points)

    def _is_inside(self, layer: Layer) -> bool:
        path = self.module.path
        return bool(path) and (layer.path == path or layer.path.startswith(f"{path}."))

    def _title(self, measures: Sequence[_Measure]) -> Row:
        low, high = _decades(measures)
        name = self._name_width(measures)
        words = f"log scale, 1e{low} … 1e{high}"
        return Row([(fit("layer", name + 2), "header"), (words, "muted")])

    def _name_width(self, measures: Sequence[_Measure]) -> int:
        longest = max(cell_len(self._label(one.layer)) for one in measures)
        return min(longest, _MOST_NAME, max(self.room // 3, 8))

    def _label(self, layer: Layer) -> str:
        return harmless(layer.path or self.subject.model.name)

    def _bars(self, measures: Sequence[_Measure]) -> Sequence[Row]:
        low, high = _decades(measures)
        name = self._name_width(measures)
        room = max(self.room - name - _NUMBER - _TREND - 6, 6)

        def draw(at: int) -> Row:
            one = measures[at]
            filled, rest = bar(_place(one.latest, low, high), room)
            style = _style(one.latest, self._quantity)
            trend = squeeze(self._values(one.layer, self.subject.points), _TREND)
            return Row(
                [
                    (fit(self._label(one.layer), name) + "  ", "name"),
                    (filled if one.latest > 0 else "", style),
                    (rest if one.latest > 0 else "─" * room, "faint"),
                    (f"{_number(one.latest):>{_NUMBER}}  ", _number_style(style)),
                    (sparkline(trend, _TREND), "spark"),
                ],
                one.layer.path,
                "marked" if self._is_inside(one.layer) else "plain",
            )

        return LazyRows(len(measures), draw)


def _last(points: Points | None) -> Points | None:
    """The last of some points alone."""
    if points is None or not len(points):
        return None
    return replace(points, steps=points.steps[-1:], values=points.values[-1:])


def _decades(measures: Sequence[_Measure]) -> tuple[int, int]:
    """The powers of ten that hold all that is finite and above zero."""
    known = [one.latest for one in measures if one.latest > 0 and math.isfinite(one.latest)]
    if not known:
        return -1, 0
    low = math.floor(math.log10(min(known)))
    return low, max(math.ceil(math.log10(max(known))), low + 1)


def _place(value: float, low: int, high: int) -> float:
    if not value > 0:
        return 0.0
    return 1.0 if math.isinf(value) else (math.log10(value) - low) / (high - low)


def _style(value: float, quantity: Quantity) -> str:
    """Whether a bar is to be looked at: it vanished, it explodes, or it is no number."""
    if math.isnan(value) or math.isinf(value) or value == 0:
        return "problem"
    if value > _TOO_MUCH[quantity] or 0 < value < _TOO_LITTLE:
        return "warning"
    return "bar"


def _number_style(style: str) -> str:
    return "number" if style == "bar" else style


def _number(value: float) -> str:
    if value == _NOT_READ:
        return "…"
    return "0" if value == 0 else f"{value:.2e}"
