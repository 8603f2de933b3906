"""The panel of gradients and updates, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from rich.cells import cell_len

from torchglass.analyse.gradient_flow import (
    GRADIENT,
    UPDATE,
    Layer,
    Numbers,
    gradient_norms,
    layers,
    update_ratios,
)
from torchglass.analyse.pixels import squeeze
from torchglass.records.model import Model
from torchglass.records.series import Points, Series, SeriesId
from torchglass.views.formats import harmless, sparkline
from torchglass.views.tui.explorer_state import ExplorerState
from torchglass.views.tui.keys import panel_bindings
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.text_rows import LazyRows, TextRow, bar, fit, fit_path

Quantity = Literal["gradient norm", "update ratio", "output gradient"]

_NORMS = ".grad_norm"
"""The suffix of series of gradient norms per sample."""
_NUMBER, _TREND = 9, 12
_MOST_NAME = 36
_NOT_READ = -1.0
_TOO_MUCH = {"gradient norm": 1e3, "update ratio": 0.1, "output gradient": 1e3}
_TOO_LITTLE = 1e-7


@dataclass(frozen=True, slots=True)
class _LayerValue:
    """A layer and its latest value."""

    layer: Layer
    latest: float


class GradientFlowPanel(Panel):
    """A bar for each layer on a log scale, at the latest step."""

    key: ClassVar[str] = "G"
    title: ClassVar[str] = "Gradient flow"
    missing: ClassVar[str] = "No gradients recorded: train with tg.watch(model)"
    has_cursor = True
    BINDINGS: ClassVar = panel_bindings("panel:gradient flow", "panel:quantities")

    def __init__(self, state: ExplorerState) -> None:
        super().__init__(state)
        self._quantity: Quantity = "gradient norm"
        self._flows: Mapping[Quantity, Sequence[Layer]] = {}
        self._largest_first = False

    @classmethod
    def available(cls, state: ExplorerState) -> bool:
        return any(one.name.endswith((GRADIENT, UPDATE, _NORMS)) for one in state.all_series())

    def extra_places(self) -> Iterable[str]:
        if len(self._flows) > 1:
            yield "panel:quantities"

    def wanted(self) -> Iterable[SeriesId]:
        for known in _flows(self.state).values():
            for layer in known:
                yield from (one.id for one in (*layer.gradients, *layer.updates))

    def action_quantity(self) -> None:
        known = list(self._flows)
        if known:
            self._quantity = known[(known.index(self._quantity) + 1) % len(known)]
            self.follow(True)

    def action_sort(self) -> None:
        self._largest_first = not self._largest_first
        self.follow(False)

    def follow(self, moved: bool) -> None:
        self._flows = _flows(self.state)
        if self._quantity not in self._flows:
            self._quantity = next(iter(self._flows), self._quantity)
        measures = [self._measure(layer) for layer in self._flows.get(self._quantity, ())]
        self.subtitle = self._quantity
        if not measures:
            self.say("No gradients recorded.")
            return
        if self._largest_first:
            measures.sort(key=lambda one: (not math.isnan(one.latest), -one.latest))
        self.put(self._bars(measures), [self._title(measures)])
        if moved:
            inside = (at for at, one in enumerate(measures) if self._is_inside(one.layer))
            self.go(next(inside, 0))

    def _measure(self, layer: Layer) -> _LayerValue:
        """The latest value of a layer, without reading the steps before."""
        latest = self._values(layer, lambda series: _last(self.state.points(series)))
        return _LayerValue(layer, float(latest[-1]) if len(latest) else _NOT_READ)

    def _values(self, layer: Layer, points: Callable[[Series], Points | None]) -> Numbers:
        read = update_ratios if self._quantity == "update ratio" else gradient_norms
        return read(layer, points)

    def _is_inside(self, layer: Layer) -> bool:
        path = self.module.path
        return bool(path) and (layer.path == path or layer.path.startswith(f"{path}."))

    def _title(self, measures: Sequence[_LayerValue]) -> TextRow:
        low, high = _decades(measures)
        name = self._name_width(measures)
        words = f"log scale, 1e{low} … 1e{high}"
        return TextRow([(fit("layer", name + 2), "header"), (words, "muted")])

    def _name_width(self, measures: Sequence[_LayerValue]) -> int:
        longest = max(cell_len(self._label(one.layer)) for one in measures)
        return min(longest, _MOST_NAME, max(self.room * 2 // 5, 8))

    def _label(self, layer: Layer) -> str:
        return harmless(layer.path or self.state.model.name)

    def _bars(self, measures: Sequence[_LayerValue]) -> Sequence[TextRow]:
        low, high = _decades(measures)
        name = self._name_width(measures)
        room = max(self.room - name - _NUMBER - _TREND - 6, 6)

        def draw(at: int) -> TextRow:
            one = measures[at]
            filled, rest = bar(_place(one.latest, low, high), room)
            style = _style(one.latest, self._quantity)
            trend = squeeze(self._values(one.layer, self.state.points), _TREND)
            return TextRow(
                [
                    (fit_path(self._label(one.layer), name) + "  ", "name"),
                    (filled if one.latest > 0 else "", style),
                    (rest if one.latest > 0 else "─" * room, "faint"),
                    (f"{_number(one.latest):>{_NUMBER}}  ", _number_style(style)),
                    (sparkline(trend, _TREND), "spark"),
                ],
                one.layer.path,
                "marked" if self._is_inside(one.layer) else "plain",
            )

        return LazyRows(len(measures), draw)


def _flows(state: ExplorerState) -> dict[Quantity, list[Layer]]:
    """The layers of each quantity that was recorded."""
    model, series = state.model, state.all_series()
    holding = layers(model, series)
    found: dict[Quantity, list[Layer]] = {
        "gradient norm": [layer for layer in holding if layer.gradients],
        "update ratio": [layer for layer in holding if layer.updates],
        "output gradient": output_layers(model, series),
    }
    return {quantity: known for quantity, known in found.items() if known}


def output_layers(model: Model, series: Iterable[Series]) -> list[Layer]:
    """The modules whose output gradients were recorded, in model order.

    The norm over all samples is the norm of the whole gradient.
    """
    found: dict[str, dict[str, Series]] = {}
    for one in series:
        for ending in (GRADIENT, _NORMS):
            stem = one.name.removesuffix(ending)
            if stem != one.name and _is_output(stem) and model.find(one.path):
                # One of both is enough, and only gradients count NaN.
                known = found.setdefault(one.path, {})
                known[stem] = one if ending == GRADIENT else known.get(stem, one)
    return [
        Layer(path=module.path, gradients=tuple(found[module.path].values()))
        for module in model.modules
        if module.path in found
    ]


def _is_output(name: str) -> bool:
    place = name.rpartition(":")[2]
    return place == "output" or place.startswith("output.")


def _last(points: Points | None) -> Points | None:
    if points is None or not len(points):
        return None
    return replace(points, steps=points.steps[-1:], values=points.values[-1:])


def _decades(measures: Sequence[_LayerValue]) -> tuple[int, int]:
    """The powers of ten around all finite, positive values."""
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
    """Red where a gradient is 0, NaN or Inf; yellow where it is very large or small."""
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
